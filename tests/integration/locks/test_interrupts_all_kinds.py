"""Exceptions that strike from outside leave nothing of any kind of lock, wherever one or two of them strike."""

import contextlib
import gc
import threading
from contextlib import ExitStack

import pytest
from support import primitives
from support.faults import BackgroundCall
from support.strike import (
    assert_none_listed,
    functions_of,
    long_strides,
    sweep,
    work_acquire_around_with,
    work_linger,
    work_pass_on,
)
from support.work import blocks_of, forget_kept
from support.zoo import eventually

from django_zklock import Lock, ReadWriteLock, zk_lock, zk_locks
from django_zklock.core.execution import owner, waiters
from django_zklock.core.execution.abort import CleanupOnError, finalizers_of
from django_zklock.core.locks import acquisition, block, bounds, held, lingering
from django_zklock.core.locks.held import HeldLock
from django_zklock.core.protocol.contender import Contender
from django_zklock.core.queue.operator_hold import is_operator
from django_zklock.exceptions import LockBusy, LockNotAcquired
from django_zklock.locks import base, hold, lock, multi
from django_zklock.locks.release import Releasable

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*was dropped:ResourceWarning"),
    pytest.mark.timeout(400),  # hundreds of lines, each struck once in a traced interpreter
]

CALLER = functions_of(lock, base, hold, Releasable, held, bounds, block, acquisition, waiters, owner)
"""All functions that run in the caller's thread between `with` and ZooKeeper, and back."""
FUNCTIONS = [*CALLER, *functions_of(lingering, multi), Contender.abandon]
OF_PAIRS = [*CALLER, *functions_of(lingering, multi, CleanupOnError, finalizers_of)]


# --- one lock object, used again after the exception ------------------------------------------------------------------


def work_nested(mutex):
    with mutex, mutex:
        pass


def work_several(locks):
    with locks, ExitStack() as stack:
        stack.enter_context(zk_locks(locks.locks[1], "c"))


def work_release_of_hold(locks):
    hold = locks.acquire()
    hold.release()


def work_several_in_vain(locks):
    with contextlib.suppress(LockBusy), zk_locks("busy", *locks.locks, "c", timeout=0):
        pass
    assert zk_locks("busy", *locks.locks).acquire(blocking=False) is None


def work_skipped(mutex):
    with SKIPPING as busy, mutex as hold, mutex as again:
        assert [bool(value) for value in (busy, hold, again)] == [False, True, False]


SKIPPING = zk_lock("busy", timeout=0.003, on_conflict="skip")


def make_skipping(key):
    return Lock(key, timeout=0, reentrant=False, on_conflict="skip")


def make_lock(key):
    return Lock(key, max_hold=90, warn_after=80, timeout=20)


def make_locks(key):
    return zk_locks(f"{key}/b", f"{key}/a", f"{key}/c", timeout=20)


