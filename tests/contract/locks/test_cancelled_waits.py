"""The option `cancel` ends a wait. The waiter keeps its place until then, and leaves nothing behind."""

import threading

import pytest
from support.faults import BackgroundCall
from support.primitives import KEY
from support.zoo import eventually

from django_zklock import zk_lock, zk_locks, zk_semaphore
from django_zklock.core.locks.held import held_locks
from django_zklock.exceptions import LockNotAcquired

pytestmark = pytest.mark.usefixtures("looks_often")


def test_a_cancelled_wait_raises_and_leaves_the_queue(zoo, primitive):
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
def test_a_cancelled_wait_for_several_leaves_all_queues(zoo, busy):
    cancel = threading.Event()
    locks = zk_locks("a", "b", "c", "d", cancel=cancel.is_set, timeout=None, on_conflict="skip")

    def skipped():
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


def test_an_error_of_the_callable_ends_the_wait(zoo):
    """So a program can raise what it likes, such as its own error for a task that was revoked."""

    def revoked():
        raise InterruptedError

    with zoo.hold_elsewhere(KEY):
        with pytest.raises(InterruptedError):
            zk_semaphore(KEY, 3, cancel=revoked).acquire()
        zoo.wait_contenders(KEY, 1)


def test_a_grant_at_the_same_moment_is_not_lost(zoo):
    for _ in range(100):
        cancel = threading.Event()
        waiting = BackgroundCall(lambda cancel=cancel: zk_lock(KEY, cancel=cancel).acquire())
        cancel.set()
        hold = waiting.result()
        if hold is not None:
            hold.check()
            hold.release()
        assert not held_locks.kept()
    eventually(lambda: not zoo.contenders())


async def test_a_coroutine_is_told_to_cancel_its_task(zoo):
    """It would not be woken. A wrong argument is refused at once."""
    with pytest.raises(TypeError, match="cancel the task"):
        async with zk_lock(KEY, cancel=threading.Event()):
            pass
    for wrong in (True, 5, "stop"):
        with pytest.raises(TypeError, match=r"threading\.Event or a callable"):
            zk_lock(KEY, cancel=wrong)
    zoo.assert_empty()
