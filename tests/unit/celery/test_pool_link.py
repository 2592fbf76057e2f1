"""The messages of a worker's main process and its pool processes, the lease that they share, and the slots."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from celery.concurrency.prefork import TaskPool
from support.zoo import eventually

from django_zklock.contrib.celery.dispatch.pool_grants import PoolGrants
from django_zklock.contrib.celery.dispatch.pool_link import LEASES, MOST_UNSENT, Connection, LeasePage, PoolLink
from django_zklock.contrib.celery.dispatch.pool_process import ContenderProxy, SessionProxy
from django_zklock.contrib.celery.dispatch.pool_slots import PoolSlots
from django_zklock.core import clock
from django_zklock.core.execution.waiters import run
from django_zklock.core.locks.held import released
from django_zklock.core.locks.spec import LockSpec
from django_zklock.core.protocol.spec import Caller
from django_zklock.core.queue.nodes import Kind
from django_zklock.core.zk import troubles
from django_zklock.core.zk.codes import meaning


@pytest.fixture
def link() -> Iterator[PoolLink]:
    link = PoolLink()
    yield link
    link.close()


@pytest.fixture
def connection() -> Iterator[tuple[Connection, socket.socket]]:
    """The main process' end of a connection, and that of a process of the pool."""
    end, other = socket.socketpair()
    connection = Connection(end)
    yield connection, other
    connection.close()
    other.close()


def in_child(work: Callable[[], bool]) -> bool:
    pid = os.fork()
    if pid == 0:
        os._exit(0 if work() else 1)
    return os.waitpid(pid, 0)[1] == 0


def test_a_pool_process_reads_the_lease() -> None:
    page = LeasePage()
    number = page.add()
    assert page.until(number) == float("-inf")
    page.write(number, 12.5, -102)
    assert in_child(lambda: (page.until(number), page.refused(number)) == (12.5, -102))


def test_a_lease_that_is_over_does_not_become_that_of_the_next_session() -> None:
    page = LeasePage()
    first = page.add()
    page.write(first, float("-inf"), 0)
    for _ in range(LEASES - 1):
        page.write(page.add(), 12.5, 0)
        assert page.until(first) == float("-inf")


def proxy_of(link: PoolLink, number: int = 1, lease: int = 1, session: int = 7) -> ContenderProxy:
    payload: Any = {"number": number, "key": f"k{number}", "path": f"/k{number}/x", "token": number, "lease": lease}
    payload |= {"kind": Kind.LOCK.value, "since": 0.0, "template": "", "ahead": {}, "waited": 0.0, "session": session}
    if link.proxy is None:
        link.proxy = SessionProxy(link)
    return ContenderProxy(link.proxy, payload, Caller(thread="", what=""))


def test_a_pool_process_knows_why_the_lease_ends(link: PoolLink) -> None:
    """It tells the end by itself, as soon as the lease is over."""
    number = link.leases.add()
    grant = proxy_of(link, lease=number).grant
    link.leases.write(number, 12.5, -102)
    assert grant.why_invalid() == f"{troubles.HEARTBEAT_REFUSED}: {meaning(-102)}"
    link.leases.write(number, 13.5, 0)
    assert grant.why_invalid() == troubles.LEASE_OVER


def test_a_grant_of_an_earlier_session_is_invalid_when_the_next_one_is_in_use(link: PoolLink) -> None:
    """Whichever of their tasks comes first to the process."""
    earlier, later = link.leases.add(), link.leases.add()
    link.leases.write(later, clock.now() + 60, 0)
    new = proxy_of(link, 2, later, session=8)
    old = proxy_of(link, 1, earlier, session=7)
    assert old.grant.why_invalid() == troubles.SESSION_OVER
    assert new.grant.why_invalid() is None


def test_a_process_that_has_come_is_killed_after_its_last_message(link: PoolLink) -> None:
    """The main process gets the message all the same."""

    def send_and_die() -> bool:
        link.send(grant=3, ended=True)
        os.kill(os.getpid(), signal.SIGKILL)
        return True

    assert not in_child(send_and_die)
    connection = link.accept()
    assert connection is not None
    assert connection.read() == [{"grant": 3, "ended": True}]
    assert connection.read() is None
    connection.close()


def test_a_process_that_does_not_read_learns_of_a_loss_when_it_goes_on(
    connection: tuple[Connection, socket.socket],
) -> None:
    """Of less important messages it gets a bounded number."""
    main, other = connection
    sent = 0
    while len(main._unsent) < MOST_UNSENT:
        main.send(grant=1, request="x" * 10_000)
        sent += 1
    main.send(grant=1, request="too many")
    main.send(grant=1, lost="why")
    received = b""
    while b"lost" not in received:
        received += other.recv(1 << 20)
        main.flush()
    assert received.count(b"request") == sent
    assert b"too many" not in received


