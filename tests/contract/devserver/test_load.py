"""The dev server's other promises: many clients, a quick start, and nothing left behind."""

import gc
import multiprocessing
import os
import threading
from pathlib import Path

import pytest
from support.jute import EPHEMERAL, create, exists, get, put, sync
from support.wire import Wire

from django_zklock.testing.server import DevServer


@pytest.fixture
def own():
    with DevServer(tick=0.1, max_session_timeout=20) as server:
        yield server


@pytest.fixture
def connect():
    """Make connections that are closed at the end."""
    made = []

    def make(server):
        made.append(Wire(server.port))
        return made[-1]

    yield make
    for connection in made:
        connection.drop()


def descriptors():
    numbers = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            numbers.add((name, os.readlink(f"/proc/self/fd/{name}")))
        except FileNotFoundError:  # the one that the directory was read by
            continue
    return numbers


def start_and_stop():
    """Start servers, stop them, and look whether anything is left of them."""
    gc.collect()
    threads, files = set(threading.enumerate()), descriptors()
    for number in range(5):
        server = DevServer()
        server.start()
        server.restart()
        wires = [Wire(server.port) for _ in range(3)]
        wires[0].connect()
        wires[0].ask(create("/e", b"", EPHEMERAL))
        wires[1].write_raw(b"\0\0")
        if number % 2:
            server.stall = True
            wires[0].send(*exists("/e"))
        server.stop()
        for wire in wires:
            assert wire.read() is None, "a connection outlives its server"
            wire.drop()
    gc.collect()
    assert (set(threading.enumerate()), descriptors()) == (threads, files)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="nothing else tells the open files")
def test_a_stop_leaves_no_thread_socket_or_file():
    """In a process without other threads: those of kazoo open a file whenever they wait."""
    child = multiprocessing.get_context("fork").Process(target=start_and_stop)
    child.start()
    child.join(60)
    assert child.exitcode == 0


def test_a_client_that_does_not_read_delays_no_other(own, connect):
    lazy, other = connect(own), connect(own)
    lazy.connect()
    other.connect()
    assert other.ask(put("/", b"x" * 500_000)) == 0
    asked = [lazy.send(*get("/")) for _ in range(40)]
    for _ in range(20):
        assert other.ask(sync("/")) == 0
    assert [lazy.until(xid) for xid in asked] == [0] * 40
