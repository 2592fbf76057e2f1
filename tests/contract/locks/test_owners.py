"""A lock belongs to a task, a greenlet or a thread: who may acquire it again, release it, and end its blocks."""

import asyncio
import contextlib
import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool

import anyio.to_thread
import pytest
import trio
from asgiref.sync import ThreadSensitiveContext, async_to_sync, sync_to_async
from support.faults import BackgroundCall
from support.work import acquired

from django_zklock import zk_lock, zk_locks, zk_read, zk_semaphore, zk_write
from django_zklock.core.locks.held import held_locks
from django_zklock.exceptions import LockLost, LockLostInterrupt, LockNotHeld, ZkLockError


async def in_context(call):
    async with ThreadSensitiveContext():
        return await sync_to_async(call)()


async def by_own_pool(call):
    with ThreadPoolExecutor(1) as pool:
        return await asyncio.wrap_future(pool.submit(call))


POOLS = {
    "to_thread": asyncio.to_thread,
    "run_in_executor": lambda call: asyncio.get_running_loop().run_in_executor(None, call),
    "ThreadPoolExecutor": by_own_pool,
    "sync_to_async": lambda call: sync_to_async(call)(),
    "thread_sensitive=False": lambda call: sync_to_async(call, thread_sensitive=False)(),
    "ThreadSensitiveContext": in_context,
    "anyio": anyio.to_thread.run_sync,
}


@pytest.fixture(params=POOLS)
def run(request):
    return POOLS[request.param]


def acquire(lock, **options):
    """Acquire; a pool does not see that it does nothing else."""
    return lock.acquire(**options)


async def test_a_call_that_would_only_acquire_is_refused(zoo, run):
    """Nothing is sent: the lock would outlive its owner at once. The error names what to use instead."""
    locks = zk_lock("k"), zk_read("k"), zk_write("k"), zk_semaphore("k", 2), zk_locks("k", "l")
    for lock in locks:
        for call in (
            lock.acquire,
            functools.partial(lock.acquire, timeout=0),
            lock.__enter__,
            functools.partial(contextlib.ExitStack().enter_context, lock),
        ):
            with pytest.raises(ZkLockError, match=r"await lock\.aacquire\(\)"):
                await run(call)


def test_threads_of_other_kinds_refuse_it_too(zoo):
    lock = zk_lock("k")
    errors = []
    in_thread = trio.to_thread.run_sync
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "excepthook", lambda arguments: errors.append(arguments.exc_value))
        thread = threading.Thread(target=lock.acquire)
        thread.start()
        thread.join()
    assert isinstance(errors[0], ZkLockError)
    with ThreadPool(1) as pool, pytest.raises(ZkLockError, match="aacquire"):
        pool.apply(lock.acquire)
    with pytest.raises(ZkLockError, match="aacquire"):
        trio.run(in_thread, lock.acquire)


def test_a_block_of_the_waiting_thread_is_reentrant_as_before(zoo):
    lock = zk_lock("k", timeout=0)

    def inner():
        with lock:
            assert lock.acquire()
            lock.release()

    async def main():
        await asyncio.gather(sync_to_async(inner)(), sync_to_async(inner)())

    with lock as hold:
        async_to_sync(main)()
        hold.check()
    zoo.assert_empty()


async def test_code_in_one_call_is_one_owner(zoo, run):
    def work():
        lock = zk_lock("k", timeout=0)
        hold = lock.acquire()
        assert lock.acquire()
        with lock as inner, contextlib.ExitStack() as stack:
            assert stack.enter_context(zk_lock("k")) == inner == hold
            assert lock.owned()
        lock.release()
        zk_lock("k").release()
        assert not lock.locked()

    for _ in range(3):
        await run(work)


def by_thread(lock):
    thread = threading.Thread(target=acquire, args=(lock,))
    thread.start()
    thread.join()


def by_task(lock):
    async def main():
        async def request():
            await lock.aacquire()

        await asyncio.create_task(request())

    asyncio.run(main())


@pytest.mark.parametrize("end", [by_thread, by_task])
def test_a_lock_of_an_ended_owner_is_released_by_the_lock_object_that_acquired_it(zoo, end):
    """Another lock object is somebody else's, who may never have had the lock."""
    lock, other = zk_lock("k"), zk_lock("k")
    end(lock)
    with pytest.raises(LockNotHeld, match="has ended"):
        other.release()
    assert other.locked()
    lock.release()
    with pytest.raises(LockNotHeld):
        lock.release()
    zoo.assert_empty()


