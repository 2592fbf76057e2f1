"""The minimum hold: no other contender gets the lock before its time is over, also if the process has ended."""

import functools
import threading

import pytest
from support.faults import BackgroundCall, acquire_once, connected, die, expire, results, within
from support.locking import as_json, zklock
from support.proxy import CREATE2, DELETE, GET_CHILDREN, MULTI, SYNC
from support.work import acquired, assert_refused, seen
from support.zoo import ROOM, eventually, guid_of, settle

from django_zklock import Lock, zk_lock
from django_zklock.core import clock
from django_zklock.core.queue.nodes import Payload
from django_zklock.core.queue.operator_hold import is_operator
from django_zklock.exceptions import LockBusy, LockLost, LockTimeout
from django_zklock.locks.hold import held_of
from django_zklock.operations import break_lock, end_hold

pytestmark = pytest.mark.usefixtures("no_rests")

LONG = 300.0


def rest(zoo, key="k"):
    """The one node in the queue that bounds a hold: its name and its stat."""
    (name,) = filter(is_operator, zoo.children(key))
    return name, zoo.client.exists(f"{zoo.base}/{key}/{name}")


def ends(zoo, key="k"):
    """When it ends, by the server's clock."""
    name, stat = rest(zoo, key)
    payload = Payload.decode(zoo.client.get(f"{zoo.base}/{key}/{name}")[0])
    assert payload is not None
    return float(stat.mtime / 1000 + float(payload.about["seconds"]))


def test_no_contender_is_granted_during_a_minimum_hold(zoo):
    with within(1), Lock("k", min_hold=LONG, what="nightly report") as hold:
        pass
    name, stat = rest(zoo)
    assert stat.ephemeralOwner == 0
    assert name[-10:] == hold.path[-10:]
    why = r"held by nightly report until .* UTC: held for at least 300 s"
    assert_refused(zk_lock("k", timeout=0, min_hold=LONG), LockBusy, why)
    assert_refused(zk_lock("k", timeout=1), LockTimeout, "held for at least 300 s")
    assert zk_lock("k").locked()
    die()
    assert_refused(zk_lock("k", timeout=0), LockBusy, why)
    eventually(lambda: zoo.children("k") == [name])  # who did not know the time had to enter the queue to learn it


@pytest.mark.parametrize("dead", [False, True], ids=["alive", "dead"])
def test_a_minimum_hold_ends_for_waiters_by_the_clock_of_the_server(zoo, dead):
    order = []
    stamps = []

    def acquire(number):
        with zk_lock("k", timeout=20) as hold:
            order.append(number)
            stamps.append(zoo.client.set(hold.path, b"x").mtime / 1000)

    def queue_three():
        waiters = []
        for number in range(3):
            waiters.append(BackgroundCall(functools.partial(acquire, number)))
            zoo.wait_contenders("k", number + 2)
        return waiters

    with zk_lock("k", min_hold=4):
        waiters = [] if dead else queue_three()
    if dead:
        die()
    end = ends(zoo)
    if dead:
        waiters = queue_three()
    assert order == []
    results(waiters)
    assert order == [0, 1, 2]
    assert end <= stamps[0] <= end + 1.5 + ROOM
    assert zoo.children("k") == []


def test_a_minimum_hold_needs_no_further_round_trip(zoo, proxy):
    """One acquires, and one transaction replaces the znode; or a delete, after the minimum hold. The rest is later."""
    zoo.client.ensure_path(f"{zoo.base}/k")
    with zk_lock("k", min_hold=0.05) as hold:
        eventually(lambda: clock.now() > held_of(hold).grant.since + 0.05)
        proxy.reset()
    settle()
    assert (proxy.counts[DELETE], proxy.counts[CREATE2]) == (1, 0)
    assert zoo.children("k") == []
    proxy.reset()
    acquire_once("k", min_hold=LONG)
    settle()
    counted = {opcode: proxy.counts[opcode] for opcode in (CREATE2, GET_CHILDREN, DELETE, MULTI, SYNC)}
    assert counted == {CREATE2: 1, GET_CHILDREN: 1, DELETE: 0, MULTI: 1, SYNC: 0}


def test_the_outermost_block_decides_the_minimum_hold(zoo):
    with zk_lock("k", min_hold=LONG), zk_lock("k"):
        pass
    assert rest(zoo)
    with zk_lock("j"), pytest.warns(UserWarning, match="min_hold of 'j' has no effect"), zk_lock("j", min_hold=LONG):
        pass
    assert zoo.children("j") == []


def test_a_block_that_raises_leaves_its_minimum_hold(zoo):
    """A job that has failed must not be started by another host right away."""
    with pytest.raises(ZeroDivisionError), zk_lock("k", min_hold=LONG):
        1 / 0  # noqa: B018
    assert rest(zoo)


def test_a_minimum_hold_is_shown_with_its_reason_and_can_be_ended(zoo):
    hold = acquire_once(Lock("k", min_hold=LONG, what="nightly report"))
    info = seen("k")
    assert info.operator is not None
    assert (info.operator.by, info.operator.reason) == ("nightly report", "held for at least 300 s")
    assert 0 <= LONG - info.operator.seconds < 60
    assert info.operator.token > hold.token
    assert as_json("show", "k")["holders"][0]["operator"]["reason"] == "held for at least 300 s"
    assert "held for at least 300 s" in zklock("list")
    end_hold("k", token=info.operator.token, by="anna")
    acquire_once("k", timeout=0)


def test_a_lost_lock_leaves_no_minimum_hold(zoo):
    """Its work may not have been done, so another host may start at once."""
    with pytest.raises(LockLost), zk_lock("k", min_hold=LONG) as hold:
        break_lock("k", guid=guid_of(hold.path), token=hold.token, reason="stuck", by="anna")
        threading.Event().wait(10)
    assert zoo.children("k") == []
    with pytest.raises(LockLost), zk_lock("k", min_hold=LONG):
        expire(zoo)
        threading.Event().wait(20)
    assert zoo.children("k") == []


@pytest.mark.parametrize("when", ["kill_before_op", "kill_after_op"])
def test_the_replacement_by_a_minimum_hold_survives_a_cut(zoo, proxy, when):
    lock = zk_lock("k", min_hold=3)
    hold = acquired(lock)
    waiter = BackgroundCall(lambda: acquire_once("k", timeout=20))
    zoo.wait_contenders("k", 2)
    end = held_of(hold).grant.since + 3
    fired = getattr(proxy, when)(MULTI)
    with within(1.5):
        lock.release()
    assert fired.wait(30)
    eventually(lambda: any(map(is_operator, zoo.children("k"))))
    assert held_of(waiter.result()).grant.since >= end - 0.1
    assert zoo.children("k") == []


@pytest.mark.parametrize("seconds", [LONG, 0.5])
def test_a_release_in_an_outage_leaves_the_rest_of_the_minimum_hold(zoo, proxy, seconds):
    lock = zk_lock("k", min_hold=seconds)
    hold = acquired(lock)
    proxy.go_away()
    with within(1.5):
        lock.release()
    assert zoo.children("k") == [hold.path.rpartition("/")[2]]
    eventually(lambda: seconds == LONG or clock.now() > held_of(hold).grant.since + seconds)
    proxy.heal()
    connected()
    eventually(lambda: [*map(is_operator, zoo.children("k"))] == ([True] if seconds == LONG else []))
