"""A hold is trusted while its lease lasts, and not a moment longer."""

import contextlib
import threading

import pytest
from support.faults import BackgroundCall, acquire_once, cut, due, expire, lose, session, within
from support.proxy import MULTI, PING
from support.work import acquired
from support.zoo import ROOM, eventually

from django_zklock import zk_lock
from django_zklock.core import clock
from django_zklock.core.protocol import contender
from django_zklock.core.protocol.registry import Registry
from django_zklock.core.zk import heartbeat
from django_zklock.core.zk.lease import LEASE_SHARE
from django_zklock.exceptions import LockLost, LockNotHeld, ZooKeeperUnavailable
from django_zklock.locks.hold import held_of

pytestmark = pytest.mark.timed

TIMEOUT = 4.0  # seconds, of the sessions that are `SHORT`
SHORT = pytest.mark.parametrize("proxy", [TIMEOUT], indirect=True)  # for tests that wait for the end of a lease
LEASE = LEASE_SHARE * TIMEOUT
LATER = ROOM


def token_of(zoo, hold):
    stat = zoo.client.exists(hold.path)
    return int(stat.czxid) if stat else None


def test_the_state_of_a_hold_follows_the_connection(zoo, proxy):
    lock = zk_lock("a", abort_on="lost")
    assert not lock.owned()
    with lock as hold:
        assert hold.state == "held"
        assert lock.owned()
        proxy.hang = True
        eventually(lambda: hold.state == "suspect")
        proxy.hang = False
        eventually(lambda: hold.state == "held")
    assert hold.state == "released"
    assert not lock.owned()
    with pytest.raises(LockLost), lock as hold:
        held_of(hold).grant.session.post(held_of(hold).grant.lose, "test")
        eventually(lambda: hold.state == "lost")


def test_without_grace_a_suspended_hold_is_not_trusted_until_a_quorum_confirms_it(zoo, proxy):
    lock = zk_lock("a", grace=0)
    hold = acquired(lock)
    hold.check()
    proxy.go_away()
    eventually(lambda: session().suspect)
    session().post(session().extend_lease, clock.now())  # a reply that comes after the end of the connection
    due(0)
    with pytest.raises(LockLost, match="connection"):
        hold.check()
    assert not hold.lost
    proxy.heal()
    eventually(lambda: not session().suspect)
    hold.check()
    assert token_of(zoo, hold) == hold.token
    proxy.go_away()
    eventually(lambda: session().suspect)
    with pytest.raises(LockLost, match="connection"), lock:  # so work that begins now is stopped
        threading.Event().wait(10)
    with pytest.raises(LockLost):
        lock.release()


def test_the_strictest_grace_of_all_that_an_owner_has_acquired_counts(zoo, proxy):
    with zk_lock("a", abort_on="never") as outer:
        inner = acquired(zk_lock("a", grace=0))
        proxy.go_away()
        eventually(lambda: outer.state == "suspect")
        with pytest.raises(LockLost):
            inner.check()
        proxy.heal()
        eventually(lambda: outer.state == "held")
        inner.release()


def test_without_grace_work_is_stopped_when_the_connection_is_suspended(zoo, proxy):
    lose(zk_lock("a", grace=0), lambda hold: proxy.cut_all(), 1)


@pytest.mark.parametrize("options", [{}, {"abort_on": "lost", "grace": 0}, {"grace": 2}], ids=str)
def test_a_suspension_within_the_grace_stops_nothing(zoo, proxy, options):
    """By default, that is a suspension within the lease."""
    with zk_lock("a", **options) as hold:
        for _ in range(3):
            cut(proxy)
            hold.check()
        due(2)
        hold.check()
        assert token_of(zoo, hold) == hold.token


def test_a_suspension_past_the_grace_stops_the_work(zoo, proxy):
    hold, why = lose(zk_lock("a", grace=0.4), lambda hold: proxy.go_away(), 0.4 + LATER)
    assert hold.lost
    assert "lease" not in why


def test_the_grace_counts_from_the_suspension_for_work_that_begins_later(zoo, proxy):
    with zk_lock("a", abort_on="never") as hold:
        proxy.go_away()
        eventually(lambda: hold.state == "suspect")
        due(0.4)
        hold.check()
        with pytest.raises(LockLost, match="connection"), within(0.1), zk_lock("a", grace=0.4):
            threading.Event().wait(10)
        assert hold.lost
        proxy.heal()


@SHORT
@pytest.mark.parametrize("options", [{}, {"abort_on": "lost"}, {"grace": 60}], ids=str)
def test_a_hold_is_lost_during_the_outage(zoo, proxy, options):
    def go_away(hold):
        proxy.go_away()
        eventually(lambda: hold.state == "suspect")
        hold.check()
        ends.append(session().leased_until)

    ends = []
    lock = zk_lock("a", timeout=10, **options)
    hold, why = lose(lock, go_away, LEASE + LATER)
    assert ends[0] <= clock.now()
    assert "lease" in why
    assert not session().connected
    proxy.heal()
    with lock as again:
        again.check()
        assert again.token > hold.token
        assert hold.lost


