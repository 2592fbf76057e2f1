"""A coroutine waits for its threads, and a thread for its coroutines: their locks are inside its block."""

import asyncio
import concurrent.futures
import contextvars

import pytest
from asgiref.sync import async_to_sync, sync_to_async

from django_zklock import zk_lock, zk_locks
from django_zklock.core.locks.held import enclosing_holds

pytestmark = pytest.mark.usefixtures("zoo")


def lock_b():
    with zk_lock("b"):
        pass


async def alock_b():
    async with zk_lock("b"):
        pass


async def in_executor():
    context = contextvars.copy_context()
    await asyncio.get_running_loop().run_in_executor(None, context.run, lock_b)


async def in_thread():
    await asyncio.to_thread(lock_b)


async def of_a_child():
    await asyncio.create_task(in_thread())


AWAITED = {
    "await": alock_b,
    "to_thread": in_thread,
    "run_in_executor": in_executor,
    "gather of threads": lambda: asyncio.gather(asyncio.to_thread(lock_b), sync_to_async(lock_b)()),
    "a thread of a task": of_a_child,
    "sync_to_async": sync_to_async(lock_b),
    "sync_to_async in a pool": sync_to_async(lock_b, thread_sensitive=False),
}


@pytest.mark.parametrize("flow", AWAITED.values(), ids=AWAITED)
def test_the_work_of_a_thread_is_inside_the_block_of_the_coroutine(flow, seen):
    async def run():
        async with zk_lock("a"):
            await flow()

    asyncio.run(run())
    assert set(seen.edges) == {("a", "b")}


@pytest.mark.parametrize(
    "work",
    [
        async_to_sync(alock_b),
        lambda: asyncio.run(alock_b()),
        async_to_sync(sync_to_async(lock_b)),
    ],
    ids=["async_to_sync", "asyncio.run", "sync_to_async"],
)
def test_the_work_of_a_coroutine_is_inside_the_block_of_the_thread(work, seen):
    with zk_lock("a"):
        work()
    assert set(seen.edges) == {("a", "b")}


def test_several_locks_of_a_thread_are_inside_the_block_of_the_coroutine(seen):
    def several():
        with zk_locks("b", "c", "d"):
            pass

    async def run():
        async with zk_lock("a"):
            await asyncio.to_thread(several)

    asyncio.run(run())
    assert {("a", "b"), ("a", "c"), ("a", "d")} <= set(seen.edges)


def test_the_lock_of_another_task_is_inside_no_block(seen):
    """Nobody can tell whether the block waits for that task."""

    async def run():
        async with zk_lock("a"):
            await asyncio.create_task(alock_b())

    asyncio.run(run())
    assert not seen.edges


def test_the_lock_of_another_thread_is_inside_no_block(seen):
    with concurrent.futures.ThreadPoolExecutor(1) as pool, zk_lock("a"):
        pool.submit(contextvars.copy_context().run, lock_b).result()
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
