"""The log says what a caller waits for if it may wait for ever, or for the block that has started it."""

import asyncio
import contextlib

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from support.faults import BackgroundCall
from support.zoo import eventually

from django_zklock import zk_leader, zk_lock, zk_read, zk_semaphore
from django_zklock.core.locks import acquisition
from django_zklock.exceptions import LockTimeout

INSIDE = "This work was started inside the block that holds the lock"


def messages(caplog, part):
    return [record.getMessage() for record in caplog.records if part in record.getMessage()]


# --- a wait without a limit -------------------------------------------------------------------------------------------


@pytest.fixture
def often(monkeypatch):
    monkeypatch.setattr(acquisition, "LONG_WAIT", 0.05)


def test_a_wait_without_a_limit_is_logged_at_each_doubling(zoo, caplog, often):
    with zoo.hold_elsewhere("k") as holder:
        call = BackgroundCall(zk_lock("k").acquire)
        eventually(lambda: len(messages(caplog, "still waiting")) > 1)
        first, second, *more = messages(caplog, "still waiting")
        assert len(more) < 6
    call.result().release()
    assert first.startswith("still waiting: The lock 'k' was not free within 0.")
    assert "; ahead is " in second
    assert holder


async def test_a_coroutine_that_waits_without_a_limit_is_logged_too(zoo, caplog, often):
    async with zk_lock("seat"):
        waiter = asyncio.create_task(async_work())
        await asyncio.to_thread(eventually, lambda: messages(caplog, "still waiting: The lock 'seat'"))
        waiter.cancel()
        await asyncio.wait([waiter])


def test_a_wait_with_a_limit_and_a_candidate_are_not_logged(zoo, caplog, often):
    with zoo.hold_elsewhere("k"), zoo.hold_elsewhere("leader"):
        leader = zk_leader("leader")
        call = BackgroundCall(lambda: leader.run(int))
        zoo.wait_contenders("leader", 2)
        with pytest.raises(LockTimeout), zk_lock("k", timeout=0.3):
            pass
        leader.stop()
        call.result()
    assert messages(caplog, "still waiting") == []


# --- work that a block waits for --------------------------------------------------------------------------------------


async def async_work(timeout=None):
    async with zk_lock("seat", timeout=timeout):
        return "worked"


ACROSS = {
    "sync_to_async": lambda work: sync_to_async(work)(),
    "thread_sensitive=False": lambda work: sync_to_async(work, thread_sensitive=False)(),
    "to_thread": asyncio.to_thread,
}


def told(caplog):
    return messages(caplog, f"lock 'seat' is wanted by work of its own block: {INSIDE}")


@pytest.mark.parametrize("flow", ACROSS)
async def test_sync_work_that_wants_the_lock_of_its_block_is_told_at_once(zoo, caplog, flow):
    def work():
        with zk_lock("seat", timeout=None):
            return "worked"

    async with zk_lock("seat"):
        waiter = asyncio.create_task(ACROSS[flow](work))
        await asyncio.to_thread(eventually, lambda: told(caplog))
    assert await waiter == "worked"


def test_async_work_that_wants_the_lock_of_a_sync_block_is_told_at_once(zoo, caplog):
    async def work():
        waiter = asyncio.create_task(async_work())
        await asyncio.to_thread(eventually, lambda: told(caplog))
        waiter.cancel()
        await asyncio.wait([waiter])

    with zk_lock("seat"):
        async_to_sync(work)()


async def in_group():
    async with asyncio.TaskGroup() as group:
        group.create_task(async_work(0.2))


CHILDREN = {
    "gather": lambda: asyncio.gather(async_work(0.2)),
    "TaskGroup": in_group,
    "wait_for": lambda: asyncio.wait_for(asyncio.ensure_future(async_work(0.2)), 30),
    "create_task": lambda: asyncio.create_task(async_work(0.2)),
}


@pytest.mark.parametrize("flow", CHILDREN)
async def test_the_timeout_of_a_child_names_the_block_that_waits_for_it(zoo, caplog, flow):
    async with zk_lock("seat"):
        with pytest.raises((LockTimeout, ExceptionGroup)) as caught:
            await CHILDREN[flow]()
    error = caught.value.exceptions[0] if isinstance(caught.value, ExceptionGroup) else caught.value
    assert INSIDE in str(error)
    assert told(caplog)


async def test_a_block_is_told_once_of_all_its_children(zoo, caplog):
    async with zk_lock("seat"):
        children = [asyncio.create_task(async_work(0.2)) for _ in range(20)]
        outcomes = await asyncio.gather(*children, return_exceptions=True)
    assert all(isinstance(outcome, LockTimeout) for outcome in outcomes)
    assert len(told(caplog)) == 1


async def test_a_child_that_waits_for_the_end_of_its_block_is_not_told(zoo, caplog):
    async with zk_lock("seat"):
        child = asyncio.create_task(async_work())
        await asyncio.to_thread(zoo.wait_contenders, "seat", 2)
    assert await child == "worked"
    assert messages(caplog, "seat") == []


@pytest.mark.parametrize("lock", [zk_read, lambda name: zk_semaphore(name, limit=2)], ids=["read", "permit"])
async def test_work_that_shares_the_lock_of_its_block_is_not_told(zoo, caplog, lock):
    def share():
        with lock("seat"):
            return "worked"

    async with lock("seat"):
        assert await sync_to_async(share)() == "worked"
    assert messages(caplog, "seat") == []


async def test_work_that_outlives_its_block_waits_for_strangers(zoo, caplog):
    """Only the block that still has the lock is meant."""
    go_on = asyncio.Event()

    async def later():
        await go_on.wait()
        with contextlib.suppress(LockTimeout):
            await async_work(0.2)

    async with zk_lock("seat"):
        child = asyncio.create_task(later())
    with zoo.hold_elsewhere("seat"):
        go_on.set()
        await child
    assert messages(caplog, "seat") == []