def test_permits_of_several_ended_owners_are_all_given_back(zoo):
    locks = [zk_semaphore("k", 3) for _ in range(3)]
    for lock in locks:
        by_thread(lock)
    for left, lock in enumerate(locks, start=1):
        lock.release()
        assert len(held_locks.kept()) == 3 - left
    zoo.assert_empty()


def test_a_lost_lock_that_another_lock_object_has_acquired_is_in_nobodys_way(zoo):
    lock = zk_lock("k")
    hold = acquired(lock)
    lose(zoo, hold)
    with zk_lock("k", timeout=30) as again:
        assert again.token > hold.token
    with pytest.raises(LockNotHeld):
        lock.release()


def lose(zoo, hold):
    zoo.client.delete(hold.path)
    assert hold.wait_lost(10)


def test_a_lost_lock_is_neither_owned_nor_locked(zoo, primitive):
    lock = primitive.lock()
    hold = lock.acquire()
    assert lock.owned()
    assert lock.locked()
    lose(zoo, hold)
    assert not lock.owned()
    assert not lock.locked()
    with pytest.raises(LockLost, match=r"call release\(\) before you acquire it again"):
        lock.acquire()
    with pytest.raises(LockLost, match="was lost"):
        lock.release()
    with pytest.raises(LockNotHeld):
        lock.release()
    with lock:
        assert lock.owned()


async def test_a_task_learns_of_a_loss_as_a_thread_does(zoo):
    lock = zk_lock("k")
    hold = await lock.aacquire()
    await asyncio.to_thread(lose, zoo, hold)
    assert not lock.owned()
    assert not await lock.alocked()
    with pytest.raises(LockLost):
        await lock.arelease()
    with pytest.raises(LockNotHeld):
        await lock.arelease()
    async with lock:
        pass


def test_one_lost_lock_of_several_is_named_and_all_are_released(zoo):
    lock = zk_locks("a", "b")
    hold = acquired(lock)
    lose(zoo, hold["b"])
    assert not lock.owned()
    assert lock.locked()  # the first
    with pytest.raises(LockLost, match="'b' was lost"):
        lock.release()
    zoo.assert_empty()


@pytest.mark.parametrize("abort_on", ["suspended", "lost", "never"])
def test_a_loss_is_no_error_of_the_release_if_the_program_watches_its_hold(zoo, abort_on):
    """That is with `abort_on="never"`."""
    lock = zk_lock("k", abort_on=abort_on)
    hold = acquired(lock)
    lose(zoo, hold)
    assert not lock.owned()
    with contextlib.nullcontext() if abort_on == "never" else pytest.raises(LockLost):
        lock.release()


@pytest.mark.parametrize("error", [LockLostInterrupt, KeyboardInterrupt, asyncio.CancelledError, ValueError])
def test_a_release_in_finally_hides_no_abort(zoo, error):
    """An `except Exception` would swallow the `LockLost` that replaced it. An error of the work is its context."""
    lock = zk_lock("k")
    lose(zoo, acquired(lock))
    with pytest.raises(LockLost if error is ValueError else error) as caught:
        try:
            raise error
        finally:
            lock.release()
    assert error is not ValueError or isinstance(caught.value.__context__, ValueError)
    with pytest.raises(LockNotHeld):
        lock.release()


@pytest.fixture
def tasks():
    """Run each awaitable as a task of its own, as the set-up and the end of a fixture are."""
    with contextlib.closing(asyncio.new_event_loop()) as loop:

        async def run(awaitable):
            return await awaitable

        yield lambda awaitable: loop.run_until_complete(loop.create_task(run(awaitable)))


ORDERS = [(0, 1, 2), (2, 1, 0), (1, 2, 0)]


@pytest.mark.parametrize("order", ORDERS)
def test_open_blocks_of_one_lock_object_end_in_any_task(zoo, tasks, order):
    lock = zk_read("k", timeout=30)

    async def fixture():
        async with lock as hold:
            yield hold

    generators = [fixture() for _ in ORDERS]
    holds = [tasks(generator.__anext__()) for generator in generators]
    for number in order:
        tasks(anext(generators[number], None))
        assert holds[number].state == "released"
    assert not lock._blocks
    zoo.assert_empty()


