"""The clock of ZooKeeper's leader ends an operator hold, and no other clock."""

import time

import pytest
from support.faults import BackgroundCall, acquire_once, within
from support.work import assert_refused
from support.zoo import eventually

from django_zklock import zk_lock
from django_zklock.core.zk import process
from django_zklock.exceptions import LockBusy, LockTimeout
from django_zklock.operations import hold_lock
from django_zklock.testing.server import database

WHY = {"reason": "the machine is on fire", "by": "anna"}
LONG = 600.0
ON_DEV_SERVER = pytest.mark.parametrize("server", ["dev"], indirect=True)  # the real one has the machine's clock


@pytest.mark.parametrize("server", ["real"], indirect=True)
def test_a_local_clock_that_jumps_ends_no_hold(zoo, monkeypatch):
    hold = hold_lock("k", seconds=LONG, **WHY)
    real_time = time.time
    for jump in (1e6, -1e6):
        monkeypatch.setattr(time, "time", lambda jump=jump: real_time() + jump)
        assert_refused(zk_lock("k", timeout=0), LockBusy, "operator anna")
        assert_refused(zk_lock("k", timeout=0.2), LockTimeout)
    monkeypatch.undo()
    eventually(lambda: zoo.children("k") == [hold.path.rpartition("/")[2]])  # those that gave up may be leaving still
    zoo.client.delete(hold.path)


@pytest.fixture
def jump(monkeypatch):
    right = database._EPOCH
    return lambda seconds: monkeypatch.setattr(database, "_EPOCH", right + seconds)


@ON_DEV_SERVER
def test_the_clock_of_the_server_ends_a_hold(zoo, jump):
    hold_lock("k", seconds=LONG, **WHY)
    process.reset()
    jump(LONG - 5)
    assert_refused(zk_lock("k", timeout=0), LockBusy)
    jump(LONG + 5)
    acquire_once("k", timeout=20)


@ON_DEV_SERVER
def test_a_server_clock_that_jumps_back_ends_no_hold_early(zoo, jump):
    hold = hold_lock("k", seconds=1.5, **WHY)
    jump(-LONG)
    assert_refused(zk_lock("k", timeout=2.5), LockTimeout)
    assert zoo.client.exists(hold.path)
    jump(0)
    with within(2), zk_lock("k", timeout=30):
        pass


@ON_DEV_SERVER
def test_a_waiter_asks_the_server_for_the_time_first(zoo, jump):
    """The time that it has counted itself is a reason to ask, and no proof."""
    hold = hold_lock("k", seconds=4.0, **WHY)
    process.reset()
    waiter = BackgroundCall(lambda: acquire_once("k", timeout=5.5))
    zoo.wait_contenders("k", 2)
    jump(-LONG)
    with pytest.raises(LockTimeout, match="operator anna"):
        waiter.result()
    assert zoo.client.exists(hold.path)
    jump(LONG)
    acquire_once("k", timeout=20)
