"""Each kind of lock keeps the same promises: who is let in, in which order, for how long, and what is left."""

import asyncio
import threading
import time

import pytest
from kazoo.exceptions import NoNodeError, NotEmptyError
from support.faults import BackgroundCall, acquire_once, connected, has_watches, results, within
from support.primitives import KEY, MANY, Taker, queued, watched
from support.work import assert_refused, blocks_of, guards
from support.zoo import eventually

from django_zklock.exceptions import LockBusy, LockLost, LockNotHeld, LockTimeout

MOST = 6  # threads, or tasks


def test_as_many_owners_hold_it_as_its_kind_allows(zoo, primitive):
    with queued(zoo, *(primitive.lock() for _ in range(primitive.room))) as takers:
        holds = [taker.wait_granted() for taker in takers]
        assert {hold.kind for hold in holds} == {primitive.kind}
        for hold in holds:
            hold.check()
        other_side = {"kind": "write"} if primitive.name.endswith("read") else {}
        assert_refused(primitive.lock(timeout=0, **other_side), LockBusy)
        assert len(zoo.children(KEY)) == primitive.room


def test_no_more_threads_hold_it_than_its_kind_allows(zoo, primitive):
    inside, counts = list[int](), list[int]()
    lock = primitive.lock(timeout=30)

    def work():
        for _ in range(4):
            with lock, lock:
                inside.append(1)
                counts.append(len(inside))
                time.sleep(0.001)
                inside.pop()

    results([BackgroundCall(work) for _ in range(MOST)], 30)
    assert 1 <= max(counts) <= (primitive.room if primitive.room < MANY else MOST)
    assert not blocks_of(lock)
    assert not guards()


async def test_no_more_coroutines_hold_it_than_its_kind_allows(zoo, primitive):
    inside, counts = list[int](), list[int]()
    lock = primitive.lock(timeout=30)

    async def work():
        for _ in range(4):
            async with lock, lock:
                inside.append(1)
                counts.append(len(inside))
                await asyncio.sleep(0.001)
                inside.pop()

    await asyncio.gather(*(work() for _ in range(MOST)))
    assert 1 <= max(counts) <= (primitive.room if primitive.room < MANY else MOST)
    assert not blocks_of(lock)


def test_waiters_are_granted_in_the_order_of_the_queue(zoo, primitive):
    with primitive.full(zoo) as blockers, queued(zoo, *(primitive.lock(timeout=30) for _ in range(5))) as takers:
        for path in blockers:
            zoo.client.delete(path)
        for index, taker in enumerate(takers):
            taker.wait_granted()
            assert not any(taker.granted.is_set() for taker in takers[index + primitive.room :])
            taker.go()


def test_a_wait_that_times_out_leaves_no_contender(zoo, primitive):
    with primitive.full(zoo) as blockers:
        for timeout, error in ((0, LockBusy), (0.05, LockTimeout)):
            with within(timeout + 1), pytest.raises(error), primitive.lock(timeout=timeout):
                pass
            with within(timeout + 1):
                assert primitive.lock().acquire(bool(timeout), timeout or -1) is None
            zoo.wait_contenders(KEY, len(blockers))
    acquire_once(primitive.lock(timeout=0))


async def test_a_wait_of_a_coroutine_that_times_out_leaves_no_contender(zoo, primitive):
    with primitive.full(zoo) as blockers:
        for timeout in (0, 0.05):
            with pytest.raises(LockTimeout if timeout else LockBusy):
                async with primitive.lock(timeout=timeout):
                    pass

        async def wait():
            async with primitive.lock(timeout=None):
                pass

        task = asyncio.create_task(wait())
        await asyncio.to_thread(zoo.wait_contenders, KEY, len(blockers) + 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(zoo.wait_contenders, KEY, len(blockers))


def test_a_waiter_that_gives_up_blocks_no_other(zoo, primitive):
    with primitive.full(zoo) as blockers, queued(zoo, primitive.lock(timeout=None)) as (first,):
        quitter = BackgroundCall(primitive.lock(timeout=3).acquire)
        primitive.wait_queued(zoo, 2, others=len(blockers))
        with queued(zoo, primitive.lock(timeout=None)) as (last,):
            assert quitter.result() is None
            primitive.wait_queued(zoo, 2, others=len(blockers))
            for path in blockers:
                zoo.client.delete(path)
            first.finish()
            last.wait_granted()


def test_its_owner_may_acquire_it_again(zoo, primitive):
    lock = primitive.lock()
    with lock as outer, lock as inner:
        assert inner == outer
        assert primitive.lock().acquire(blocking=False)
        lock.release()
        assert len(zoo.children(KEY)) == 1
    primitive.wait_released(zoo)
    assert zoo.children(KEY) == []
    with pytest.raises(LockNotHeld):
        lock.release()
    with primitive.lock(reentrant=False) as hold:
        with within(1), pytest.raises(LockBusy, match="reentrant"), primitive.lock(reentrant=False, timeout=None):
            pass
        hold.check()


def reaped(zoo):
    """Delete the directory, as the server does in its time, if it is empty by now."""
    try:
        zoo.client.delete(f"{zoo.base}/{KEY}")
    except NotEmptyError:
        return False
    except NoNodeError:
        pass
    return True


def test_tokens_rise(zoo, primitive):
    tokens = []
    for count in range(6):
        with primitive.lock(timeout=30) as hold:
            tokens.append(hold.token)
            assert zoo.client.exists(hold.path).czxid == hold.token
        if count == 3:
            primitive.wait_released(zoo)
            eventually(lambda: reaped(zoo))
    assert tokens == sorted(tokens)
    assert primitive.lingers or len(set(tokens)) == len(tokens)


def test_its_deletion_stops_the_work_and_grants_the_next(zoo, primitive, reports):
    with queued(zoo, *(primitive.lock() for _ in range(primitive.room - 1))) as others:
        for other in others:
            other.wait_granted()
        waiters = []

        def work():
            with primitive.lock() as hold:
                waiters.append(Taker(primitive.lock()))
                primitive.wait_queued(zoo, primitive.room + 1)
                zoo.client.delete(hold.path)
                with within(2):
                    threading.Event().wait(10)

        with pytest.raises(LockLost):
            work()
        waiters[0].finish()
    eventually(lambda: [report["lock"] for report in reports] == [KEY])


def test_a_release_leaves_no_watch(zoo, primitive):
    connected()
    with primitive.full(zoo) as blockers:
        for _ in range(3):
            assert primitive.lock().acquire(timeout=0.1) is None
        zoo.wait_contenders(KEY, len(blockers))
        with queued(zoo, *(primitive.lock(timeout=30) for _ in range(3))) as takers:
            for path in blockers:
                zoo.client.delete(path)
            for taker in takers:
                taker.finish()
    directory = f"{zoo.base}/{KEY}"
    eventually(lambda: watched(zoo) <= {directory})
    if primitive.is_semaphore:
        eventually(lambda: reaped(zoo))
    eventually(lambda: not watched(zoo))
    eventually(lambda: not has_watches())