def test_a_message_may_come_in_parts(connection: tuple[Connection, socket.socket]) -> None:
    main, other = connection
    assert main.read() == []
    other.sendall(b'{"grant": 1, "en')
    assert main.read() == []
    other.sendall(b'ded": true}\n{"grant": 2}\n')
    assert main.read() == [{"grant": 1, "ended": True}, {"grant": 2}]


def test_a_child_of_a_pool_process_does_not_keep_its_connection_open(link: PoolLink) -> None:
    """Else the main process would not notice that the pool process has ended."""
    reading, writing = os.pipe()

    def fork_and_end() -> bool:
        link.connect()
        if os.fork() == 0:
            os.close(writing)
            os.read(reading, 1)  # until the test ends
            os._exit(0)
        return True

    assert in_child(fork_and_end)
    connection = link.accept()
    assert connection is not None
    eventually(lambda: connection.read() is None)
    connection.close()
    os.close(writing)
    os.close(reading)


@dataclass
class Impatient:
    value: bool = False

    def set(self, value: bool) -> None:
        self.value = value

    def outcome(self, timeout: float) -> Iterator[None]:
        assert self.value
        yield from ()


@pytest.mark.parametrize("count", [1, 2])
def test_the_end_of_a_task_does_not_wait_for_the_main_process(link: PoolLink, count: int) -> None:
    """Its locks are given back by what it has sent, even if it is killed now; also if they are several."""
    lease = link.leases.add()
    link.leases.write(lease, clock.now() + 60, 0)
    holds = []
    for number in range(count):
        contender = proxy_of(link, number, lease)
        holds.append(contender.hand_over(LockSpec(key=f"k{number}", parent=f"/k{number}", kind=Kind.LOCK)))
        holds[-1].release_uses()
    run(released(holds, Impatient))


@pytest.fixture
def grants(link: PoolLink) -> Iterator[PoolGrants]:
    ready = threading.Event()
    grants = PoolGrants(link, ready.set, in_threads=False)
    grants.start()
    yield grants
    grants.close(ends_process=False)
    assert grants._watcher is not None
    grants._watcher.join(10)


def test_processes_of_a_pool_count_as_ready_until_they_end(grants: PoolGrants) -> None:
    go_on, end = os.pipe()

    def be_ready() -> bool:
        os.close(end)
        grants.link.send(ready=os.getpid())
        return os.read(go_on, 1) == b""

    pid = os.fork()
    if pid == 0:
        os._exit(0 if be_ready() else 1)
    os.close(go_on)
    eventually(lambda: list(grants.ready.values()) == [pid])
    os.close(end)
    assert os.waitpid(pid, 0)[1] == 0
    eventually(lambda: not grants.ready)


def test_a_process_that_ends_says_that_it_is_not_ready_any_more(grants: PoolGrants) -> None:
    grants.link.send(ready=os.getpid())
    eventually(lambda: list(grants.ready.values()) == [os.getpid()])
    grants.link.send(ready=0)
    eventually(lambda: list(grants.ready.values()) == [0])


def test_a_grant_that_was_given_back_is_not_begun(grants: PoolGrants) -> None:
    """Its process hears so, and gives it back, which is confirmed at once."""
    contender = proxy_of(grants.link, lease=grants.link.leases.add())
    grants.link.leases.write(1, clock.now() + 60, 0)
    assert not contender.session.begin([contender])
    confirmed = threading.Event()
    contender.abandon()
    contender.when_released(lambda done: confirmed.set(), confirmed=True)
    assert confirmed.wait(10)


def test_a_process_waits_no_longer_than_its_lease_for_a_silent_main_process(link: PoolLink) -> None:
    lease = link.leases.add()
    link.leases.write(lease, clock.now() + 0.2, 0)
    contender = proxy_of(link, lease=lease)
    assert not contender.session.begin([contender])


def test_a_pool_that_was_stopped_has_no_slots() -> None:
    """A worker that is stopped twice ends its pool while messages still wait."""
    pool = TaskPool(limit=1)
    controller = SimpleNamespace(max_tasks_per_child=None)
    slots = PoolSlots(SimpleNamespace(pool=pool, controller=controller), {}, on_end=print)
    pool.terminate()
    assert slots.available == 0
