"""The znode of a holder says when it got the lock, from its second second on."""

import time
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from support.primitives import Taker
from support.proxy import SET_DATA
from support.zoo import eventually

from django_zklock import inspection, zk_lock
from django_zklock.core import clock

pytestmark = pytest.mark.timed

ACCURACY = timedelta(seconds=2)


def granted(key):
    """Return when its present holder got the lock, as its znode says."""
    lock = inspection.look_at(key)
    return None if lock is None or not lock.holders else lock.holders[0].granted


def test_a_holder_that_had_waited_says_when_it_was_granted(zoo):
    """With `linger`, it may have got the lock inside its process; that keeps it for less time than `zoo` waits."""
    kinds = {"plain": {}, "lingers": {"linger": 1}, "kazoo": {"compat": "kazoo"}}
    locks = [zk_lock(key, timeout=20, **options) for key, options in kinds.items()]
    for lock in locks:
        lock.acquire()
    waiters = [Taker(zk_lock(key, timeout=20, **options)) for key, options in kinds.items()]
    time.sleep(2.5)
    grants = []
    for lock, waiter in zip(locks, waiters, strict=True):
        lock.release()
        waiter.wait_granted()
        grants.append(datetime.now(UTC))
    for key, at in zip(kinds, grants, strict=True):
        eventually(partial(was_granted, key, at))
    for waiter in waiters:
        waiter.go()


def was_granted(key, at):
    """Tell whether the znode has the time of the grant, and not that of the znode."""
    return abs((granted(key) or at - ACCURACY) - at) < ACCURACY


def test_a_short_hold_writes_nothing(zoo):
    """The time of the grant costs one write, which only a hold of a second pays."""
    began = clock.now()
    with zk_lock("k"):
        eventually(lambda: granted("k"))
        assert clock.now() - began >= 1


def test_the_time_of_the_grant_survives_a_lost_connection(zoo, proxy):
    lost = proxy.kill_before_op(SET_DATA)
    with zk_lock("k", abort_on="lost"):
        assert lost.wait(10)
        eventually(lambda: granted("k"))
