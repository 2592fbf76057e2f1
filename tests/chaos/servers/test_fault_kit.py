"""Each tool of the fault kit does what it says, to real servers and processes, and is undone at its end."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import ConnectionLoss
from support.chaos import firewall, namespaces, session_killer, wrap
from support.chaos.clocks import ClockShim, started_at
from support.chaos.firewall import Fault, needs_firewall
from support.chaos.fulldisk import FullDisk
from support.chaos.namespaces import NotInside, needs_namespace
from support.chaos.preload import ToolFailed, needs_compiler
from support.chaos.servers import looking_in
from support.chaos.slowdisk import SlowDisk
from support.zoo import TESTS, eventually

from django_zklock.testing.ensemble import Ensemble

pytestmark = [pytest.mark.zookeeper, pytest.mark.scenario("KIT")]

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
    """What an asynchronous call of a client returns."""
    return call.get(timeout=timeout)


def assert_silent(call: Any) -> None:
    """Fail if an asynchronous call is answered in the time that an answer takes."""
    assert not call.wait(SILENCE), "it was answered"


# --- namespaces -------------------------------------------------------------------------------------------------------


@pytest.mark.chaos
@pytest.mark.skipif(bool(namespaces.possible()), reason=namespaces.possible() or "possible")
def test_a_command_runs_in_namespaces_with_a_loopback_of_its_own() -> None:
    with socket.create_server(("127.0.0.1", 0)) as here:
        port = here.getsockname()[1]
        script = (
            "import socket; from support.chaos import namespaces\n"
            "assert namespaces.inside(), namespaces.why_not()\n"
            "namespaces.set_up()\n"
            f"assert socket.socket().connect_ex(('127.0.0.1', {port})) == {errno.ECONNREFUSED}\n"
            f"server = socket.create_server(('127.0.0.1', {port}))\n"
            f"socket.create_connection(('127.0.0.1', {port}))\n"
            "print('all is well')"
        )
        done = subprocess.run(
            namespaces.command([sys.executable, "-c", script]),
            check=False,
            capture_output=True,
            text=True,
            env={
                **os.environ,
                **namespaces.environment(),
                "PYTHONPATH": os.pathsep.join(map(str, [TESTS, TESTS.parent])),
            },
        )
    assert done.stdout == "all is well\n", done.stderr


def test_the_firewall_and_the_disks_of_the_machine_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A variable that says that we are in other namespaces is not believed when they are those it was set in."""
    monkeypatch.setenv(namespaces.OUTSIDE, namespaces.environment()[namespaces.OUTSIDE])
    assert not namespaces.inside()
    with pytest.raises(NotInside):
        firewall.blackhole(1).begin()
    with pytest.raises(NotInside):
        firewall.flush()
    with pytest.raises(NotInside):
        FullDisk(tmp_path)


# --- the firewall -----------------------------------------------------------------------------------------------------


@pytest.mark.chaos
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


@pytest.mark.chaos
@needs_firewall
def test_a_process_with_one_connection_is_told_from_one_with_none_or_several(single: Ensemble) -> None:
    port = single.servers[0].port
    script = (
        "import socket, sys\n"
        "kept = []\n"
        "for _ in sys.stdin:\n"
        f"    kept.append(socket.create_connection(('127.0.0.1', {port})))\n"
        "    print(kept[-1].getsockname()[1], flush=True)\n"
    )
    with running([sys.executable, "-c", script], {}) as process:
        with pytest.raises(LookupError, match="has 0 connections"):
            firewall.connection_of(process.pid, [port])
        (local,) = ask(process)
        assert firewall.connection_of(process.pid, [port]) == int(local)
        ask(process)
        with pytest.raises(LookupError, match="has 2 connections"):
            firewall.connection_of(process.pid, [port])


@pytest.fixture
def whole(three: Ensemble) -> Iterator[Ensemble]:
    """The three servers, all of them serving before and after."""
    yield three
    for server in three.servers:
        server.start()
        server.wait_ready(45)


@pytest.mark.chaos
@needs_firewall
def test_a_follower_cut_off_from_its_leader_still_answers_reads_and_no_writes(whole: Ensemble) -> None:
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


