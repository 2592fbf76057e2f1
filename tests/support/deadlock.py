"""Deadlocks of two owners, of which this process has one or both."""

import contextlib

import pytest

from django_zklock import zk_lock
from django_zklock.core.protocol import deadlock
from django_zklock.exceptions import LockDeadlock
from support.faults import BackgroundCall

LONG = 40.0  # seconds; a wait that nothing ends makes a test fail


def nest(first, second, keep=None, **options):
    with zk_lock(first, **options), zk_lock(second, timeout=LONG, **options):
        assert keep is None or keep.wait(LONG)


@contextlib.contextmanager
def rivals(zoo, pairs, queue=2, keep=None, **options):
    """Have a thread for each pair hold its key and wait for the other, for the block, until each queue has so many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deadlock, "LOOK_SOON", LONG)  # or they might give way themselves at their second look
        calls = [BackgroundCall(lambda pair=pair: nest(pair[0], pair[1], keep, **options)) for pair in pairs.items()]
        for key in pairs.values():
            zoo.wait_contenders(zk_lock(key, **options).key, queue)
        yield
        for call in calls:
            call.result(LONG)


def give_way(zoo, first, second, **options):
    with contextlib.ExitStack() as stack, zk_lock(first, **options):
        stack.enter_context(rivals(zoo, {second: first}, **options))
        with pytest.raises(LockDeadlock) as raised, zk_lock(second, timeout=LONG, **options):
            pass
    return raised.value
