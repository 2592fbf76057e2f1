"""Work under a lost lock is stopped as its policy says, and the block tells it. Code after the block is left alone."""

import asyncio
import random
import sys
import threading
import time

import pytest
from support.faults import due, within
from support.work import blocks_of, compute, in_each_thread, lose, lose_later, run_in_thread, sleep_in_pieces
from support.zoo import ROOM, eventually

from django_zklock.exceptions import LockLost, LockLostInterrupt
from django_zklock.locks.hold import Hold, held_of
from django_zklock.locks.lock import Lock

REPEATED = 0.06  # seconds after which an abort would have been asked for again


@pytest.mark.parametrize(
    ("run", "work", "how"),
    [
        (lambda call: call(), time.sleep, "signal"),
        (lambda call: call(), compute, "signal"),
        (run_in_thread, compute, "thread"),
        (run_in_thread, sleep_in_pieces, "thread"),
    ],
    ids=["main thread sleeps", "main thread computes", "thread computes", "thread sleeps"],
)
def test_the_delete_of_its_znode_stops_the_work(zoo, reports, run, work, how):
    seen = []

    def block():
        with Lock("deleted") as hold:
            threading.Timer(0.3, zoo.client.delete, [hold.path]).start()
            try:
                work(20)
            except BaseException as error:
                seen.append(error)
                raise

    with within(1.3), pytest.raises(LockLost, match="deleted") as caught:
        run(block)
    assert caught.value.lock == "deleted"
    assert [type(error) for error in seen] == [LockLostInterrupt]
    (report,) = eventually(lambda: list(reports))
    assert report["lock"] == "deleted"
    assert isinstance(report["hold"], Hold)
    receipt = report["receipt"]
    assert receipt.reason == report["reason"]
    assert (receipt.how, receipt.delivered, receipt.swallowed) == (how, True, False)
    assert 0 <= receipt.stopped_after < 1 + ROOM


@in_each_thread
def test_an_abort_at_the_end_of_the_block_interrupts_no_later_code(zoo, run):
    shared = Lock("edge")
    stray = []
    outcomes = []

    def sweep():
        for count in range(100):
            moment = random.uniform(0, 0.002)
            length = random.uniform(0, 0.002)
            lost = False
            try:
                with shared as hold:
                    lose_later(hold, moment)
                    entered = time.monotonic()
                    if count % 2:
                        while time.monotonic() - entered < length and not held_of(hold).grant.lost_reason:
                            pass
                    else:
                        time.sleep(length)
            except LockLost:
                lost = True
            except BaseException as error:
                stray.append(error)
            outcomes.append(lost)
            try:
                end = time.monotonic() + 0.003
                while time.monotonic() < end:
                    list(range(10))
            except BaseException as error:
                stray.append(error)
            assert not blocks_of(shared)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # threads take turns at each step, as on a busy machine
    try:
        run(sweep)
    finally:
        sys.setswitchinterval(interval)
    assert stray == []
    assert any(outcomes)
    assert not all(outcomes)


async def test_an_abort_at_the_end_of_the_block_cancels_no_later_code(zoo):
    lock = Lock("edge")
    outcomes = []
    for _ in range(80):
        try:
            async with lock as hold:
                lose_later(hold, random.uniform(0, 0.002))
                await asyncio.sleep(random.uniform(0, 0.002))
        except LockLost:
            outcomes.append(True)
        else:
            outcomes.append(False)
        await asyncio.sleep(0.001)
        await asyncio.sleep(0)
    assert any(outcomes)
    assert not all(outcomes)


@in_each_thread
@pytest.mark.parametrize(("which", "raiser"), [("outer", "outer"), ("inner", "inner"), ("both", "outer")])
def test_lock_lost_comes_from_the_block_of_the_lost_lock(zoo, run, which, raiser):
    raised = []

    def block():
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
async def test_lock_lost_comes_from_the_block_of_the_lost_lock_in_a_task(zoo, which, raiser):
    raised = []
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
async def test_a_task_is_stopped_once_for_a_lock_it_holds_twice(zoo, which, reports):
    lock = Lock("same")
    with pytest.raises(LockLost):
        async with lock as hold, lock if which == "both" else Lock("other"):
            lose(hold)
            await asyncio.sleep(20)
    await asyncio.to_thread(due, REPEATED)
    assert len(reports) == 1
    assert reports[0]["receipt"].delivered


async def test_a_real_cancellation_is_not_mistaken_for_an_abort(zoo):
    async def work(lost):
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
def test_abort_on_never_lets_the_work_continue(zoo, reports, abort_on, raises):
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


def test_an_error_of_the_body_is_not_masked(zoo):
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
