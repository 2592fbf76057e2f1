"""Two exceptions in a row, such as a soft time limit and a shutdown, leave nothing behind, wherever they strike."""

from __future__ import annotations

import contextlib
import gc
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import FrameType

import pytest
from support import primitives
from support.faults import BackgroundCall
from support.ledger import Ledger
from support.primitives import Taker
from support.strike import (
    Struck,
    assert_none_listed,
    functions_of,
    sweep,
    work_acquire_around_with,
    work_hand_over,
    work_linger,
)
from support.zoo import Zoo, eventually

from django_zklock import ReadWriteLock, zk_lock, zk_locks
from django_zklock.core.execution import owner, waiters
from django_zklock.core.execution.abort import CleanupOnError, finalizers_of
from django_zklock.core.locks import acquisition, guard, held, lingering
from django_zklock.core.locks.held import held_locks
from django_zklock.exceptions import LockNotAcquired
from django_zklock.locks import base, hold, lock, multi

pytestmark = [
    pytest.mark.zookeeper,
    pytest.mark.filterwarnings("ignore:.*was dropped:ResourceWarning"),
    # Of two exceptions, Python swallows one that strikes a weak reference's call.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.timeout(1500),
]

LOCKS = lock, base, hold, held, guard, acquisition, multi, lingering
FUNCTIONS = functions_of(*LOCKS, waiters, owner, CleanupOnError, finalizers_of)

strides = pytest.mark.parametrize(
    ("first", "second"),
    [pytest.param(151, 47, id="some pairs"), pytest.param(5, 3, id="many pairs", marks=pytest.mark.chaos)],
)
"""From one first line to the next, and from one moment of the second exception to the next."""


def block(key: str) -> None:
    mutex = zk_lock(key)
    with mutex, mutex:
        pass


def acquire(key: str) -> None:
    work_acquire_around_with(zk_lock(key))


def exit_stack(key: str) -> None:
    with ExitStack() as stack:
        stack.enter_context(zk_lock(key))


def several(key: str) -> None:
    with zk_locks(key, f"{key}/more"):
        pass


def readers(key: str) -> None:
    both = ReadWriteLock(key)
    with both.write(), both.read():
        pass


def in_vain(key: str) -> None:
    with contextlib.suppress(LockNotAcquired), zk_lock("busy", timeout=0.003):
        pass
    with contextlib.suppress(LockNotAcquired), zk_locks(key, "busy", timeout=0.003):
        pass


def in_vain_with_linger(key: str) -> None:
    with contextlib.suppress(LockNotAcquired), zk_lock("busy", timeout=0.003, linger=60):
        pass


def assert_nothing_held(zoo: Zoo, key: str) -> None:
    gc.collect()
    eventually(lambda: not [path for path in zoo.contenders() if f"/{key}/" in path], 2, "a contender is left")
    assert_none_listed()


@strides
@pytest.mark.parametrize("work", [block, acquire, exit_stack, several, readers, work_linger, work_hand_over])
def test_a_pair_of_exceptions_leaves_nothing(zoo: Zoo, work: Callable[[str], None], first: int, second: int) -> None:
    """Nothing is held and the lock is free, whatever two moments of acquire, release and hand-over are struck."""

    def check(key: str) -> None:
        assert_nothing_held(zoo, key)
        with zk_lock(key, timeout=5):
            pass

    sweep(FUNCTIONS, work, check, first, clean=held_locks._kept.clear, second_stride=second)


@strides
@pytest.mark.parametrize("here", [False, True], ids=["held elsewhere", "held here"])
@pytest.mark.parametrize("work", [in_vain, in_vain_with_linger])
def test_a_pair_of_exceptions_leaves_no_waiter(
    zoo: Zoo, work: Callable[[str], None], here: bool, first: int, second: int
) -> None:
    """The queue has its holder alone, whatever two moments of a wait that fails are struck."""
    mutex = zk_lock("busy", linger=60)

    def check(key: str) -> None:
        gc.collect()
        zoo.wait_contenders("busy", 1, timeout=2)
        eventually(lambda: len(primitives.local_waiters(mutex)) <= here, 2, "a waiter is left")

    with holder(zoo, here):
        sweep(FUNCTIONS, work, check, first, second_stride=second)


@strides
def test_a_pair_of_exceptions_leaves_no_transaction(zoo: Zoo, ledger: Ledger, first: int, second: int) -> None:
    """The transaction that is begun inside the lock is rolled back or committed before the release."""

    def work(key: str) -> None:
        with zk_lock(key, atomic="ledger"):
            ledger.write("written")

    def check(key: str) -> None:
        assert_nothing_held(zoo, key)
        assert not ledger.connection.in_atomic_block

    sweep(FUNCTIONS, work, check, first, clean=held_locks._kept.clear, second_stride=second)


@pytest.mark.parametrize("linger_for", [0, 60])
@pytest.mark.parametrize("rounds", [5, pytest.param(200, marks=pytest.mark.chaos)])
def test_two_signals_in_a_wait_leave_no_contender(zoo: Zoo, linger_for: float, rounds: int) -> None:
    """The handlers of both signals raise, one after the other, as a soft time limit and a shutdown do."""
    mutex = zk_lock("k", linger=linger_for, timeout=30)

    def strike() -> None:
        eventually(lambda: len(primitives.local_waiters(mutex)) == 2 if linger_for else len(zoo.children("k")) == 2)
        signal.pthread_kill(main, signal.SIGUSR1)
        signal.pthread_kill(main, signal.SIGUSR2)

    main = threading.main_thread().ident or 0
    for _ in range(rounds):
        holder = Taker(mutex)
        holder.wait_granted()
        with raising(signal.SIGUSR1, signal.SIGUSR2), contextlib.suppress(Struck):
            striker = BackgroundCall(strike)
            with contextlib.suppress(Struck), mutex:
                pass
            striker.result()
        holder.go()
        with zk_lock("k", linger=0.001, timeout=5):
            pass


@contextlib.contextmanager
def holder(zoo: Zoo, here: bool) -> Iterator[None]:
    """Have a thread of this process hold the lock "busy", or a client elsewhere."""
    if not here:
        with zoo.hold_elsewhere("busy"):
            yield
        return
    held, done = threading.Event(), threading.Event()

    def hold_it() -> None:
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


@contextlib.contextmanager
def raising(*numbers: int) -> Iterator[None]:
    """Have the handlers of these signals raise."""

    def handler(number: int, frame: FrameType | None) -> None:
        raise Struck(number)

    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
