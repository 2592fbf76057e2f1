"""Each tool of the fault kit does what it says, to real servers and processes, and is undone at its end."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from kazoo.client import KazooClient
from support.chaos import firewall, namespaces
from support.chaos.clocks import ClockShim
from support.chaos.firewall import needs_firewall
from support.chaos.namespaces import NotInside
from support.chaos.preload import needs_compiler
from support.chaos.servers import looking_in, repaired
from support.chaos.slowdisk import SlowDisk
from support.ensemble import Ensemble

pytestmark = [pytest.mark.zookeeper]

SILENCE = 0.7  # seconds in which an answer would have come, many times over


def port_of(client: KazooClient) -> int:
    """The local port of a client's connection."""
    port: int = client._connection._socket.getsockname()[1]
    return port


@contextlib.contextmanager
def running(command: list[str], env: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A process with pipes, which ends with the block."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **env}
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def ask(process: subprocess.Popen[str]) -> list[str]:
    """Have a process do once more what it does for each line, and return the words that it says to that."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline().split()


def answer(call: Any, timeout: float = 15.0) -> Any:
    """Return the result of an asynchronous call of a client."""
    return call.get(timeout=timeout)


def assert_silent(call: Any) -> None:
    """Fail if an asynchronous call is answered in the time that an answer takes."""
    assert not call.wait(SILENCE), "it was answered"


# --- namespaces -------------------------------------------------------------------------------------------------------


def test_the_firewall_of_the_machine_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that says that we are in other namespaces is not believed when they are those it was set in."""
    monkeypatch.setenv(namespaces.OUTSIDE, namespaces.environment()[namespaces.OUTSIDE])
    assert not namespaces.inside()
    with pytest.raises(NotInside):
        firewall.blackhole(1).begin()


# --- the firewall -----------------------------------------------------------------------------------------------------


@needs_firewall
def test_a_blackhole_silences_one_connection_and_no_other(single: Ensemble) -> None:
    with looking_in(single.hosts) as victim, looking_in(single.hosts) as other:
        assert {port_of(victim), port_of(other)} <= set(firewall.connections_of(os.getpid(), [single.servers[0].port]))
        with firewall.blackhole(port_of(victim)) as fault:
            call = victim.exists_async("/")
            assert_silent(call)
            assert answer(other.exists_async("/"))
            assert fault.hits > 0
        assert answer(call), "TCP sends it again"


@pytest.fixture
def whole(three: Ensemble) -> Iterator[Ensemble]:
    """The three servers, all of them serving before and after."""
    with repaired(three):
        yield three


@needs_firewall
def test_a_cut_off_follower_answers_reads_and_no_writes(whole: Ensemble) -> None:
    follower, leader = whole.followers[0], whole.leader
    with looking_in(follower.address) as writer, looking_in(follower.address) as reader:
        with firewall.cut_link(follower, leader) as fault:
            write = writer.set_async("/zookeeper/quota", b"")
            assert_silent(write)
            assert answer(reader.exists_async("/"), SILENCE)
            assert fault.hits > 0
        answer(write)
    for server in whole.servers:
        assert server.wait_ready(45)


# --- disks ------------------------------------------------------------------------------------------------------------


@needs_compiler
def test_a_slow_disk_holds_back_writes_and_not_reads() -> None:
    with SlowDisk() as disk, Ensemble(fsync=True, env=disk.env) as ensemble:
        server = ensemble.servers[0]
        with looking_in(ensemble.hosts) as client:
            client.create("/a")
            assert not disk.waits()
            disk.slow(1.0)
            began = time.monotonic()
            write = client.create_async("/b")
            assert client.exists("/a")
            answer(write)
            assert time.monotonic() - began >= 1.0
            assert disk.waits()[server.pid] > 0

            disk.slow(60)
            write = client.create_async("/c")
            assert_silent(write)
            disk.fast()
            answer(write)  # a wait that is going on ends
            waited = disk.waits()
            client.create("/d")
            assert disk.waits() == waited


# --- clocks -----------------------------------------------------------------------------------------------------------

CLOCKS = """\
import sys, time
for _ in sys.stdin:
    print(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME), time.monotonic(), flush=True)
"""


def ahead(process: subprocess.Popen[str]) -> list[int]:
    """By how many tens of seconds a process's wall clock, boot-time clock and monotonic clock are ahead of ours."""
    theirs = map(float, ask(process))
    ours = [time.time(), time.clock_gettime(time.CLOCK_BOOTTIME), time.monotonic()]
    return [round((first - other) / 10) * 10 for first, other in zip(theirs, ours, strict=True)]


@needs_compiler
def test_clocks_jump_under_a_running_process_and_the_monotonic_clock_does_not() -> None:
    with ClockShim() as shim, running([sys.executable, "-c", CLOCKS], shim.env) as process:
        assert ahead(process) == [0, 0, 0]
        shim.jump(realtime=3600)
        assert ahead(process) == [3600, 0, 0]
        shim.jump(boottime=100)
        assert ahead(process) == [3600, 100, 0]
        shim.jump(realtime=-7200)
        assert ahead(process) == [-3600, 100, 0]
        with shim.suspended(process.pid, 1000):
            assert psutil.Process(process.pid).status() == psutil.STATUS_STOPPED
        assert ahead(process) == [-2600, 1100, 0]
        with pytest.raises(ValueError, match="cannot go back"):
            shim.jump(boottime=-1)
