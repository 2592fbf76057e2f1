"""A block with `on_conflict="skip"` runs without a busy lock, and gets None. Nothing else is skipped."""

import asyncio
import contextlib
import gc
import threading
from contextlib import AsyncExitStack, ExitStack

import pytest
from django.test import override_settings
from support.deadlock import LONG, rivals
from support.faults import BackgroundCall, expire, results
from support.primitives import KEY
from support.work import assert_refused, blocks_of, guards

from django_zklock import Lock, ReadWriteLock, current_hold, zk_lock, zk_locks
from django_zklock.exceptions import LockBusy, LockLost, LockUpgradeRefused, ZooKeeperUnavailable


@pytest.mark.parametrize("timeout", [0, 0.2])
async def test_a_block_gets_none_if_the_lock_is_busy(zoo, primitive, timeout):
    lock = primitive.lock(timeout=timeout, on_conflict="skip")

    def block():
        with lock as hold:
            return hold, lock.owned()

    with primitive.full(zoo) as blockers:
        assert await asyncio.to_thread(block) == (None, False)
        async with lock as hold:
            assert hold is None
            zoo.wait_contenders(KEY, len(blockers))
        zoo.wait_contenders(KEY, len(blockers))
    async with lock as hold:
        assert hold is not None
        hold.check()
    assert (await asyncio.to_thread(block))[1] is True
    assert not blocks_of(lock)
    assert not guards()


def test_a_block_is_skipped_if_it_gives_way_in_a_deadlock(zoo):
    with contextlib.ExitStack() as others, zk_lock("a") as outer:
        others.enter_context(rivals(zoo, {"b": "a"}))
        with zk_lock("b", timeout=LONG, on_conflict="skip") as hold:
            assert hold is None
        outer.check()


def test_several_locks_are_skipped_as_one(zoo):
    locks = zk_locks("a", "b", "c", timeout=0, on_conflict="skip")
    with zk_lock("c") as outer:
        with zoo.hold_elsewhere("b"), locks as holds:
            assert holds is None
            zoo.wait_contenders("a", 0)
            assert current_hold() == outer
        with locks as holds:
            assert holds is not None
            holds.check()
        assert len(zoo.children("c")) == 1


def test_the_side_of_a_read_write_lock_is_skipped(zoo):
    """A reader that wants to write is refused as ever: it would wait for itself."""
    ledger = ReadWriteLock("ledger", timeout=0, on_conflict="skip")
    with zoo.hold_elsewhere("ledger"), ledger.read() as reader, ledger.write() as writer:
        assert reader is writer is None
    with ledger.read() as reader, pytest.raises(LockUpgradeRefused), ledger.write() as writer:
        pytest.fail("it has the lock")


def test_only_the_lock_of_the_block_itself_is_skipped(zoo, proxy):
    with (
        zoo.hold_elsewhere("inner"),
        pytest.raises(LockBusy) as busy,
        zk_lock("outer", timeout=0, on_conflict="skip") as hold,
        zk_lock("inner", timeout=0),
    ):
        pass
    assert busy.value.lock == "inner"
    assert hold is not None
    assert hold.state == "released"
    with pytest.raises(LockLost), zk_lock("outer", on_conflict="skip") as hold:
        expire(zoo)
        threading.Event().wait(5)
    proxy.go_away()
    with pytest.raises(ZooKeeperUnavailable), zk_lock("outer", timeout=0.2, on_conflict="skip") as hold:
        pass
    proxy.heal()


def test_the_settings_do_not_decide_what_a_block_does(zoo):
    """The option `on_conflict` of an entry is for tasks and decorated functions."""
    entries = {"job": {"path": "job/{pk}", "on_conflict": "skip", "timeout": 0}}
    with zoo.hold_elsewhere("job/1"), override_settings(ZKLOCK=zoo.settings(LOCKS=entries)):
        for lock in (
            zk_lock("job", fields={"pk": 1}),
            zk_lock("job", fields={"pk": 1}, on_conflict="raise"),
            Lock.of_key("job/1"),
            zk_locks(zk_lock("job", fields={"pk": 1}), timeout=0),
        ):
            assert_refused(lock, LockBusy)
        for lock in (
            zk_lock("job", fields={"pk": 1}, on_conflict="skip"),
            Lock.of_key("job/1", on_conflict="skip"),
            zk_locks(zk_lock("job", fields={"pk": 1}), on_conflict="skip"),
            zk_locks(zk_lock("job", fields={"pk": 1}, on_conflict="skip"), on_conflict="skip"),
        ):
            assert lock.acquire(blocking=False) is None
            with lock as hold:
                assert hold is None


def test_the_end_of_a_skipped_block_releases_nothing(zoo):
    lock = zk_lock("k", timeout=0, reentrant=False, on_conflict="skip")
    with lock as outer, lock as inner, lock as third:
        assert outer is not None
        assert inner is third is None
    assert not lock.owned()
    with lock as outer:
        with lock as inner:
            assert inner is None
        assert lock.owned()
        with ExitStack() as stack:
            assert stack.enter_context(lock) is None
        assert lock.owned()
        outer.check()
    assert not blocks_of(lock)


def test_a_block_inside_a_skipped_one_is_released_by_its_own_end(zoo):
    lock = zk_lock("k", timeout=0, reentrant=False, on_conflict="skip")
    with ExitStack() as blocked:
        blocked.enter_context(zoo.hold_elsewhere("k"))
        with lock as skipped:
            assert skipped is None
            blocked.close()
            with lock as hold:
                assert hold is not None
            assert not zoo.children("k")
    assert not blocks_of(lock)


async def test_each_end_of_a_coroutine_ends_its_own_block(zoo):
    lock = zk_lock("k", timeout=0, reentrant=False, on_conflict="skip")
    async with lock as outer, lock as inner, AsyncExitStack() as stack:
        assert outer is not None
        assert inner is None
        assert await stack.enter_async_context(lock) is None
        await stack.aclose()
        outer.check()
    assert not zoo.children("k")
    assert not blocks_of(lock)


def test_threads_share_an_object_that_skips(zoo):
    lock = zk_lock("k", timeout=0, on_conflict="skip")
    inside, skips = list[int](), set()
    together = threading.Barrier(6)

    def work():
        together.wait(30)
        for _ in range(20):
            with lock as hold:
                if hold is not None:
                    inside.append(1)
                    hold.check()
                    assert len(inside) == 1
                    inside.pop()
                skips.add(hold is None)

    results([BackgroundCall(work) for _ in range(6)], 30)
    assert skips == {True, False}
    assert not blocks_of(lock)
    assert not guards()


def test_a_generator_that_is_dropped_in_a_skipped_block_ends_it(zoo):
    lock = zk_lock("k", timeout=0, on_conflict="skip")

    def steps():
        with lock as hold:
            yield hold

    with zoo.hold_elsewhere("k"):
        generator = steps()
        assert next(generator) is None
        BackgroundCall(generator.close).result()
        del generator
        gc.collect()
    assert not blocks_of(lock)
