"""The lock is called as `threading.Lock` and `RLock` are, and its owner may take it again."""

import asyncio
import functools
import gc
import threading
import warnings
import weakref

import pytest
from support.faults import BackgroundCall, acquire_once
from support.work import assert_refused, blocks_of
from support.zoo import eventually

from django_zklock import zk_lock, zk_locks
from django_zklock.core.locks.held import held_locks
from django_zklock.exceptions import LockBusy, LockNotHeld
from django_zklock.locks.hold import held_of
from django_zklock.locks.lock import Lock


@pytest.mark.parametrize(
    "arguments", [{"blocking": False, "timeout": 1}, {"timeout": -2}, {"timeout": float("nan")}, {"timeout": -0.5}]
)
def test_acquire_refuses_what_threading_refuses(zoo, arguments):
    for lock in (threading.Lock(), threading.RLock(), Lock("arguments")):
        with pytest.raises(ValueError, match=r"timeout|NaN"):
            lock.acquire(**arguments)
    zoo.assert_empty()


@pytest.mark.parametrize("timeout", [float("nan"), "5", float("inf"), -2, True, False])
def test_acquire_says_what_its_timeout_must_be(zoo, timeout):
    """In threads and in coroutines. NaN is no outage, and True is not a second."""
    words = r"timeout must be a number of seconds .*; got "
    with pytest.raises(ValueError, match=words):
        Lock("arguments").acquire(timeout=timeout)

    async def acquire():
        await Lock("arguments").aacquire(timeout=timeout)

    with pytest.raises(ValueError, match=words):
        asyncio.run(acquire())


def test_acquire_takes_its_arguments_by_position(zoo):
    lock = Lock("positions")
    for arguments in ((), (False,), (True, 5), (0,), (1, -1)):
        assert lock.acquire(*arguments)
        assert BackgroundCall(lambda: lock.acquire(False)).result() is None
        lock.release()


@pytest.mark.parametrize("held", [False, True])
def test_a_release_by_another_owner_is_refused(zoo, held):
    lock = Lock("owned")
    if held:
        lock.acquire()
    with pytest.raises(LockNotHeld) as caught:
        BackgroundCall(lock.release).result()
    assert isinstance(caught.value, RuntimeError)
    assert caught.value.lock == "owned"
    assert lock.locked() is held
    if held:
        lock.release()


@pytest.mark.parametrize(
    ("outer", "inner", "dropped"),
    [
        ({}, {"max_hold": 50}, "max_hold"),
        ({"max_hold": 60}, {"max_hold": 50, "warn_after": 9}, "max_hold and warn_after"),
        ({"warn_after": 60}, {"warn_after": 50}, "warn_after"),
        ({}, {"min_hold": 50}, "min_hold"),
        ({"max_hold": 50}, {"max_hold": 60, "timeout": 1}, ""),
        ({"warn_after": 50, "min_hold": 0.001}, {"min_hold": 0.001}, ""),
    ],
)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_stricter_bound_of_an_inner_block_warns_once_for_its_place(zoo, outer, inner, dropped, is_async):
    def sync():
        for key in ("a", "b", "c"):
            lock = functools.partial(zk_lock, "bounds/{key}", fields={"key": key})
            with lock(**outer), lock(**inner):
                pass

    async def coroutine():
        for key in ("a", "b", "c"):
            lock = functools.partial(zk_lock, "bounds/{key}", fields={"key": key})
            async with lock(**outer), lock(**inner):
                pass

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        asyncio.run(coroutine()) if is_async else sync()
    assert [(str(warning.message).partition(" of ")[0], warning.filename) for warning in caught] == [
        (dropped, __file__)
    ] * bool(dropped)


def test_acquire_inside_a_block_outlives_it(zoo):
    lock = Lock("outlive")
    with lock as hold:
        again = lock.acquire()
        assert again.token == hold.token
    again.check()
    with pytest.raises(LockNotHeld):
        hold.check()
    assert len(zoo.children("outlive")) == 1
    lock.release()
    assert zoo.children("outlive") == []


def test_a_release_inside_the_block_is_its_early_end(zoo):
    lock = Lock("early")
    with lock as hold:
        lock.release()
        with pytest.raises(LockNotHeld):
            hold.check()
    with pytest.raises(KeyError), lock:
        lock.release()
        raise KeyError
    acquire_once(lock)
    lock.acquire()
    with lock:
        lock.release()  # what `acquire` has got
    assert not lock.locked()


def test_a_foreign_thread_and_a_reused_thread_number_own_nothing(zoo):
    lock = zk_locks("reused", "other")
    assert BackgroundCall(lock.acquire).result()
    for _ in range(5):
        assert BackgroundCall(lambda: lock.acquire(False)).result() is None
        with pytest.raises(LockNotHeld):
            BackgroundCall(Lock("reused").release).result()
    BackgroundCall(lock.release).result()  # its owner is gone, so only this lock object can
    assert held_locks.kept() == []


def test_a_block_in_a_dropped_generator_releases(zoo):
    lock = Lock("generator")

    def rows():
        with lock:
            yield 1

    generator = rows()
    next(generator)
    assert lock.locked()
    del generator
    assert not lock.locked()

    generator = rows()
    next(generator)
    BackgroundCall(generator.close).result()
    assert not blocks_of(lock)
    zoo.assert_empty()
    acquire_once(lock)


def test_a_lock_object_forgets_owners_without_the_lock(zoo):
    lock = Lock("turned/away", timeout=0)

    def fail():
        assert_refused(lock, LockBusy)
        return weakref.ref(threading.current_thread())

    with zoo.hold_elsewhere("turned/away"):
        thread = BackgroundCall(fail).result()
        # The contender refers to it until the protocol's thread is done with that.
        eventually(lambda: gc.collect() is not None and thread() is None)


def test_a_hold_that_is_dropped_is_released_with_a_warning(zoo):
    lock = Lock("dropped")
    holds = [lock.acquire()]
    assert holds[0]
    held_locks.forget(held_of(holds[0]))

    def drop(warned):
        holds.clear()
        eventually(lambda: len(warned))  # the protocol's thread, which has just granted it, may still refer to it

    with pytest.warns(ResourceWarning, match="dropped") as warned:
        drop(warned)
    eventually(lambda: not zoo.children("dropped"), 2)