@pytest.mark.chaos
@needs_firewall
def test_a_follower_that_is_cut_off_for_good_comes_back_when_the_cut_ends(whole: Ensemble) -> None:
    (follower, other), leader = whole.followers, whole.leader
    with firewall.cut_link(follower, leader, lasting=True):
        eventually(lambda: follower.mode() is None, 30, "the follower goes on serving")
        with looking_in(f"{leader.address},{other.address}") as client:
            client.set("/zookeeper/quota", b"")
        assert (follower.mode(), other.mode(), leader.mode()) == (None, "follower", "leader")
    assert follower.wait_ready(45) == "follower"


def test_a_server_that_is_alone_has_no_link_to_cut(single: Ensemble) -> None:
    with pytest.raises(LookupError, match="is alone"):
        firewall.cut_link(single.servers[0], single.servers[0])


@pytest.mark.chaos
@needs_firewall
def test_a_dead_host_neither_answers_nor_refuses() -> None:
    with socket.create_server(("127.9.9.1", 0)) as alive:
        address = alive.getsockname()
        with firewall.dead_host("127.9.9.1") as fault, pytest.raises(TimeoutError):
            socket.create_connection(address, timeout=SILENCE)
        assert fault.hits > 0
        socket.create_connection(address, timeout=SILENCE).close()


def test_the_host_that_everything_runs_on_is_not_declared_dead() -> None:
    for address in ("127.0.0.1", "10.1.2.3", "::1"):
        with pytest.raises(ValueError, match="not an address of a dead host"):
            firewall.dead_host(address)


@pytest.mark.chaos
@needs_firewall
def test_lost_packets_are_sent_again_until_all_of_them_are_lost(single: Ensemble) -> None:
    with looking_in(single.hosts) as client:
        with firewall.lossy(port_of(client), 0.1) as some:
            while not some.hits:
                assert answer(client.exists_async("/"))
            assert answer(client.exists_async("/"))
        with firewall.lossy(port_of(client), 1.0):
            call = client.exists_async("/")
            assert_silent(call)
        assert answer(call)


@pytest.mark.chaos
@needs_firewall
def test_a_reset_ends_a_connection_at_the_next_packet(single: Ensemble) -> None:
    with looking_in(single.hosts) as client:
        port = port_of(client)
        with firewall.reset(port) as fault:
            with pytest.raises(ConnectionLoss):
                answer(client.exists_async("/"), 2)  # long before the client would notice a silence
            assert fault.hits > 0
        eventually(lambda: client.connected)
        assert answer(client.exists_async("/"))
        assert port_of(client) != port


@pytest.mark.chaos
@needs_firewall
def test_rules_are_gone_after_an_error() -> None:
    fault = firewall.blackhole(1)
    with pytest.raises(KeyError), fault:
        assert rules_of(fault)
        raise KeyError
    assert not rules_of(fault)
    broken = Fault("half of it is wrong", "-p tcp --dport 1 -j DROP", "-p tcp --no-such-option -j DROP")
    with pytest.raises(ToolFailed, match="no-such-option"):
        broken.begin()
    assert not rules_of(broken)


@pytest.mark.chaos
@needs_firewall
def test_a_flush_leaves_no_rule() -> None:
    fault = firewall.blackhole(1)
    fault.begin()
    firewall.flush()
    assert not rules_of(fault)


def rules_of(fault: Fault) -> list[str]:
    """The rules of a fault that are in place, as iptables shows them."""
    return [line for line in firewall._iptables("-S").splitlines() if fault._mark in line]


# --- disks ------------------------------------------------------------------------------------------------------------


@pytest.mark.chaos
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


@pytest.mark.chaos
@needs_compiler
def test_one_server_of_three_has_a_slow_disk_and_the_quorum_does_not_wait_for_it() -> None:
    with SlowDisk() as disk, Ensemble(nodes=3, fsync=True, env=disk.env) as ensemble:
        slow, quick = ensemble.followers
        with looking_in(f"{ensemble.leader.address},{quick.address}") as client:
            disk.slow(60, slow)
            client.create("/a")
            eventually(lambda: disk.waits()[slow.pid] > 0)
            assert set(disk.waits()) == {slow.pid}
            disk.slow(60, quick)
            write = client.create_async("/b")
            assert_silent(write)
            disk.fast(quick)
            answer(write)
            disk.fast()


