"""The dev server's other promises: many clients, a quick start, and nothing left behind."""

import gc
import multiprocessing
import os
import threading
from pathlib import Path

import pytest
from support.jute import EPHEMERAL, boolean, buffer, create, exists, get, integer, put, sync
from support.wire import Wire
from support.zoo import eventually

from django_zklock.testing.server import DevServer

SHORT = 300  # milliseconds, for sessions that are to expire


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


GARBAGE = {
    "noise": bytes(range(256)) * 40,
    "zeros": b"\0" * 1000,
    "ones": b"\xff" * 1000,
    "HTTP": b"GET / HTTP/1.1\r\nHost: zookeeper\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 500,
    "half a frame": integer(1000) + b"x" * 10,
    "a huge frame": integer(2**31 - 1) + b"x" * 100,
    "a negative frame": integer(-1000) + b"x" * 100,
    "an unknown operation": integer(8) + integer(1) + integer(4711),
    "a path that is no text": integer(15) + integer(1) + integer(3) + buffer(b"\xff\xfe") + boolean(False),
    "a lie about a length": integer(17) + integer(1) + integer(3) + integer(2**30) + b"/x" + boolean(False),
}


@pytest.mark.parametrize("greeted", [False, True], ids=["stranger", "client"])
@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_of_a_client_disturbs_no_other(own, connect, garbage, greeted):
    other = connect(own)
    other.connect()
    for how in ("drop", "shut"):
        wire = connect(own)
        if greeted:
            wire.connect(timeout=SHORT)
        wire.write_raw(garbage)
        if how == "drop":
            wire.drop()
        else:
            wire.shut()
            while wire.read() is not None:
                pass
            wire.drop()
    assert other.ask(exists("/zookeeper")) == 0
    eventually(lambda: len(own.sessions()) == 1, 5, "a session stays that nobody has")
    assert own.sessions()[0].id == other.session
    other.end()


def test_half_open_connections_end_with_their_session(own, connect):
    wires = [connect(own) for _ in range(20)]
    for wire in wires:
        wire.connect(timeout=3 * SHORT)
        wire.send(*create(f"/half-{wire.session}", b"", EPHEMERAL))
    eventually(lambda: own.sessions() == [], 5, "sessions of clients that say nothing stay")
    assert all(wire.until(1) == 0 and wire.read() is None for wire in wires), "not told, or not closed"
    assert not [path for path in own.paths() if path.startswith("/half-")]


def test_an_incomplete_request_is_not_executed(own, connect):
    wire = connect(own)
    wire.connect()
    wire.write_raw(integer(100) + integer(1) + integer(1))
    wire.drop()
    again = connect(own)
    assert again.connect(session=wire.session, password=wire.password)
    assert again.ask(sync("/")) == 0
    assert own.paths() == ["/", "/zookeeper", "/zookeeper/config", "/zookeeper/quota"]


def test_a_client_that_does_not_read_delays_no_other(own, connect):
    lazy, other = connect(own), connect(own)
    lazy.connect()
    other.connect()
    assert other.ask(put("/", b"x" * 500_000)) == 0
    asked = [lazy.send(*get("/")) for _ in range(40)]
    for _ in range(20):
        assert other.ask(sync("/")) == 0
    assert [lazy.until(xid) for xid in asked] == [0] * 40
