"""Threads that look like one owner and are not: their waits are no deadlock."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from support.zoo import Zoo, eventually

from django_zklock import inspection, zk_lock
from django_zklock.core.execution import work
from django_zklock.core.execution.work import Work
from django_zklock.exceptions import LockNotAcquired
from django_zklock.inspection import Snapshot

pytestmark = pytest.mark.zookeeper


def task(task_id: str) -> Work:
    return Work(f"task shop.pay {task_id}", {"task": "shop.pay", "id": task_id, "retries": "0", "queue": "celery"})


def look() -> Snapshot:
    return inspection.snapshot(max_age=0, reply_timeout=5)


class Threads:
    """Threads that work for tasks, until `end`."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, of: Work, key: str, then: str = "") -> threading.Event:
        """Let a thread of this work hold a lock, and wait for another one. Return an event: it holds the first."""
        held = threading.Event()

        def run() -> None:
            work.begin(of)
            with zk_lock(key, timeout=40):
                held.set()
                if then:
                    with zk_lock(then, timeout=40):
                        pass
                self._stop.wait(60)

        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()
        return held

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)


@pytest.fixture
def threads() -> Iterator[Threads]:
    threads = Threads()
    yield threads
    threads.end()


def test_another_thread_of_the_task_that_holds_a_lock_may_wait(zoo: Zoo, threads: Threads) -> None:
    """The one that holds `a` waits for nothing, so all go on when it ends."""
    assert threads.start(task("1"), "a").wait(20)
    assert threads.start(task("2"), "b", then="a").wait(20)
    zoo.wait_contenders("a", 2)
    threads.start(task("1"), "b")
    zoo.wait_contenders("b", 2)
    shown = look()
    assert [(wait.holds, wait.waits_for) for wait in shown.waits] == [("b", "a")]
    assert shown.cycles == ()


def test_a_task_that_gave_up_its_place_to_another_one_does_not_wait(zoo: Zoo, threads: Threads) -> None:
    """With `linger`, another task of the process waits with the same znode, which still names the first one."""
    gave_up, over = threading.Event(), threading.Event()

    def first() -> None:
        work.begin(task("1"))
        with zk_lock("a"):
            with pytest.raises(LockNotAcquired), zk_lock("b", timeout=2, linger=5):
                pass
            gave_up.set()
            over.wait(60)

    def second() -> None:
        work.begin(task("3"))
        with zk_lock("b", timeout=40, linger=5):
            pass

    assert threads.start(task("2"), "b").wait(20)
    founder, successor = threading.Thread(target=first), threading.Thread(target=second)
    founder.start()
    eventually(lambda: len(zoo.children("b")) == 2)
    successor.start()
    try:
        assert gave_up.wait(20)
        eventually(lambda: look().waits == ())  # the request by which the first one left its place may be on its way
    finally:
        over.set()
        threads.end()
        founder.join(60)
        successor.join(60)


def test_a_search_that_reached_its_limit_says_so(zoo: Zoo, monkeypatch: pytest.MonkeyPatch, threads: Threads) -> None:
    monkeypatch.setattr(inspection.deadlocks, "MAX_WAITS", 1)
    monkeypatch.setattr(inspection.queries, "MAX_WAITS", 1)
    assert threads.start(task("1"), "a").wait(20)
    assert threads.start(task("2"), "b", then="a").wait(20)
    zoo.wait_contenders("a", 2)
    assert not look().complete