@pytest.mark.chaos
@needs_compiler
def test_a_server_without_the_slow_disk_is_not_said_to_be_slow(single: Ensemble) -> None:
    with SlowDisk() as disk, pytest.raises(ToolFailed, match="runs without this disk"):
        disk.slow(1, single.servers[0])


@pytest.mark.chaos
@needs_namespace
def test_a_server_whose_disk_is_full_ends_and_says_so_and_serves_again_when_there_is_room(tmp_path: Path) -> None:
    with FullDisk(tmp_path) as disk, Ensemble(directory=tmp_path, fsync=True) as ensemble:
        server = ensemble.servers[0]
        with looking_in(ensemble.hosts) as client:
            client.create("/before")
            assert disk.fill() > 0
            assert disk.left == 0
            for number in range(16):  # the first of them may fit into a block that the log has already
                client.create_async(f"/during-{number}", b"x" * 1024)
            eventually(lambda: not server.running, 30, "the server goes on")
            assert "Severe unrecoverable error" in server.log.read_text()
            disk.free()
            server.start()
            server.wait_ready()
            eventually(lambda: client.state == KazooState.CONNECTED)
            assert client.exists("/before")
    assert psutil.disk_usage(str(disk.path)).total > 2**26, "it is not mounted any more"


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
    return [round((one - other) / 10) * 10 for one, other in zip(theirs, ours, strict=True)]


@pytest.mark.chaos
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
        assert shim.shifts == (-2600.0, 1100.0)
        with pytest.raises(ValueError, match="cannot go back"):
            shim.jump(boottime=-1)


@pytest.mark.chaos
@needs_compiler
def test_a_wait_for_a_point_of_the_wall_clock_ends_when_the_clock_jumps_over_it() -> None:
    script = (
        "import ctypes, time\n"
        "libc, semaphore = ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer(64)\n"
        "libc.sem_init(semaphore, 0, 0)\n"
        "until = (ctypes.c_long * 2)(int(time.time()) + 3600, 0)\n"
        "print('waiting', flush=True)\n"
        "print(libc.sem_timedwait(semaphore, until), ctypes.get_errno(), flush=True)\n"
    )
    with ClockShim() as shim, running([sys.executable, "-c", script], shim.env) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        shim.jump(realtime=3590)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(SILENCE)
        shim.jump(realtime=20)
        assert process.stdout.readline() == f"-1 {errno.ETIMEDOUT}\n"


@pytest.mark.chaos
@needs_compiler
def test_a_process_does_not_run_without_the_clocks_it_was_to_have(tmp_path: Path) -> None:
    with ClockShim() as shim:
        env = {**os.environ, **shim.env, "CLOCKSHIFT": str(tmp_path / "missing")}
        done = subprocess.run([sys.executable, "-c", "print('on')"], check=False, capture_output=True, env=env)
    assert (done.returncode, done.stdout) == (127, b"")


@pytest.mark.chaos
@needs_namespace
def test_a_process_starts_with_clocks_of_another_machine() -> None:
    command = started_at([sys.executable, "-c", CLOCKS], monotonic=5000, boottime=90000)
    with running(command, {}) as process:
        assert ahead(process) == [0, 90000, 5000]


# --- sequence numbers -------------------------------------------------------------------------------------------------


def test_the_next_child_gets_any_number_that_is_asked_for(tmp_path: Path) -> None:
    asked = {"/zklock/a": 2147483640, "/zklock/b": -5, "/zklock/c": -1000000001, "/zklock/a/b": 7, "/d": 2147483647}
    wrap.prepare(tmp_path, asked, data=b"kept")
    with Ensemble(directory=tmp_path) as ensemble, looking_in(ensemble.hosts) as client:
        for path, number in asked.items():
            assert client.get(path)[0] == b"kept"
            assert client.create(f"{path}/n-", ephemeral=True, sequence=True) == f"{path}/n-{number:010d}"
        client.create("/elsewhere/too", makepath=True)
        assert sorted(client.get_children("/zookeeper")) == ["config", "quota"]


