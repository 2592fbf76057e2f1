"""Tasks own locks, wait for them without a thread, and may be cancelled at any moment."""

import asyncio
import contextlib
import gc
import random
import sys
import threading

import pytest
import trio
from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from support.faults import BackgroundCall, acquire_once, results
from support.work import assert_refused, blocks_of
from support.zoo import eventually

from django_zklock import zk_locks
from django_zklock.exceptions import LockBusy, LockNotHeld, LockTimeout, ZkLockError
from django_zklock.locks.lock import Lock


async def test_children_of_a_task_do_not_inherit_its_locks(zoo):
    lock = Lock("parent")

    async def child():
        with pytest.raises(LockNotHeld):
            await lock.arelease()
        with pytest.raises(LockBusy):
            async with Lock("parent", timeout=0):
                pass
        assert await lock.alocked()
        return None

    async with lock as hold:
        await asyncio.gather(child(), child())
        await asyncio.create_task(child())
        hold.check()
    assert not await lock.alocked()


async def test_aacquire_is_acquire_for_tasks(zoo):
    lock = Lock("twin")
    with pytest.raises(ValueError, match="non-blocking"):
        await lock.aacquire(False, 1)
    hold = await lock.aacquire()
    assert (again := await lock.aacquire(False))
    assert hold
    assert again.token == hold.token
    await lock.arelease()
    assert await lock.alocked()
    await lock.arelease()
    with pytest.raises(LockNotHeld):
        await lock.arelease()
    with zoo.hold_elsewhere("twin"):
        assert await lock.aacquire(blocking=False) is None
        assert await lock.aacquire(timeout=0.2) is None
        with pytest.raises(LockTimeout):
            async with Lock("twin", timeout=0.2):
                pass
    assert not await lock.alocked()


async def test_aacquire_as_a_task_of_its_own_is_refused(zoo):
    """The owner would be gone as soon as it has the lock, so that nobody could release it: an error says what to do."""
    lock = Lock("own")
    for make in (asyncio.create_task, asyncio.gather, asyncio.ensure_future):
        with pytest.raises(ZkLockError, match="task of its own"):
            await make(lock.aacquire())
    if sys.version_info >= (3, 12):  # where wait_for runs what it waits for in the caller's task
        assert await asyncio.wait_for(lock.aacquire(), 5)
        await lock.arelease()
    else:
        with pytest.raises(ZkLockError, match="wait_for"):
            await asyncio.wait_for(lock.aacquire(), 5)
    zoo.assert_empty()


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize(
    "lock", [Lock("cancel", timeout=None), zk_locks("more", "cancel", timeout=None)], ids=["one", "several"]
)
async def test_cancel_at_any_moment_leaves_no_contender(zoo, lock, held):
    async def work():
        async with lock:
            await asyncio.sleep(random.choice([0, 0.001]))

    async def sweep():
        for count in range(60):
            task = asyncio.create_task(work())
            if count % 3 == 0:
                for _ in range(count):
                    await asyncio.sleep(0)
            else:
                await asyncio.sleep(random.uniform(0, 0.008))
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled() or task.exception() is None

    with zoo.hold_elsewhere("cancel") if held else contextlib.nullcontext():
        await sweep()
        zoo.wait_contenders("cancel", int(held), timeout=2)
    zoo.assert_empty()
    assert not blocks_of(lock)
    async with lock:
        pass


async def test_waiting_costs_no_thread(zoo):
    assert zoo.client.connected
    async with Lock("crowd/0"):
        await asyncio.to_thread(int)
        before = set(threading.enumerate())
        with zoo.hold_elsewhere("crowd"):
            tasks = [asyncio.ensure_future(Lock("crowd", timeout=None).__aenter__()) for _ in range(30)]
            await asyncio.to_thread(zoo.wait_contenders, "crowd", 31, 20)
            assert set(threading.enumerate()) <= before  # some are of earlier tests, and end meanwhile
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


async def test_hundreds_of_coroutines_that_start_together_are_granted_the_lock(zoo):
    """The first connection finds more requests than its thread can be woken for one by one."""

    async def acquire(number):
        async with Lock("together/{number}", fields={"number": number}, timeout=60) as hold:
            hold.check()
            return hold.token

    tokens = await asyncio.gather(*(acquire(number) for number in range(400)))
    assert len(set(tokens)) == 400


async def test_the_end_of_a_block_whose_begin_was_not_awaited_says_so(zoo):
    lock = Lock("k")
    lock.__aenter__()
    with pytest.raises(LockNotHeld, match=r"or __aenter__\(\) was not awaited"):
        await lock.__aexit__(None, None, None)


async def test_a_sync_call_in_a_running_loop_is_refused_with_the_one_to_await(zoo):
    lock = Lock("sync")
    assert_refused(lock, SynchronousOnlyOperation, "async with")
    hold = await lock.aacquire()
    for owner, methods in ((lock, ("acquire", "locked", "release")), (hold, ("release", "wait_released"))):
        for method in methods:
            with pytest.raises(SynchronousOnlyOperation, match=rf"^{method}\(\) .* await (lock|hold)\.a{method}\("):
                getattr(owner, method)()
    await hold.arelease()


@pytest.mark.parametrize("through", ["to_thread", "sync_to_async"])
async def test_a_thread_inside_async_code_is_an_owner_of_its_own(zoo, through):
    lock = Lock("thread")
    run = asyncio.to_thread if through == "to_thread" else lambda call: sync_to_async(call)()

    def use():
        with lock as hold, lock as again:
            return hold == again

    assert await run(use)
    async with lock:
        assert await run(lambda: lock.acquire(blocking=False) is None)
    assert await run(use)


def test_async_code_inside_a_threads_block_is_an_owner_of_its_own(zoo):
    lock = Lock("inside")

    async def attempt():
        return await Lock("inside").aacquire(blocking=False) is None

    async def use():
        async with Lock("other"), Lock("other") as hold:
            return hold is not None

    with lock as hold:
        assert async_to_sync(attempt)()
        assert async_to_sync(use)()
        hold.check()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_waiter_whose_event_loop_closes_leaves_the_queue(zoo):
    loop = asyncio.new_event_loop()

    async def work():
        async with Lock("closed", timeout=None):
            raise AssertionError

    with zoo.hold_elsewhere("closed"):
        tasks = [loop.create_task(work()) for _ in range(3)]
        while len(zoo.children("closed")) < 4:
            loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()
        del tasks
    acquire_once(Lock("closed", timeout=20))
    zoo.assert_empty()
    gc.collect()


def test_event_loops_in_two_threads_share_a_lock_object(zoo):
    lock = Lock("loops", timeout=None)
    inside = []
    most = []

    async def work():
        for _ in range(10):
            async with lock:
                inside.append(1)
                most.append(len(inside))
                await asyncio.sleep(0)
                inside.pop()

    async def main():
        await asyncio.gather(work(), work())

    results([BackgroundCall(lambda: asyncio.run(main())) for _ in range(2)])
    assert max(most) == 1
    assert len(most) == 40
    eventually(lambda: not blocks_of(lock))


def test_trio_uses_locks_in_threads(zoo):
    running = []
    most = []

    def work():
        with Lock("k", timeout=20):
            running.append(1)
            most.append(len(running))
            running.pop()

    async def main():
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(trio.to_thread.run_sync, work)

    with Lock("outer") as hold:
        trio.run(main)
        hold.check()
    assert most == [1] * 5
