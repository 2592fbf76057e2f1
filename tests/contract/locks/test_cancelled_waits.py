"""The option `cancel` ends a wait. The waiter keeps its place until then, and leaves nothing behind."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from support.faults import BackgroundCall
from support.primitives import KEY, Primitive
from support.zoo import Zoo, eventually

from django_zklock import zk_lock, zk_locks, zk_semaphore
from django_zklock.core.locks.held import held_locks
from django_zklock.exceptions import LockNotAcquired
from django_zklock.locks.multi import MultiHold

pytestmark = pytest.mark.usefixtures("looks_often")


def test_a_cancelled_wait_raises_and_leaves_the_queue(zoo: Zoo, primitive: Primitive) -> None:
    cancel = threading.Event()
    with primitive.full(zoo):
        waiting = BackgroundCall(primitive.lock(timeout=None, cancel=cancel).__enter__)
        primitive.wait_queued(zoo, 1, others=primitive.blockers)
        cancel.set()
        with pytest.raises(LockNotAcquired, match="'warm/a' was cancelled") as caught:
            waiting.result()
        assert caught.value.lock == KEY
        assert type(caught.value) is LockNotAcquired
        zoo.wait_contenders(KEY, primitive.blockers)


@pytest.mark.parametrize("busy", ["a", "c"])
def test_a_cancelled_wait_for_several_leaves_all_queues(zoo: Zoo, busy: str) -> None:
    cancel = threading.Event()
    locks = zk_locks("a", "b", "c", "d", cancel=cancel.is_set, timeout=None, on_conflict="skip")

    def skipped() -> MultiHold | None:
        with locks as hold:
            return hold

    for call in (locks.acquire, skipped):
        cancel.clear()
        with zoo.hold_elsewhere(busy):
            waiting = BackgroundCall(call)
            zoo.wait_contenders(busy, 2)
            cancel.set()
            assert waiting.result() is None
        eventually(lambda: not zoo.contenders())


def test_an_error_of_the_callable_ends_the_wait(zoo: Zoo) -> None:
    """So a program can raise what it likes, such as its own error for a task that was revoked."""

    def revoked() -> bool:
        raise InterruptedError

    with zoo.hold_elsewhere(KEY):
        with pytest.raises(InterruptedError):
            zk_semaphore(KEY, 3, cancel=revoked).acquire()
        zoo.wait_contenders(KEY, 1)


def test_a_grant_at_the_same_moment_is_not_lost(zoo: Zoo) -> None:
    for _ in range(100):
        cancel = threading.Event()
        waiting = BackgroundCall(lambda cancel=cancel: zk_lock(KEY, cancel=cancel).acquire())  # type: ignore[misc]
        cancel.set()
        hold = waiting.result()
        if hold is not None:
            hold.check()
            hold.release()
        assert not held_locks.kept()
    eventually(lambda: not zoo.contenders())


async def test_a_coroutine_is_told_to_cancel_its_task(zoo: Zoo) -> None:
    """It would not be woken. A wrong argument is refused at once."""
    with pytest.raises(TypeError, match="cancel the task"):
        async with zk_lock(KEY, cancel=threading.Event()):
            pass
    wrong: Any
    for wrong in (True, 5, "stop"):
        with pytest.raises(TypeError, match=r"threading\.Event or a callable"):
            zk_lock(KEY, cancel=wrong)
    zoo.assert_empty()