@pytest.mark.parametrize(
    ("work", "make", "functions", "every"),
    [
        (work_nested, make_lock, CALLER, 1),
        (work_acquire_around_with, make_lock, CALLER, 1),
        (work_several, make_locks, FUNCTIONS, 11),
        (work_acquire_around_with, make_locks, FUNCTIONS, 11),
        (work_release_of_hold, make_locks, [*functions_of(base, hold, Releasable), HeldLock.release_use], 1),
        (work_several_in_vain, make_locks, FUNCTIONS, 11),
        (work_skipped, make_skipping, CALLER, 1),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.parametrize(
    "stride", [pytest.param(197, id="some lines"), pytest.param(0, id="many lines", marks=pytest.mark.chaos)]
)
def test_an_exception_at_any_line_leaves_nothing(zoo, work, make, functions, every, stride):
    def check(key):
        gc.collect()
        eventually(lambda: all("/busy/" in path for path in zoo.contenders()), 2, "contenders are left")
        assert_none_listed()
        with make(key) as hold, zk_lock("c", timeout=20):
            assert hold is not None
        assert not blocks_of(SKIPPING)

    with zoo.hold_elsewhere("busy"):
        sweep(functions, work, check, stride or every, make=make, clean=forget_kept)


def work_read_in_write(key):
    rw = ReadWriteLock(key)
    with rw.write(), rw.read():
        pass


def work_write_released_first(key):
    rw = ReadWriteLock(key)
    reader, acquired = rw.read(), False
    try:
        with rw.write():
            assert reader.acquire()
            acquired = True
    finally:
        if acquired:
            reader.release()


def work_permit(key):
    with zk_lock(key, limit=2), zk_lock(key, limit=2):
        pass


def work_at_least(key):
    with zk_lock(key, min_hold=0.3), zk_lock(key):
        pass


@long_strides
@pytest.mark.parametrize(
    "work",
    [
        work_read_in_write,
        work_write_released_first,
        work_permit,
        work_at_least,
        work_linger,
        work_pass_on,
    ],
)
def test_an_exception_at_any_line_leaves_nothing_of_any_kind(zoo, work, stride):
    """The node of a minimum hold ends by itself, whatever line is struck."""

    def check(key):
        eventually(lambda: all(map(is_operator, zoo.names(f"{zoo.base}/{key}"))), 2, "something is left")
        assert_none_listed()

    sweep(FUNCTIONS, work, check, stride, clean=forget_kept)


# --- two exceptions in a row, such as a soft time limit and a shutdown ------------------------------------------------

FIRST, SECOND = 5, 3
"""From one first line to the next, and from one moment of the second exception to the next."""


def in_pairs(test):
    """Leave a sweep of pairs to `make chaos`. Of two exceptions, Python swallows one that strikes a weak reference."""
    unraisable = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    return unraisable(pytest.mark.timeout(1500)(pytest.mark.chaos(test)))


def work_acquire(key):
    work_acquire_around_with(zk_lock(key))


def work_all(key):
    with zk_locks(key, f"{key}/more"):
        pass


def work_block(key):
    work_nested(zk_lock(key))


def work_exit_stack(key):
    with ExitStack() as stack:
        stack.enter_context(zk_lock(key))


def work_in_vain(key):
    with contextlib.suppress(LockNotAcquired), zk_lock("busy", timeout=0.003):
        pass
    with contextlib.suppress(LockNotAcquired), zk_locks(key, "busy", timeout=0.003):
        pass


def work_skipped_in_vain(key):
    with SKIPPING as hold, SKIPPING as again:
        assert hold is again is None


def work_in_vain_with_linger(key):
    with contextlib.suppress(LockNotAcquired), zk_lock("busy", timeout=0.003, linger=60):
        pass


def assert_nothing_held(zoo, key):
    gc.collect()
    eventually(lambda: not [path for path in zoo.contenders() if f"/{key}/" in path], 2, "a contender is left")
    assert_none_listed()


@in_pairs
@pytest.mark.parametrize(
    "work", [work_block, work_acquire, work_exit_stack, work_all, work_read_in_write, work_linger, work_pass_on]
)
def test_a_pair_of_exceptions_leaves_nothing(zoo, work):
    def check(key):
        assert_nothing_held(zoo, key)
        with zk_lock(key, timeout=30):
            pass

    sweep(OF_PAIRS, work, check, FIRST, clean=forget_kept, second_stride=SECOND)


@in_pairs
@pytest.mark.parametrize("here", [False, True], ids=["held elsewhere", "held here"])
@pytest.mark.parametrize("work", [work_in_vain, work_in_vain_with_linger, work_skipped_in_vain])
def test_a_pair_of_exceptions_leaves_no_waiter(zoo, work, here):
    mutex = zk_lock("busy", linger=60)

    def check(key):
        gc.collect()
        zoo.wait_contenders("busy", 1, timeout=2)
        eventually(lambda: len(primitives.lingering_waiters(mutex)) <= here, 2, "a waiter is left")
        assert not blocks_of(SKIPPING)

    with holder(zoo, here):
        sweep(OF_PAIRS, work, check, FIRST, second_stride=SECOND)


@in_pairs
def test_a_pair_of_exceptions_leaves_no_transaction(zoo, ledger):
    def work(key):
        with zk_lock(key, atomic="ledger"):
            ledger.write("written")

    def check(key):
        assert_nothing_held(zoo, key)
        assert not ledger.connection.in_atomic_block

    sweep(OF_PAIRS, work, check, FIRST, clean=forget_kept, second_stride=SECOND)


@contextlib.contextmanager
def holder(zoo, here):
    """Have a thread of this process hold the lock "busy", or a client elsewhere."""
    if not here:
        with zoo.hold_elsewhere("busy"):
            yield
        return
    held, done = threading.Event(), threading.Event()

    def hold_it():
        with zk_lock("busy", linger=60):
            held.set()
            done.wait(1500)

    thread = BackgroundCall(hold_it)
    held.wait(10)
    try:
        yield
    finally:
        done.set()
        thread.result()
        with zk_lock("busy", linger=0.001):  # now it is idle for no longer than that
            pass
