"""Tests may freeze or move the time with freezegun and time-machine. Waits, leases and sessions go on as usual."""

import threading

import freezegun
import pytest
import time_machine
from freezegun import freeze_time
from support.faults import acquire_once, proxied, session, within
from support.primitives import Taker
from support.signalled import signalled
from support.zoo import eventually

from django_zklock import zk_lock
from django_zklock.core import clock
from django_zklock.exceptions import LockLost, LockTimeout

freezegun.configure(extend_ignore_list=["kazoo"])  # as the docs say

NOON = "2020-02-29 12:00:00"
FREEZERS = {
    "freezegun": lambda: freeze_time(NOON),
    "freezegun, ticking": lambda: freeze_time(NOON, tick=True),
    "freezegun, an hour at each look": lambda: freeze_time(NOON, auto_tick_seconds=3600),
    "freezegun in 1970": lambda: freeze_time("1970-01-01"),
    "freezegun in 2100": lambda: freeze_time("2100-01-01"),
    "time-machine": lambda: time_machine.travel(NOON, tick=False),
}


def work_until(hold, condition):
    eventually(lambda: hold.lost or condition())
    hold.check()


@pytest.mark.parametrize("name", ["freezegun, an hour at each look", "time-machine"])
def test_locks_work_while_the_time_is_frozen(zoo, name):
    with FREEZERS[name](), zoo.configured():
        with zk_lock("k", abort_on="lost") as hold:
            other = Taker(zk_lock("k", timeout=20))
            zoo.wait_contenders("k", 2)
            until = session().leased_until
            work_until(hold, lambda: session().leased_until > until)
        other.finish()
        with zoo.hold_elsewhere("k"), within(1), pytest.raises(LockTimeout), zk_lock("k", timeout=0.2):
            pass


async def test_a_coroutine_needs_the_real_clock_of_asyncio(zoo):
    with freeze_time(NOON, real_asyncio=True):
        async with zk_lock("k") as hold:
            hold.check()
        with zoo.hold_elsewhere("k"), within(1), pytest.raises(LockTimeout):
            await zk_lock("k", timeout=0.2).__aenter__()


@freeze_time(NOON)
def test_a_silent_server_stops_the_work(zoo):
    with proxied(zoo, session_timeout=1) as proxy:
        with within(3), pytest.raises(LockLost), zk_lock("k", abort_on="suspended"):
            proxy.hang = True
            threading.Event().wait(20)
        proxy.hang = False


@pytest.mark.usefixtures("no_rests")
@freeze_time(NOON)
def test_bounds_of_a_hold_are_kept(zoo):
    with (
        signalled("lock_held_long") as sent,
        within(3),
        pytest.raises(LockLost, match="max_hold"),
        zk_lock("k", max_hold=0.4, warn_after=0.2),
    ):
        threading.Event().wait(20)
    assert eventually(lambda: sent.names) == ["lock_held_long"]
    began = clock.now()
    acquire_once("k", min_hold=0.5)
    with zk_lock("k", timeout=20):
        assert clock.now() - began >= 0.5
