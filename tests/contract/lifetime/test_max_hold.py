"""A hold that lasts too long ends, and its work with it; before that, somebody is warned."""

import logging
import threading
import time

import pytest
from support.faults import BackgroundCall, acquire_once, results, within
from support.signalled import signalled
from support.work import acquired, compute, in_each_thread, sleep_in_pieces
from support.zoo import ROOM, eventually

from django_zklock import zk_lock
from django_zklock.exceptions import LockLost
from django_zklock.locks.hold import held_of

pytestmark = pytest.mark.timed

REASON = "it was held for longer than max_hold, 0.3 s"


@pytest.fixture
def sent():
    with signalled("lock_held_long", "lock_lost", "lock_released") as sent:
        yield sent


def test_a_lease_ends_with_max_hold_at_the_latest(zoo):
    with zk_lock("k", max_hold=2) as short, zk_lock("long", max_hold=60) as long:
        assert short.lease_remaining <= 2 < long.lease_remaining <= 8


@pytest.mark.parametrize("abort_on", ["suspended", "never"])
@in_each_thread
def test_max_hold_stops_the_work_with_its_reason(zoo, run, abort_on, sent):
    def work():
        lock = zk_lock("k", max_hold=0.3, warn_after=60, abort_on=abort_on)
        with within(3), pytest.raises(LockLost, match=f"'k' was lost: {REASON}"), lock:
            compute(20)

    run(work)
    eventually(lambda: sent)
    ((name, kwargs),) = sent
    assert (name, kwargs["reason"]) == ("lock_lost", REASON)
    assert kwargs["receipt"].delivered
    acquire_once("k", timeout=20)


@pytest.mark.parametrize("acquired", [False, True], ids=["block", "block under an acquired hold"])
def test_max_hold_grants_the_next_waiter_after_the_work_has_stopped(zoo, acquired):
    events = []
    lock = zk_lock("k", max_hold=1.0)
    held = threading.Event()

    def wait():
        held.wait(30)
        with zk_lock("k", timeout=20):
            events.append("next")

    waiter = BackgroundCall(wait)
    hold = lock.acquire() if acquired else None
    with pytest.raises(LockLost, match="max_hold"), lock:
        try:
            held.set()
            sleep_in_pieces(20)
        finally:
            time.sleep(0.5)
            events.append("stopped")
    waiter.result()
    assert events == ["stopped", "next"]
    if hold:
        assert hold.lost
        with pytest.raises(LockLost, match="max_hold"):
            lock.release()


def test_max_hold_counts_from_the_first_grant(zoo):
    with pytest.raises(LockLost, match=REASON), zk_lock("k", max_hold=0.3):
        while True:
            with zk_lock("k", max_hold=50):
                compute(0.02)


def test_max_hold_does_not_count_the_wait(zoo):
    with zoo.hold_elsewhere("k"):
        waiter = BackgroundCall(lambda: acquire_once("k", max_hold=1, timeout=10))
        zoo.wait_contenders("k", 2)
        time.sleep(1.2)
    waiter.result()


@pytest.mark.parametrize("times", [1, 2])
def test_max_hold_ends_a_hold_without_a_block_at_once(zoo, times):
    lock = zk_lock("k", max_hold=0.3)
    holds = [lock.acquire() for _ in range(times)]
    BackgroundCall(lambda: acquire_once("k", timeout=5)).result()
    for hold in reversed(holds):
        assert hold
        with pytest.raises(LockLost, match=REASON):
            hold.check()
        with pytest.raises(LockLost, match=REASON):
            lock.release()
    assert lock.acquire()
    lock.release()


@pytest.mark.parametrize("linger", [0, 60])
def test_a_paused_process_learns_of_max_hold_by_the_clock(zoo, linger):
    lock = zk_lock("k", max_hold=30, abort_on="lost", linger=linger)
    hold = acquired(lock)
    hold.check()
    assert held_of(hold).grant.ends_at is not None
    held_of(hold).grant.ends_at -= 30
    with pytest.raises(LockLost, match="max_hold, 30 s"):
        hold.check()
    assert hold.lost
    with pytest.raises(LockLost, match="max_hold, 30 s"):
        lock.release()
    zoo.wait_contenders("k", 0)  # it does not linger


def test_a_release_before_max_hold_cancels_it(zoo, sent):
    for _ in range(20):
        acquire_once("k", max_hold=2.0, warn_after=1.9)
    with zk_lock("later", warn_after=2.1):
        eventually(lambda: "lock_held_long" in sent.names)
    eventually(lambda: len(sent) == 22)
    assert sent.names == ["lock_released"] * 20 + ["lock_held_long", "lock_released"]


def test_a_hold_longer_than_warn_after_is_reported_once(zoo, sent, caplog):
    with caplog.at_level(logging.WARNING, "django_zklock.locks"):
        with zk_lock("k", warn_after=0.2) as hold:
            eventually(lambda: sent)
            with pytest.warns(UserWarning, match="warn_after of 'k' has no effect"), zk_lock("k", warn_after=0.1):
                time.sleep(0.5)
        eventually(lambda: len(sent) == 2)
    (name, kwargs), (last, _) = sent
    assert (name, kwargs["lock"], kwargs["hold"], last) == ("lock_held_long", "k", hold, "lock_released")
    assert 0.2 <= kwargs["held"] < 5 + ROOM
    (record,) = caplog.records
    assert f"lock 'k' (token {hold.token}) has been held for" in record.getMessage()
    assert "warn_after, 0.2 s" in record.getMessage()


def test_one_timer_warns_and_ends_many_holds_in_time(zoo, sent):
    spans = [0.9, 0.3, 0.6, 1.2]
    ready = threading.Barrier(len(spans))
    held = {}

    def work(span):
        ready.wait(20)
        with pytest.raises(LockLost), zk_lock(f"k/{span}", max_hold=span, warn_after=span / 2) as hold:
            sleep_in_pieces(20)
        held[span] = time.monotonic() - held_of(hold).grant.since

    workers = [BackgroundCall(lambda span=span: work(span)) for span in spans]
    results(workers)
    assert all(span <= held[span] < span + 1 + ROOM for span in spans)
    eventually(lambda: len(sent) == 8)
    assert sorted(kwargs["lock"] for name, kwargs in sent if name == "lock_held_long") == [
        f"k/{span}" for span in sorted(spans)
    ]
