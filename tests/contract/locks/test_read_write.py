"""A read-write lock: readers together, writers alone, nobody is starved, and a writer may also read."""

import asyncio
import contextlib

import pytest
from support.faults import BackgroundCall, acquire_once, within
from support.primitives import KEY, foreign, queued
from support.work import acquired, assert_refused
from support.zoo import eventually

from django_zklock import ReadWriteLock, current_hold, zk_lock
from django_zklock.exceptions import LockBusy, LockNotHeld, LockUpgradeRefused

COMPAT = pytest.mark.parametrize("compat", [None, "kazoo"])


def both(compat=None):
    return ReadWriteLock(KEY, timeout=20, compat=compat)


@COMPAT
def test_neither_readers_nor_writers_starve(zoo, compat):
    lock = both(compat)
    order = [lock.read(), lock.read(), lock.write(), lock.read(), lock.read(), lock.write(), lock.read()]
    with foreign(zoo, compat=compat) as first, queued(zoo, *order) as takers:
        assert not any(taker.granted.is_set() for taker in takers)
        zoo.client.delete(first)
        for turn in ([0, 1], [2], [3, 4], [5], [6]):
            for number in turn:
                takers[number].wait_granted()
            assert not any(taker.granted.is_set() for taker in takers[turn[-1] + 1 :])
            for number in turn:
                takers[number].go()


def test_a_plain_lock_excludes_readers_and_writers_on_its_path(zoo):
    lock = both()
    plain, read = acquired(zk_lock(KEY)), acquired(lock.read())
    plain.release()  # its owner reads on, alone
    BackgroundCall(lambda: assert_refused(zk_lock(KEY, kind="read", timeout=0), LockBusy)).result()
    read.release()
    order = [lock.read(), zk_lock(KEY, timeout=20), lock.write(), zk_lock(KEY, limit=2, timeout=20), lock.read()]
    with queued(zoo, *order) as takers:
        for number, taker in enumerate(takers):
            taker.wait_granted()
            assert not any(taker.granted.is_set() for taker in takers[number + 1 :])
            taker.go()


def test_the_writer_may_also_read(zoo):
    lock = both()
    with lock.write() as outer, lock.read() as inner:
        assert (outer.kind, inner.kind) == ("write", "read")
        assert inner.token == outer.token
        with lock.write() as again:
            assert again == outer
        with lock.read() as again:
            assert again == inner
        assert len(zoo.children(KEY)) == 1
    assert zoo.children(KEY) == []
    with lock.write() as outer:
        with lock.read() as inner:
            inner.check()
        assert (inner.state, outer.state, outer.kind) == ("released", "held", "write")
        with pytest.raises(LockNotHeld):
            inner.check()
        outer.check()


def test_a_reader_that_wants_to_write_is_refused_at_once(zoo):
    """It would wait for its own release; it keeps what it has. A plain lock or a permit is no way round it."""
    lock = both()
    with lock.read() as hold:
        for other in (lock.write(), zk_lock(KEY), zk_lock(KEY, limit=3)):
            with within(1), pytest.raises(LockUpgradeRefused, match="holds a read lock on"), other:
                pass
        with pytest.raises(RuntimeError):
            lock.write().acquire(blocking=False)
        hold.check()
    with zk_lock(KEY, limit=3), pytest.raises(LockUpgradeRefused, match="holds a permit of"), zk_lock(KEY):
        pass


def by_release(lock):
    """Return the hold of `acquire`, and what ends it."""
    return lock.acquire(), lock.release


def by_hold(lock):
    hold = lock.acquire()
    return hold, hold.release


def by_block(lock):
    block = contextlib.ExitStack()
    return block.enter_context(lock), block.close


async def by_arelease(lock):
    return await lock.aacquire(), lock.arelease


async def by_async_block(lock):
    block = contextlib.AsyncExitStack()
    return await block.enter_async_context(lock), block.aclose


def assert_exclusive(zoo):
    """Nobody else may read or write."""
    for kind in ("read", "write"):
        with pytest.raises(LockBusy):
            BackgroundCall(lambda kind=kind: acquire_once(KEY, kind=kind, timeout=0)).result()
    assert len(zoo.children(KEY)) == 1


ENDS = pytest.mark.parametrize("first", ["read", "write"])


@COMPAT
@ENDS
@pytest.mark.parametrize("way", [by_release, by_hold, by_block])
def test_the_write_lock_lasts_until_writer_and_reader_have_ended(zoo, compat, way, first):
    lock = both(compat)
    ends = {"write": way(lock.write()), "read": way(lock.read())}
    ended, end = ends.pop(first)
    end()
    ((left, end_last),) = ends.values()
    assert (ended.state, left.state) == ("released", "held")
    left.check()
    assert_exclusive(zoo)
    end_last()
    assert left.state == "released"
    eventually(lambda: zoo.children(KEY) == [])


@ENDS
@pytest.mark.parametrize("way", [by_arelease, by_async_block])
async def test_the_write_lock_of_a_coroutine_lasts_until_writer_and_reader_have_ended(zoo, way, first):
    lock = both()
    ends = {"write": await way(lock.write()), "read": await way(lock.read())}
    _, end = ends.pop(first)
    await end()
    ((left, end_last),) = ends.values()
    left.check()
    await asyncio.to_thread(assert_exclusive, zoo)
    await end_last()
    await asyncio.to_thread(eventually, lambda: zoo.children(KEY) == [])


@COMPAT
@ENDS
def test_no_writer_comes_between_the_ends_of_writer_and_reader(zoo, compat, first):
    """The end of the write side is no grant for a writer behind it (CURATOR-621)."""
    lock = both(compat)
    lock.write().acquire()
    lock.read().acquire()
    with queued(zoo, lock.read(), lock.write(), lock.read()) as takers:
        getattr(lock, first)().release()
        assert lock.write().locked()  # a question that the server has answered
        assert not any(taker.granted.is_set() for taker in takers)
        getattr(lock, "write" if first == "read" else "read")().release()
        for number, taker in enumerate(takers):
            taker.wait_granted()
            assert not any(later.granted.is_set() for later in takers[number + 1 :])
            taker.go()


def test_a_writer_that_reads_on_does_not_write_again(zoo):
    """It would be a writer inside a reader, which is always refused."""
    lock = both()
    lock.write().acquire()
    lock.read().acquire()
    lock.write().release()
    assert (lock.write().owned(), zk_lock(KEY).owned(), lock.read().owned()) == (False, False, True)
    assert current_hold(KEY).kind == "read"
    with within(1), pytest.raises(LockUpgradeRefused, match=r"zk_read\(\) inside zk_write\(\) works"):
        lock.write().acquire()
    with lock.read() as again:
        assert again.kind == "read"
    lock.read().release()
    for side in (lock.read(), lock.write()):
        with pytest.raises(LockNotHeld):
            side.release()


async def test_a_coroutine_that_reads_is_refused_to_write_at_once(zoo):
    lock = both()
    async with lock.read() as hold:
        with within(1), pytest.raises(LockUpgradeRefused, match="holds a read lock on"):
            await lock.write().aacquire()
        hold.check()


def test_a_reader_cannot_release_the_write_side_nor_a_writer_the_read_side(zoo):
    lock = both()
    for mine, other in ((lock.read(), lock.write()), (lock.write(), lock.read())):
        with mine, pytest.raises(LockNotHeld):
            other.release()
