"""Work that others do for a block: what is stopped with the block, and that all of it finds the hold."""

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from support.faults import due, within
from support.work import compute, in_each_thread, lose
from support.zoo import eventually

from django_zklock import current_hold
from django_zklock.core.execution import abort
from django_zklock.core.execution.owner import Owner
from django_zklock.exceptions import LockLost, LockLostInterrupt, LockNotHeld
from django_zklock.locks.lock import Lock


async def compute_in_steps():
    while True:
        compute(0.01)
        await asyncio.sleep(0)


async def gather_errors():
    await asyncio.gather(*(compute_in_steps() for _ in range(4)), return_exceptions=True)


async def swallow_once():
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(20)
    await asyncio.sleep(20)


async def start_others():
    task = asyncio.create_task(asyncio.sleep(20))
    await asyncio.wait([task, asyncio.create_task(compute_in_steps())])


@in_each_thread
@pytest.mark.parametrize("run_coroutine", [asyncio.run, lambda coroutine: async_to_sync(lambda: coroutine)()])
@pytest.mark.parametrize("work", [gather_errors, swallow_once, start_others])
@pytest.mark.filterwarnings("ignore:async_to_sync was passed")
def test_coroutines_of_the_block_are_cancelled(zoo, reports, monkeypatch, run, run_coroutine, work):
    """A loop that takes no call soon is interrupted, too: on a busy machine, any. So it has a minute for that here."""
    monkeypatch.setattr(abort, "LOOK_AFTER", 60.0)
    tasks = []

    async def main():
        lose(current_hold())  # not before the loop is there
        try:
            await work()
        finally:
            tasks.append(asyncio.all_tasks())

    def block():
        with Lock("inner"):
            run_coroutine(main())

    with pytest.raises(LockLost):
        run(block)
    assert eventually(lambda: tasks and all(task.done() for task in tasks[0]))
    (report,) = eventually(lambda: list(reports))
    assert report["receipt"].how == "task"


def test_an_error_of_a_cancelled_coroutine_is_raised_as_it_is(zoo, monkeypatch):
    monkeypatch.setattr(abort, "LOOK_AFTER", 60.0)

    async def fail_in_the_clean_up():
        lose(current_hold())
        try:
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            raise ValueError from None

    with pytest.raises(ValueError), Lock("inner"):  # noqa: PT011 - LockLost is none
        asyncio.run(fail_in_the_clean_up())


@in_each_thread
@pytest.mark.parametrize("awaits", [False, True])
def test_work_that_a_cancellation_does_not_end_is_interrupted(zoo, run, awaits):
    async def main():
        lose(current_hold())
        if awaits:
            await asyncio.sleep(20)
        compute(20)

    def block():
        with Lock("inner"):
            with contextlib.suppress(asyncio.CancelledError):
                asyncio.run(main())
            compute(20)

    with within(1.3), pytest.raises(LockLost):
        run(block)


async def test_other_tasks_of_the_loop_around_the_block_go_on(zoo):
    """Under ASGI, a sync view with a block calls a coroutine. It is cancelled; another request is not."""
    cancelled = []

    async def sleep(what):
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.append(what)
            raise

    async def sleep_under_lock():
        lose(current_hold())
        await sleep("for the view")

    def view():
        with Lock("view"):
            async_to_sync(sleep_under_lock)()

    other = asyncio.create_task(sleep("for others"))
    with within(1.3), pytest.raises(LockLost):
        await sync_to_async(view)()
    await asyncio.to_thread(due, 0.06)
    assert cancelled == ["for the view"]
    other.cancel()


def test_a_loop_around_the_block_is_left_alone():
    """Some tools run sync code inside a loop, with DJANGO_ALLOW_ASYNC_UNSAFE. The work is interrupted in place."""

    def block():
        mine = abort.abort_for(Owner("thread", threading.main_thread()))  # installs the handler of the signal
        mine.arm()
        thread = threading.Thread(target=mine.request, args=("lost",))
        try:
            thread.start()
            compute(20)
        except LockLostInterrupt:
            struck.append(True)
        mine.disarm()
        thread.join()

    async def main():
        other = asyncio.create_task(asyncio.sleep(0.1))
        asyncio.get_running_loop().call_soon(block)
        await other

    struck = []
    asyncio.run(main())
    assert struck


@in_each_thread
def test_a_function_that_works_for_a_coroutine_of_the_block_is_interrupted(zoo, monkeypatch, run):
    """`sync_to_async` runs it in the thread of the block, which waits for the coroutine."""
    monkeypatch.setattr(abort, "LOOK_AFTER", 60.0)  # so long would it be asked to end

    def work():
        lose(current_hold())
        compute(20)

    async def main():
        await sync_to_async(work)()

    def block():
        with Lock("there/and/back"):
            async_to_sync(main)()

    with within(1.3), pytest.raises(LockLost):
        run(block)


async def hold_in_coroutine():
    return current_hold()


async def holds_of_children():
    return [
        *await asyncio.gather(hold_in_coroutine(), asyncio.create_task(hold_in_coroutine())),
        await asyncio.to_thread(current_hold),
        await sync_to_async(current_hold)(),
        await sync_to_async(current_hold, thread_sensitive=False)("others"),
    ]


async def test_work_for_a_task_finds_its_hold(zoo):
    async with Lock("around"), Lock("others") as hold:
        assert await holds_of_children() == [hold] * 5
    with pytest.raises(LockNotHeld, match="no lock"):
        current_hold()


@in_each_thread
def test_work_for_a_thread_finds_its_hold(zoo, run):
    def block():
        with Lock("around"), Lock("others") as hold:
            assert async_to_sync(holds_of_children)() == [hold] * 5
            assert asyncio.run(holds_of_children()) == [hold] * 5
            with ThreadPoolExecutor() as pool, pytest.raises(LockNotHeld):
                pool.submit(current_hold).result()

    run(block)


async def test_work_that_outlives_its_block_finds_no_hold(zoo):
    ended = asyncio.Event()

    async def child():
        await ended.wait()
        for key in (None, "k"):
            with pytest.raises(LockNotHeld):
                current_hold(key)

    async with Lock("k") as hold:
        task = asyncio.create_task(child())
    async with Lock("k"):
        ended.set()
        await task
    assert hold.state == "released"


async def test_a_child_finds_its_own_block_first(zoo):
    async def child():
        async with Lock("child") as hold:
            assert current_hold() == hold
            assert current_hold("parent") == parent
        assert current_hold() == parent

    async with Lock("parent") as parent:
        await asyncio.gather(child())


async def test_the_hold_that_a_child_finds_lasts_as_long_as_the_outer_block(zoo):
    async def child():
        return current_hold()

    async with Lock("parent"):
        async with Lock("parent") as inner:
            hold = await asyncio.create_task(child())
        hold.check()
        with pytest.raises(LockNotHeld):
            inner.check()
    with pytest.raises(LockNotHeld):
        hold.check()


async def test_check_stops_a_thread_that_works_for_a_lost_block(zoo):
    """No abort can stop it."""
    ended = []
    begun = threading.Event()

    def work():
        begun.set()
        try:
            while True:
                current_hold().check()
                compute(0.01)
        except (LockLost, LockNotHeld) as error:
            ended.append(error)

    with pytest.raises(LockLost):
        async with Lock("k") as hold:
            thread = asyncio.create_task(asyncio.to_thread(work))
            await asyncio.to_thread(begun.wait)
            lose(hold)
            await thread
    assert await asyncio.to_thread(eventually, lambda: list(ended))
