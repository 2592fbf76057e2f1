"""Django's signals tell what happened, in order, and no receiver can hold anything up."""

import asyncio
import threading
import time
from contextlib import ExitStack

import pytest
from support.faults import BackgroundCall, acquire_once, within
from support.signalled import received, signalled
from support.work import acquired
from support.zoo import ROOM, eventually

from django_zklock import signals, zk_lock, zk_locks
from django_zklock.core.zk import process
from django_zklock.exceptions import LockLost, LockTimeout
from django_zklock.locks.hold import held_of
from django_zklock.locks.lock import Lock

NAMES = ("lock_acquired", "lock_released", "lock_lost", "lock_failed")


@pytest.fixture
def log(zoo):
    with signalled("lock_released") as before:
        acquire_once(Lock("warm/up"))
        eventually(lambda: len(before) == 1)
    with signalled(*NAMES) as sent:
        yield sent


def test_signals_report_one_grant_and_one_release_whatever_the_reentrancy(log):
    lock = Lock("item/{pk}", fields={"pk": 7})
    with lock as hold, lock:
        time.sleep(0.01)
    eventually(lambda: len(log) >= 2)
    (first, acquired), (second, released) = log
    assert (first, second) == ("lock_acquired", "lock_released")
    for kwargs in (acquired, released):
        assert kwargs["sender"] is Lock
        assert kwargs["lock"] == "item/7"
        assert kwargs["hold"] == hold
        assert kwargs["thread"].startswith("zklock-signals")
    assert 0 < acquired["waited"] < 5 + ROOM
    assert 0.01 <= released["held"] < 5 + ROOM


def test_the_waited_time_in_signals_counts_from_the_call(zoo, log, monkeypatch):
    """A process may have to begin its session before the first request, and that time counts."""

    def begin(plain=process.current):
        time.sleep(0.1)
        return plain()

    monkeypatch.setattr(process, "current", begin)
    with Lock("item/7"), pytest.raises(LockTimeout):
        BackgroundCall(lambda: Lock("item/7", timeout=0.25).__enter__()).result()
    eventually(lambda: len(log) == 3)
    waited = {name: kwargs["waited"] for name, kwargs in log if "waited" in kwargs}
    assert waited["lock_acquired"] >= 0.1
    assert waited["lock_failed"] >= 0.25


def test_a_signal_reports_each_failed_acquisition(zoo):
    """A call that was interrupted, too, with what was ahead; the error itself would keep the caller's frames alive."""

    async def waits():
        async with zk_locks(zk_lock("item/{pk}", fields={"pk": 7}, kind="write"), "item/8", "item/9", timeout=30):
            pass

    async def cancelled():
        waiting = asyncio.create_task(waits())
        await asyncio.to_thread(zoo.wait_contenders, "item/7", 2)
        await asyncio.to_thread(eventually, lambda: "lock_waiting" in sent.names)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    with signalled("lock_failed", "lock_waiting") as sent, Lock("item/7"):
        BackgroundCall(lambda: asyncio.run(cancelled())).result()
        with pytest.raises(LockTimeout):
            BackgroundCall(lambda: Lock("item/7", timeout=0.1).__enter__()).result()
        eventually(lambda: sent.names.count("lock_failed") == 2)
    first, second = (kwargs for name, kwargs in sent if name == "lock_failed")
    assert (first["error"], second["error"]) == (asyncio.CancelledError, LockTimeout)
    assert (first["lock"], first["template"], first["kind"]) == ("item/7", "item/{pk}", "write")
    assert "was not free" in second["reason"]
    assert 0.05 <= second["waited"] < 30


@pytest.mark.parametrize("name", NAMES[:2])
def test_a_signal_needs_no_receiver_of_another_one(zoo, name):
    with signalled(name) as sent:
        acquire_once(Lock("item/7"))
        assert eventually(lambda: sent.names) == [name]


def test_a_signal_reports_a_loss_and_no_release(log):
    with pytest.raises(LockLost), Lock("block") as hold, Lock("block"):
        held_of(hold).grant.session.post(held_of(hold).grant.lose, "taken away")
        time.sleep(20)
    kept = Lock("kept")
    other = acquired(kept)
    held_of(other).grant.session.post(held_of(other).grant.lose, "taken away")
    eventually(lambda: log.names.count("lock_lost") == 2)
    with pytest.raises(LockLost):
        kept.release()
    acquire_once(Lock("after"))
    eventually(lambda: log.names[-1] == "lock_released")
    assert log.names == ["lock_acquired", "lock_lost", "lock_acquired", "lock_lost", "lock_acquired", "lock_released"]
    first, second = (kwargs for name, kwargs in log if name == "lock_lost")
    assert first["reason"] == second["reason"] == "taken away"
    assert first["hold"] == hold
    assert first["receipt"].how == "signal"
    assert second["receipt"] is None


def test_the_signal_of_a_loss_comes_at_the_end_of_the_block(log):
    """A hold that has a block is told of at the block's end, when it is known what became of the work."""
    lock = Lock("around")
    lock.acquire()
    with pytest.raises(LockLost), lock as hold:
        held_of(hold).grant.session.post(held_of(hold).grant.lose, "taken away")
        time.sleep(20)
    with pytest.raises(LockLost):
        lock.release()
    eventually(lambda: log.names == ["lock_acquired", "lock_lost"])
    assert log[-1][1]["receipt"].delivered


def test_a_receiver_that_fails_or_is_slow_delays_nothing(log):
    gate = threading.Event()

    def slow(**kwargs):
        gate.wait(20)

    def failing(**kwargs):
        raise RuntimeError("a receiver's own trouble")

    with received(signals.lock_acquired, failing), received(signals.lock_acquired, slow), ExitStack() as stack:
        stack.callback(gate.set)
        with within(2):
            for _ in range(5):
                acquire_once(Lock("slow"))
            with pytest.raises(LockLost), Lock("slow") as hold:
                held_of(hold).grant.session.post(held_of(hold).grant.lose, "taken away")
                time.sleep(20)
        assert "lock_released" not in log.names
    eventually(lambda: log.names.count("lock_released") == 5 and "lock_lost" in log.names)


def test_a_receiver_may_take_locks_itself(log):
    holds = []

    def receiver(lock, **kwargs):
        if lock == "first":
            with Lock("second") as hold:
                holds.append(hold)

    with received(signals.lock_acquired, receiver), Lock("first"):
        eventually(lambda: holds)
    eventually(lambda: log.names.count("lock_released") == 2)