@pytest.mark.parametrize("order", ORDERS)
def test_blocks_of_an_async_exit_stack_end_in_any_task(zoo, tasks, order):
    lock = zk_read("k", timeout=30)

    async def fixture():
        async with contextlib.AsyncExitStack() as stack:
            yield await stack.enter_async_context(lock)

    generators = [fixture() for _ in ORDERS]
    for generator in generators:
        tasks(generator.__anext__())
    for number in order:
        tasks(anext(generators[number], None))
    assert not lock._blocks
    zoo.assert_empty()


@pytest.mark.parametrize("order", ORDERS)
def test_blocks_of_an_exit_stack_end_in_any_thread(zoo, order):
    lock = zk_read("k", timeout=30)

    def fixture():
        with contextlib.ExitStack() as stack:
            yield stack.enter_context(lock)

    generators = [fixture() for _ in ORDERS]
    for generator in generators:
        BackgroundCall(functools.partial(next, generator)).result()
    for number in order:
        BackgroundCall(functools.partial(next, generators[number], None)).result()
    assert not lock._blocks
    zoo.assert_empty()


async def test_a_block_that_another_task_closes_is_not_that_tasks_own(zoo):
    lock = zk_semaphore("k", 2)

    async def rows():
        async with lock as hold:
            yield hold

    generator = rows()
    theirs = await asyncio.create_task(generator.__anext__())
    async with lock as mine:
        await generator.aclose()
        assert theirs.state == "released"
        mine.check()


async def test_a_stranger_ends_no_block(zoo):
    lock = zk_read("k")
    ready = asyncio.Queue()
    done = asyncio.Event()

    async def work():
        async with lock as hold:
            ready.put_nowait(None)
            await done.wait()
            hold.check()

    workers = [asyncio.create_task(work()) for _ in range(2)]
    for _ in workers:
        await ready.get()
    with pytest.raises(LockNotHeld):
        await lock.__aexit__(None, None, None)
    done.set()
    await asyncio.gather(*workers)


@pytest.fixture
def unsafe(monkeypatch):
    """Allow blocking calls while a loop runs, as Django does for notebooks and browser tests."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")


@pytest.mark.usefixtures("unsafe")
async def test_plain_code_may_lock_in_a_loop_if_django_allows_it(zoo):
    lock = zk_lock("k", timeout=0)

    async def other():
        return zk_lock("k").acquire(blocking=False)

    with lock as hold:
        assert lock.acquire()
        async with lock as again:
            assert again == hold
        assert await asyncio.create_task(other()) is None
        assert lock.locked()
        await lock.arelease()
    assert not lock.owned()
    zoo.assert_empty()


@pytest.mark.usefixtures("unsafe")
def test_plain_code_stays_one_owner_while_a_greenlet_runs_the_loop(zoo):
    """Playwright's loop runs in a greenlet. It goes on to the test in the middle of a task, or between two tasks."""
    greenlet = pytest.importorskip("greenlet")
    test = greenlet.getcurrent()
    lock = zk_lock("k", timeout=0)

    async def main():
        test.switch("in a task")
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(test.switch, "between tasks")
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    loop = greenlet.greenlet(lambda: asyncio.run(main()))
    assert loop.switch() == "in a task"
    assert asyncio.current_task(asyncio._get_running_loop())
    hold = lock.acquire()
    with lock as block:
        assert loop.switch() == "between tasks"
        assert asyncio.current_task(asyncio._get_running_loop()) is None
        assert lock.owned()
        with lock as inner:
            assert inner == block == hold
    lock.release()
    loop.switch()
    assert loop.dead
    zoo.assert_empty()


@pytest.mark.usefixtures("unsafe")
def test_a_greenlet_that_a_task_waits_for_is_the_task(zoo):
    """SQLAlchemy's `greenlet_spawn` runs code so: the coroutine is beneath it."""
    greenlet = pytest.importorskip("greenlet")
    lock = zk_lock("k", timeout=0)

    async def main():
        async with lock as hold:
            assert greenlet.greenlet(lock.acquire).switch().token == hold.token
            await lock.arelease()

    asyncio.run(main())
