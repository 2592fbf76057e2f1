"""Any process can see who leads, and each change."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import socket
import threading
from collections.abc import Iterator
from datetime import datetime, timezone

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from kazoo.exceptions import NoNodeError
from support.ensemble import Ensemble, four_letter
from support.faults import BackgroundCall, connected, expire, proxied, reconnect, session
from support.proxy import Proxy
from support.zoo import Zoo, eventually

from django_zklock import Leader, operations, zk_leader
from django_zklock.exceptions import UnreadableQueue, ZooKeeperUnavailable
from django_zklock.inspection import ContenderInfo
from django_zklock.testing.server import DevServer
from django_zklock.zk import process

pytestmark = pytest.mark.zookeeper

TIMEOUT = 4.0  # seconds, of a session


class Observer:
    """A thread that observes a leader; its reports can be read one by one."""

    def __init__(self, leader: Leader) -> None:
        self.leader = leader
        self._told: queue.SimpleQueue[ContenderInfo | BaseException | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._observe, daemon=True)
        self.thread.start()

    def _observe(self) -> None:
        try:
            for candidate in self.leader.observe():
                self._told.put(candidate)
        except Exception as error:
            self._told.put(error)

    def next(self) -> ContenderInfo | BaseException | None:
        """Wait for the next report."""
        return self._told.get(timeout=10)

    def token(self) -> int:
        """Wait for the next report, which must be a leader; return its token."""
        found = self.next()
        assert isinstance(found, ContenderInfo), found
        return found.token

    @property
    def silent(self) -> bool:
        return self._told.empty()

    def end(self) -> None:
        self.leader.stop()
        self.thread.join(10)
        assert not self.thread.is_alive()


@contextlib.contextmanager
def observing(key: str = "lead") -> Iterator[Observer]:
    observer = Observer(zk_leader(key))
    try:
        yield observer
    finally:
        observer.end()


def directory(zoo: Zoo) -> list[str] | None:
    try:
        found: list[str] = zoo.client.get_children(f"{zoo.base}/lead")
    except NoNodeError:
        return None
    return found


def test_the_leader_and_the_candidates_are_shown(zoo: Zoo) -> None:
    """With work, host, process and token, in the order of the queue."""
    outsider = zk_leader("lead")
    assert outsider.current_leader() is None
    assert outsider.candidates() == ()
    began = datetime.now(timezone.utc)
    with zk_leader("lead", what="the work") as hold, zoo.hold_elsewhere("lead") as foreign:
        leading = outsider.current_leader()
        assert leading is not None
        assert (leading.what, leading.host, leading.pid) == ("the work", socket.gethostname(), os.getpid())
        assert leading.token == hold.token
        assert leading.path == hold.path
        assert leading.client == "zklock"
        assert leading.operator is None
        assert abs((leading.came - began).total_seconds()) < 60
        assert str(leading) == f"'the work' on {socket.gethostname()}, process {os.getpid()}"
        first, second = outsider.candidates()
        assert first == leading
        assert (second.path, second.pid, second.client, second.what) == (foreign, 0, "Curator", "foreign")
        assert str(second) == f"'foreign', a client of Curator, {foreign.rpartition('/')[2]}"
    assert outsider.current_leader() is None


async def test_the_async_methods_show_the_same(zoo: Zoo) -> None:
    """They need no thread. The sync methods are refused in an event loop."""
    outsider = zk_leader("lead")
    assert await outsider.acurrent_leader() is None
    async with zk_leader("lead") as hold:
        found = await outsider.acurrent_leader()
        assert found is not None
        assert found.token == hold.token
        assert await outsider.acandidates() == (found,)
        for blocking in (outsider.current_leader, outsider.candidates, lambda: next(outsider.observe())):
            with pytest.raises(SynchronousOnlyOperation, match="event loop"):
                blocking()


def test_a_queue_that_leaders_leave_one_by_one_is_never_shown_as_empty(zoo: Zoo) -> None:
    """A leader may leave after its znode was listed and before it is read."""
    ended = threading.Event()

    def follow_each_other() -> None:
        with contextlib.ExitStack() as last:
            last.enter_context(zoo.hold_elsewhere("lead"))
            while not ended.is_set():
                following = contextlib.ExitStack()
                following.enter_context(zoo.hold_elsewhere("lead"))
                last.close()
                last.push(following)

    with zoo.hold_elsewhere("lead"):
        leaders = BackgroundCall(follow_each_other)
        outsider = zk_leader("lead")
        zoo.wait_contenders("lead", 2)
    try:
        assert all(outsider.current_leader() for _ in range(300))
    finally:
        ended.set()
        leaders.result()


def test_an_operator_hold_is_shown_as_the_leader(zoo: Zoo) -> None:
    """It is first in the queue, and no process leads."""
    held = operations.hold_lock("lead", seconds=60, reason="maintenance", by="ada")
    found = zk_leader("lead").current_leader()
    assert found is not None
    assert found.operator is not None
    assert str(found) == str(found.operator)
    assert str(found).startswith("operator ada until")
    operations.end_hold("lead", token=held.token, by="ada")


def test_an_observer_gets_each_change_in_order(zoo: Zoo) -> None:
    """First the current state; then each leader, and None between them."""
    with observing() as observer:
        assert observer.next() is None
        first = zk_leader("lead")
        hold = first.wait(10)
        assert hold is not None
        assert observer.token() == hold.token
        with observing() as another:
            assert another.token() == hold.token
            second = zk_leader("lead")
            assert second.wait(0.1) is None
            zoo.client.set(hold.path, zoo.client.get(hold.path)[0])  # a change of its data is no change of the lead
            zoo.wait_contenders("lead", 2)
            first.withdraw()
            following = second.wait(10)
            assert following is not None
            assert observer.token() == another.token() == following.token
            zoo.client.delete(following.path)
            assert observer.next() is another.next() is None
            second.withdraw()
            for _ in range(3):
                third = zk_leader("lead")
                hold = third.wait(10)
                assert hold is not None
                assert observer.token() == another.token() == hold.token
                third.withdraw()
                assert observer.next() is another.next() is None
        assert observer.silent


def test_observing_costs_nothing_while_nothing_changes(zoo: Zoo) -> None:
    """Only pings are sent, with and without a leader."""
    with zoo.configured(session_timeout=30), Proxy(zoo.address) as proxy, zoo.configured(proxy.address, 30):
        connected()
        for held in (contextlib.nullcontext(), zoo.hold_elsewhere("lead")):
            with held, observing() as observer:
                observer.next()
                eventually(lambda: not session()._sent)
                proxy.reset()
                assert not threading.Event().wait(0.5)
                assert proxy.requests == 0


@pytest.mark.parametrize("held", [False, True])
def test_nothing_is_left_of_an_observation(zoo: Zoo, server: Ensemble | DevServer, held: bool) -> None:
    """No observer in the session, no directory that was created for it, and no watch on the server."""
    port = server.servers[0].port if isinstance(server, Ensemble) else server.port

    def watches() -> int:
        lines = four_letter("127.0.0.1", port, "mntr").splitlines()
        return int(next(line for line in lines if line.startswith("zk_watch_count")).split()[1])

    zoo.client.ensure_path(zoo.base)
    connected()
    before = watches()
    for _ in range(5):
        with zoo.hold_elsewhere("lead") if held else contextlib.nullcontext(), observing() as observer:
            found = observer.next()
            assert (found is not None) is held
            eventually(lambda: watches() == before + 1)
        eventually(lambda: watches() == before)
    assert not [each for each in session().observers if type(each).__name__ == "LeaderWatch"]
    if not held:
        assert directory(zoo) is None


def test_a_directory_that_is_deleted_is_created_again(zoo: Zoo) -> None:
    """Servers delete empty directories, and so do other observers at their end."""
    with observing() as observer:
        assert observer.next() is None
        for _ in range(3):
            eventually(lambda: directory(zoo) == [])
            zoo.client.delete(f"{zoo.base}/lead")
        with zk_leader("lead") as hold:
            assert observer.token() == hold.token


def test_observers_survive_the_loss_of_connection_and_session(zoo: Zoo) -> None:
    """They get changes of the meantime afterwards, and nothing if there were none."""
    with zoo.hold_elsewhere("lead") as path, proxied(zoo, TIMEOUT) as proxy, observing() as observer:
        token = observer.token()
        reconnect(proxy)
        before = session().session_id
        expire(zoo)
        eventually(lambda: session().session_id not in (None, before))
        connected()
        assert observer.silent
        proxy.refuse = True
        proxy.cut_all()
        zoo.client.delete(path)
        with zoo.hold_elsewhere("lead"):
            proxy.heal()
            assert observer.token() > token
        assert observer.next() is None


def test_an_observer_waits_until_zookeeper_is_there(zoo: Zoo) -> None:
    """For its timeout; then it ends without a report. `current_leader()` raises at once."""
    with proxied(zoo, TIMEOUT, CONNECT_TIMEOUT=0.2) as proxy:
        proxy.refuse = True
        outsider = zk_leader("lead")
        assert list(outsider.observe(timeout=0.2)) == []
        with pytest.raises(ZooKeeperUnavailable):
            outsider.current_leader()
        with observing() as observer:
            proxy.heal()
            assert observer.next() is None


def test_an_observer_gets_an_error_when_there_will_be_no_more_reports(zoo: Zoo) -> None:
    """The session is closed, or the queue is unreadable."""
    with observing() as observer:
        assert observer.next() is None
        process.reset()
        assert isinstance(observer.next(), ZooKeeperUnavailable)
    zoo.client.ensure_path(f"{zoo.base}/lead")
    zoo.client.create(f"{zoo.base}/lead/what-is-this-0000000000")
    with observing() as observer:
        assert isinstance(observer.next(), UnreadableQueue)
    zoo.client.delete(f"{zoo.base}/lead/what-is-this-0000000000")


def test_an_observation_ends_after_its_timeout_or_when_it_is_deleted(zoo: Zoo) -> None:
    """One that was stopped before it began reports nothing."""
    outsider = zk_leader("lead")
    assert list(outsider.observe(timeout=0.3)) == [None]
    observed = outsider.observe()
    assert next(observed) is None
    del observed
    assert not outsider._watches
    outsider.stop()
    assert list(outsider.observe()) == []


async def test_tasks_observe_without_a_thread(zoo: Zoo) -> None:
    """They get the same changes. `stop` ends the loop."""
    outsider = zk_leader("lead")
    told: asyncio.Queue[int | None] = asyncio.Queue()

    async def observe() -> None:
        async for candidate in outsider.aobserve():
            told.put_nowait(None if candidate is None else candidate.token)

    observer = asyncio.create_task(observe())
    assert await asyncio.wait_for(told.get(), 10) is None
    threads = threading.active_count()
    async with zk_leader("lead") as hold:
        assert await asyncio.wait_for(told.get(), 10) == hold.token
    assert await asyncio.wait_for(told.get(), 10) is None
    assert threading.active_count() == threads
    outsider.stop()
    await asyncio.wait_for(observer, 10)
    assert [candidate async for candidate in zk_leader("lead").aobserve(timeout=0.2)] == [None]