def test_a_node_is_a_container_if_that_is_asked_for(tmp_path: Path) -> None:
    """The server takes away a container that had a child and has none, and no other node."""
    wrap.prepare(tmp_path, {"/container": 7, "/other": 7}, containers=["/container"])
    with Ensemble(directory=tmp_path, container_check=0.1) as ensemble, looking_in(ensemble.hosts) as client:
        eventually(lambda: not client.exists("/container"))
        assert client.exists("/other")


def test_the_largest_number_is_given_again_and_again(tmp_path: Path) -> None:
    """ZooKeeper 3.8 does not go on with negative numbers, as one would think: two nodes with one number."""
    wrap.prepare(tmp_path, {"/a": wrap.LARGEST})
    with Ensemble(directory=tmp_path) as ensemble, looking_in(ensemble.hosts) as client:
        made = [client.create(f"/a/{name}-", sequence=True) for name in ("x", "y")]
        assert made == ["/a/x-2147483647", "/a/y-2147483647"]


@pytest.mark.chaos
def test_three_servers_start_with_the_same_numbers_and_keep_them_over_a_restart(tmp_path: Path) -> None:
    wrap.prepare(tmp_path, {"/a": -5}, servers=3)
    with Ensemble(3, directory=tmp_path) as ensemble:
        with looking_in(ensemble.hosts) as client:
            assert client.create("/a/n-", sequence=True) == "/a/n--000000005"
        for server in ensemble.servers:
            server.stop()
        for server in ensemble.servers:
            server.start()
        for server in ensemble.servers:
            server.wait_ready(45)
        with looking_in(ensemble.hosts) as client:
            assert client.create("/a/n-", sequence=True) == "/a/n--000000004"


def test_a_number_that_no_server_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a number of 32 bits"):
        wrap.prepare(tmp_path, {"/a": 2**31})


# --- sessions ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def witnessed(client: KazooClient) -> Iterator[list[str]]:
    """The states of a client, as it is told of them; the block ends when it has lost its session."""
    states: list[str] = []
    lost = threading.Event()

    def listen(state: str) -> None:
        states.append(state)
        if state == KazooState.LOST:
            lost.set()

    client.add_listener(listen)
    yield states
    assert lost.wait(10), f"the client was told {states}"


def test_a_session_ends_with_its_password_and_its_nodes_are_gone(single: Ensemble) -> None:
    with looking_in(single.hosts) as victim, looking_in(single.hosts) as other:
        node = victim.create("/kit-", ephemeral=True, sequence=True)
        with witnessed(victim) as states:
            session_killer.expire(single.hosts, *victim.client_id)
            assert not other.exists(node)
        assert states == [KazooState.SUSPENDED, KazooState.LOST]


def test_a_session_ends_by_what_the_stat_of_its_node_says(single: Ensemble) -> None:
    with looking_in(single.hosts) as victim, looking_in(single.hosts) as other:
        node = victim.create("/kit-", ephemeral=True, sequence=True)
        owner = other.exists(node).ephemeralOwner
        assert session_killer.password_of(owner) == victim.client_id[1]
        with witnessed(victim):
            session_killer.expire(single.hosts, owner)
            assert not other.exists(node)


@pytest.mark.chaos
def test_a_session_of_three_servers_ends_by_its_id_whichever_server_gave_it(whole: Ensemble) -> None:
    for server in whole.servers:
        with looking_in(server.address) as victim, witnessed(victim):
            session_killer.expire(whole.hosts, victim.client_id[0])


def test_a_session_that_is_not_there_is_not_said_to_have_ended(single: Ensemble) -> None:
    with looking_in(single.hosts) as other:
        with pytest.raises(session_killer.NoSuchSession):
            session_killer.expire(single.hosts, 0x123456789)
        with pytest.raises(session_killer.NoSuchSession):
            session_killer.expire(single.hosts, other.client_id[0], b"not the password")
        assert other.exists("/")
