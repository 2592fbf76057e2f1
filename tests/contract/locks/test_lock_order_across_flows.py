"""A lock has an order inside the lock of a flow that waits for this one, as a coroutine waits for a task or thread."""

import asyncio
import concurrent.futures
import contextvars
import threading

import pytest
from asgiref.sync import async_to_sync, sync_to_async

from django_zklock import zk_lock, zk_locks
from django_zklock.core.locks.held import enclosing_holds

TIMES = 3
"""How often a flow acquires its lock. On a busy machine, another thread may not wait for it yet at the first time."""


pytestmark = pytest.mark.usefixtures("zoo")


def lock_b():
    for _ in range(TIMES):
        with zk_lock("b"):
            pass


async def alock_b():
    for _ in range(TIMES):
        async with zk_lock("b"):
            pass


# --- the block waits --------------------------------------------------------------------------------------------------


async def in_group():
    async with asyncio.TaskGroup() as group:  # from Python 3.11 on
        group.create_task(alock_b())
        group.create_task(asyncio.sleep(0))


async def in_executor():
    context = contextvars.copy_context()
    await asyncio.get_running_loop().run_in_executor(None, context.run, lock_b)


async def after_a_group():
    children = [asyncio.create_task(alock_b()) for _ in range(3)]
    for child in children:
        await child


async def of_a_child():
    await asyncio.create_task(in_thread())


async def in_thread():
    await asyncio.to_thread(lock_b)


AWAITED = {
    "await": alock_b,
    "a task": lambda: asyncio.create_task(alock_b()),
    "tasks, one after the other": after_a_group,
    "gather": lambda: asyncio.gather(asyncio.sleep(0), alock_b()),
    "gather in gather": lambda: asyncio.gather(asyncio.gather(alock_b())),
    "wait": lambda: asyncio.wait([asyncio.ensure_future(alock_b())]),
    "wait_for": lambda: asyncio.wait_for(alock_b(), 30),
    "shield": lambda: asyncio.shield(alock_b()),
    "to_thread": in_thread,
    "run_in_executor": in_executor,
    "gather of threads": lambda: asyncio.gather(asyncio.to_thread(lock_b), sync_to_async(lock_b)()),
    "a thread of a task": of_a_child,
    "sync_to_async": sync_to_async(lock_b),
    "sync_to_async in a pool": sync_to_async(lock_b, thread_sensitive=False),
    "async_to_sync in sync_to_async": sync_to_async(async_to_sync(alock_b)),
    "TaskGroup": in_group,
}


@pytest.mark.parametrize("flow", AWAITED.values(), ids=AWAITED)
def test_work_that_a_block_of_a_coroutine_awaits_is_inside_it(flow, seen):
    async def run():
        async with zk_lock("a"):
            await flow()

    asyncio.run(run())
    assert set(seen.edges) == {("a", "b")}


def run_in_copied_context():
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(contextvars.copy_context().run, lock_b).result()


async def threads():
    await asyncio.gather(sync_to_async(lock_b, thread_sensitive=False)())


@pytest.mark.parametrize(
    "work",
    [
        async_to_sync(alock_b),
        lambda: asyncio.run(alock_b()),
        async_to_sync(sync_to_async(lock_b)),
        async_to_sync(threads),
        run_in_copied_context,
    ],
    ids=["async_to_sync", "asyncio.run", "sync_to_async", "a pool", "a result"],
)
def test_work_that_a_block_of_a_thread_waits_for_is_inside_it(work, seen):
    with zk_lock("a"):
        work()
    assert set(seen.edges) == {("a", "b")}


def test_several_locks_of_a_task_are_inside_the_block_that_awaits_it(seen):
    async def several():
        async with zk_locks("b", "c", "d"):
            pass

    async def run():
        async with zk_lock("a"):
            await asyncio.gather(several())

    asyncio.run(run())
    assert {("a", "b"), ("a", "c"), ("a", "d")} <= set(seen.edges)


# --- the block goes on ------------------------------------------------------------------------------------------------


async def awhile(block):
    """Run this in a task that nobody awaits, until it has ended. The block looks for that, and could go on."""
    ended = asyncio.Event()

    async def run():
        await block()
        ended.set()

    task = asyncio.create_task(run())
    await ended.wait()
    task.add_done_callback(lambda task: task.result())


NOT_AWAITED = {
    "a coroutine": alock_b,
    "to_thread": in_thread,
    "sync_to_async": sync_to_async(lock_b),
    "gather": lambda: asyncio.gather(alock_b(), asyncio.to_thread(lock_b)),
    "async_to_sync in sync_to_async": sync_to_async(async_to_sync(alock_b)),
    "TaskGroup": in_group,
}


@pytest.mark.parametrize("flow", NOT_AWAITED.values(), ids=NOT_AWAITED)
def test_a_task_that_the_block_does_not_await_is_not_inside_it(flow, seen):
    async def run():
        async with zk_lock("a"):
            await awhile(flow)

    asyncio.run(run())
    assert not seen.edges


def test_a_task_that_is_awaited_after_the_block_is_not_inside_it(seen):
    async def run():
        entered = asyncio.Event()

        async def later():
            await entered.wait()
            await alock_b()

        async with zk_lock("a"):
            task = asyncio.create_task(later())
        entered.set()
        await task

    asyncio.run(run())
    assert not seen.edges


def test_a_callback_of_a_task_is_nobody_that_waits(seen):
    async def run():
        holder = asyncio.current_task()
        assert holder is not None
        tasks = {holder}

        async def child():
            task = asyncio.current_task()
            assert task is not None
            task.add_done_callback(tasks.discard)
            task.add_done_callback(lambda task: holder.cancelled())
            await alock_b()

        async with zk_lock("a"):
            await awhile(child)

    asyncio.run(run())
    assert not seen.edges


def test_a_thread_that_the_block_does_not_wait_for_is_not_inside_it(seen):
    ended = threading.Event()

    def work():
        lock_b()
        ended.set()

    with concurrent.futures.ThreadPoolExecutor(1) as pool, zk_lock("a"):
        future = pool.submit(contextvars.copy_context().run, work)
        assert ended.wait(30)
    future.result()
    assert not seen.edges


def test_a_task_that_nobody_awaits_is_not_inside_the_block_of_its_thread(seen):
    with zk_lock("a"):
        asyncio.run(awhile(alock_b))
    assert not seen.edges


def test_generators_that_end_inside_other_blocks_leave_nothing(seen):
    def locked():
        with zk_lock("a"):
            yield

    def blocks():
        enclosing, count = enclosing_holds.get(), 0
        while enclosing is not None:
            enclosing, count = enclosing[1], count + 1
        return count

    for _ in range(5):
        generator = locked()
        next(generator)
        with zk_lock("b"):
            generator.close()
    assert blocks() <= 1
    with zk_lock("c"):
        assert blocks() == 1
    assert set(seen.edges) == {("a", "b")}
