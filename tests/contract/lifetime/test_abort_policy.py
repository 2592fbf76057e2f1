"""Which block says that its lock was lost, what the policies do about a loss, and what a hold tells of it."""

from __future__ import annotations

import asyncio
import threading

import pytest
from support.faults import BackgroundCall, due
from support.work import Reports, Run, acquired, compute, in_each_thread, lose
from support.zoo import Zoo, eventually

from django_zklock.conf.arguments import AbortOn
from django_zklock.exceptions import LockLost, LockLostInterrupt, LockNotHeld
from django_zklock.locks.hold import Hold
from django_zklock.locks.lock import Lock

REPEATED = 0.06  # seconds after which an abort would have been asked for again


@in_each_thread
@pytest.mark.parametrize(("which", "raiser"), [("outer", "outer"), ("inner", "inner"), ("both", "outer")])
def test_lock_lost_comes_from_the_block_of_the_lost_lock(zoo: Zoo, run: Run, which: str, raiser: str) -> None:
    raised: list[tuple[str, str | None]] = []

    def block() -> None:
        try:
            with Lock("outer") as outer:
                try:
                    with Lock("inner") as inner:
                        for hold in {"outer": [outer], "inner": [inner], "both": [outer, inner]}[which]:
                            lose(hold)
                        compute(20)
                except LockLost as error:
                    raised.append(("inner", error.lock))
                    outer.check()
        except LockLost as error:
            raised.append(("outer", error.lock))

    run(block)
    assert raised == [(raiser, raiser)]
    due(REPEATED)


@pytest.mark.parametrize(("which", "raiser"), [("outer", "outer"), ("inner", "inner"), ("both", "outer")])
async def test_lock_lost_comes_from_the_block_of_the_lost_lock_in_a_task(zoo: Zoo, which: str, raiser: str) -> None:
    raised: list[tuple[str, str | None]] = []
    try:
        async with Lock("outer") as outer:
            try:
                async with Lock("inner") as inner:
                    for hold in {"outer": [outer], "inner": [inner], "both": [outer, inner]}[which]:
                        lose(hold)
                    await asyncio.sleep(20)
            except LockLost as error:
                raised.append(("inner", error.lock))
    except LockLost as error:
        raised.append(("outer", error.lock))
    assert raised == [(raiser, raiser)]
    await asyncio.to_thread(due, REPEATED)


@pytest.mark.parametrize("which", ["outer", "both"])
async def test_a_task_is_stopped_once_for_a_lock_it_holds_twice(zoo: Zoo, which: str, reports: Reports) -> None:
    lock = Lock("same")
    with pytest.raises(LockLost):
        async with lock as hold, lock if which == "both" else Lock("other"):
            lose(hold)
            await asyncio.sleep(20)
    await asyncio.to_thread(due, REPEATED)
    assert len(reports) == 1
    assert reports[0]["receipt"].delivered


async def test_a_real_cancellation_is_not_mistaken_for_an_abort(zoo: Zoo) -> None:
    async def work(lost: bool) -> None:
        async with Lock("cancelled") as hold:
            if lost:
                lose(hold)
                await asyncio.to_thread(hold.wait_lost, 5)
            await asyncio.sleep(20)

    task = asyncio.create_task(work(False))
    await asyncio.to_thread(zoo.wait_contenders, "cancelled", 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(LockLost):
        await work(True)


@pytest.mark.parametrize(("abort_on", "raises"), [("never", False), ("lost", True), ("suspended", True)])
def test_abort_on_never_lets_the_work_continue(zoo: Zoo, reports: Reports, abort_on: AbortOn, raises: bool) -> None:
    ended = False
    try:
        with Lock("policy", abort_on=abort_on) as hold:
            lose(hold)
            eventually(lambda: hold.lost)
            compute(20) if raises else due(REPEATED)
            with pytest.raises(LockLost):
                hold.check()
            ended = True
    except LockLost:
        assert raises
    assert ended is not raises
    (report,) = eventually(lambda: list(reports))
    assert (report["receipt"] is None) is not raises


def test_an_error_of_the_body_is_not_masked(zoo: Zoo) -> None:
    with pytest.raises(KeyError), Lock("body", abort_on="never") as hold:
        lose(hold)
        eventually(lambda: hold.lost)
        raise KeyError
    with pytest.raises(KeyError), Lock("body") as hold:
        try:
            lose(hold)
            compute(20)
        except LockLostInterrupt:
            raise KeyError from None


def test_all_members_of_a_hold_agree_about_its_loss(zoo: Zoo) -> None:
    lock = Lock("tells")
    hold = acquired(lock)
    reported: list[Hold] = []
    hold.add_lost_callback(reported.append)
    hold.check()
    assert hold.lost is False
    assert hold.wait_lost(0.01) is False
    assert 0.5 < hold.lease_remaining <= 4
    waiting = threading.Thread(target=lambda: reported.append(hold) if hold.wait_lost() else None)
    waiting.start()
    zoo.client.delete(hold.path)
    assert hold.wait_lost(20)
    waiting.join(20)
    hold.add_lost_callback(reported.append)
    eventually(lambda: reported == [hold] * 3)
    with pytest.raises(LockLost):
        hold.check()
    with pytest.raises(LockLost):
        lock.acquire()
    assert bool(hold.lost)
    assert hold.lease_remaining == 0
    with pytest.raises(LockLost):
        lock.release()
    with pytest.raises(LockNotHeld):
        hold.check()
    fresh = acquired(lock)
    assert fresh.token > hold.token
    lock.release()


def test_wait_lost_returns_when_the_hold_is_released(zoo: Zoo) -> None:
    """A released lock is never lost any more, so a thread that watches over it would stay for ever."""
    lock = Lock("watched")
    hold = acquired(lock)
    watcher = BackgroundCall(hold.wait_lost)
    eventually(lambda: hold._held.grant.has_observer_of(object))
    lock.release()
    assert watcher.result(20) is False
    assert BackgroundCall(hold.wait_lost).result(20) is False