@SHORT
@pytest.mark.parametrize("direction", ["drop_requests", "drop_replies"])
def test_a_half_open_connection_extends_no_lease(zoo, proxy, direction):
    """Only acknowledged writes extend the lease, not those that were sent or carried out."""

    def half_open(hold):
        proxy.wait_for(lambda: proxy.counts[MULTI])
        setattr(proxy, direction, True)

    lose(zk_lock("a", abort_on="lost"), half_open, LEASE + LATER)


@SHORT
@pytest.mark.parametrize("direction", ["drop_requests", "drop_replies"])
def test_a_process_that_only_waits_notices_a_half_open_connection(zoo, proxy, direction):
    """By its pings, before the session expires. So the waiter keeps its place in the queue."""
    with zoo.hold_elsewhere("a"):
        waiter = BackgroundCall(lambda: acquire_once("a", timeout=20))
        mine = zoo.wait_contenders("a", 2)[1]
        proxy.wait_for(lambda: proxy.counts[PING])  # until then it was in contact
        before = proxy.connected
        setattr(proxy, direction, True)
        proxy.wait_for(lambda: proxy.connected > before, 2 / 3 * TIMEOUT + LATER)
        proxy.heal()
        eventually(lambda: session().connected)
    assert waiter.result().path.rpartition("/")[2] == mine


@SHORT
def test_a_busy_process_notices_that_replies_are_missing(zoo, proxy):
    """Each request restarts kazoo's own timer, so kazoo would never notice on a busy connection."""
    before = proxy.connected

    def work():
        with zk_lock("a", abort_on="lost"), within(LEASE + LATER):
            proxy.drop_replies = True
            while True:
                with contextlib.suppress(ZooKeeperUnavailable):
                    zk_lock("b").acquire(blocking=False)

    with pytest.raises(LockLost):
        work()
    proxy.wait_for(lambda: proxy.connected > before, LATER)


def test_a_hold_is_lost_at_once_when_its_session_expires(zoo, proxy):
    hold, why = lose(zk_lock("a", abort_on="lost"), lambda hold: expire(zoo), LEASE)
    assert "session" in why
    with zk_lock("a", timeout=30) as again:
        assert again.token > hold.token


def test_a_waiter_times_out_in_time_although_its_session_expired(zoo, proxy):
    with zoo.hold_elsewhere("a"):
        waiter = BackgroundCall(lambda: zk_lock("a").acquire(timeout=4))
        zoo.wait_contenders("a", 2)
        expire(zoo)
        assert waiter.result() is None
        assert 4 <= waiter.took <= 5 + LATER


@SHORT
def test_a_waiter_outlives_the_end_of_the_lease(zoo, proxy, caplog):
    """A process that only waits lets its lease end in silence. A late grant comes with a new lease."""

    def remaining():
        with zk_lock("a", timeout=20) as hold:
            hold.check()
            return hold.lease_remaining

    with zoo.hold_elsewhere("a"):
        waiter = BackgroundCall(remaining)
        zoo.wait_contenders("a", 2)
        eventually(lambda: 0 < session().lease.until < clock.now())
        assert not session().suspect
        assert not [record for record in caplog.records if record.name.startswith("django_zklock")]
    assert waiter.result() > 0


def test_all_members_of_a_hold_agree_about_its_loss(zoo):
    lock = zk_lock("tells")
    hold = acquired(lock)
    reported = []
    hold.add_lost_callback(reported.append)
    hold.check()
    assert hold.lost is False
    assert hold.wait_lost(0.01) is False
    assert 0.5 < hold.lease_remaining <= 8
    waiting = BackgroundCall(lambda: reported.append(hold) if hold.wait_lost() else None)
    zoo.client.delete(hold.path)
    assert hold.wait_lost(20)
    waiting.result()
    hold.add_lost_callback(reported.append)
    eventually(lambda: reported == [hold] * 3)
    with pytest.raises(LockLost):
        hold.check()
    assert bool(hold.lost)
    assert hold.lease_remaining == 0
    with pytest.raises(LockLost):
        lock.release()
    with pytest.raises(LockNotHeld):
        hold.check()


def test_one_heartbeat_finds_all_holds_whose_znodes_are_gone(zoo, monkeypatch):
    monkeypatch.setattr(contender, "WATCH_SELF_AFTER", 60.0)
    monkeypatch.setattr(heartbeat, "BEAT_SHARE", 60.0)
    locks = [zk_lock(key) for key in "ab"]
    holds = [acquired(lock) for lock in locks]
    for hold in holds:
        zoo.client.delete(hold.path)
    session().post(session().attached(Registry).heartbeat.beat)
    eventually(lambda: all(hold.lost for hold in holds))
    for lock in locks:
        with pytest.raises(LockLost, match="deleted"):
            lock.release()


def test_wait_lost_returns_when_the_hold_is_released(zoo):
    """A released lock is never lost any more, so a thread that watches over it would stay for ever."""
    lock = zk_lock("watched")
    hold = acquired(lock)
    watcher = BackgroundCall(hold.wait_lost)
    eventually(lambda: held_of(hold).grant._observers)
    lock.release()
    assert watcher.result(20) is False
    assert BackgroundCall(hold.wait_lost).result(20) is False
