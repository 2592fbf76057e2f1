"""Exceptions that strike from outside leave nothing of any kind of lock, nor of several locks, wherever they strike."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from support.strike import (
    assert_none_listed,
    functions_of,
    long_strides,
    sweep,
    work_acquire_around_with,
    work_hand_over,
    work_linger,
)
from support.zoo import Zoo, eventually

from django_zklock import Lock, ReadWriteLock, zk_lock, zk_locks
from django_zklock.core.execution import owner, waiters
from django_zklock.core.locks import acquisition, guard, held, lingering
from django_zklock.core.locks.held import held_locks
from django_zklock.core.protocol.contender import Contender
from django_zklock.core.queue.operator_hold import is_operator
from django_zklock.exceptions import LockBusy
from django_zklock.locks import base, hold, lock, multi
from django_zklock.locks.multi import MultiLock

pytestmark = [
    pytest.mark.zookeeper,
    pytest.mark.filterwarnings("ignore:.*was dropped:ResourceWarning"),
    pytest.mark.timeout(400),  # hundreds of lines, each struck once in a traced interpreter
]

CALLER = functions_of(lock, base, hold, held, guard, acquisition, waiters, owner)
"""All functions that run in the caller's thread between `with` and ZooKeeper, and back."""
FUNCTIONS = [*CALLER, *functions_of(lingering, multi), Contender.downgrade, Contender.abandon]


# --- one lock object, used again after the exception ------------------------------------------------------------------


def work_nested(mutex: Lock) -> None:
    with mutex, mutex:
        pass


def work_several(locks: MultiLock) -> None:
    with locks, ExitStack() as stack:
        stack.enter_context(zk_locks(locks.locks[1], "c"))


def work_several_in_vain(locks: MultiLock) -> None:
    with contextlib.suppress(LockBusy), zk_locks("busy", *locks.locks, "c", timeout=0):
        pass
    assert zk_locks("busy", *locks.locks).acquire(blocking=False) is None


def make_lock(key: str) -> Lock:
    return Lock(key, max_hold=90, warn_after=80, timeout=20)


def make_locks(key: str) -> MultiLock:
    return zk_locks(f"{key}/b", f"{key}/a", timeout=20)


@pytest.mark.parametrize(
    ("work", "make", "functions", "every"),
    [
        (work_nested, make_lock, CALLER, 1),
        (work_acquire_around_with, make_lock, CALLER, 1),
        (work_several, make_locks, FUNCTIONS, 11),
        (work_acquire_around_with, make_locks, FUNCTIONS, 11),
        (work_several_in_vain, make_locks, FUNCTIONS, 11),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.parametrize(
    "stride", [pytest.param(97, id="some lines"), pytest.param(0, id="many lines", marks=pytest.mark.chaos)]
)
def test_an_exception_at_any_line_leaves_nothing(
    zoo: Zoo, work: Callable[[Any], None], make: Callable[[str], Any], functions: list[Any], every: int, stride: int
) -> None:
    """No contender and no listed hold is left, whatever line of the package is struck."""

    def check(key: str) -> None:
        gc.collect()
        eventually(lambda: all("/busy/" in path for path in zoo.contenders()), 2, "contenders are left")
        assert_none_listed()
        with make(key), zk_lock("c", timeout=20):
            pass

    with zoo.hold_elsewhere("busy"):
        sweep(functions, work, check, stride or every, make=make, clean=held_locks._kept.clear)


# --- all kinds --------------------------------------------------------------------------------------------------------


def work_read_in_write(key: str) -> None:
    rw = ReadWriteLock(key)
    with rw.write(), rw.read():
        pass


def work_write_released_first(key: str) -> None:
    rw = ReadWriteLock(key)
    reader, acquired = rw.read(), False
    try:
        with rw.write():
            assert reader.acquire()
            acquired = True
    finally:
        if acquired:
            reader.release()


def work_downgrade(key: str) -> None:
    rw = ReadWriteLock(key)
    with rw.write() as held:
        held.downgrade()
        with rw.read():
            pass


def work_permit(key: str) -> None:
    with zk_lock(key, limit=2), zk_lock(key, limit=2):
        pass


def work_at_least(key: str) -> None:
    with zk_lock(key, min_hold=0.3), zk_lock(key):
        pass


def is_left(zoo: Zoo, key: str) -> bool:
    """Tell whether anything of this session is left of a key."""
    return any(name.startswith("!") or not is_operator(name) for name in zoo.names(f"{zoo.base}/{key}"))


@long_strides
@pytest.mark.parametrize(
    "work",
    [
        work_read_in_write,
        work_write_released_first,
        work_downgrade,
        work_permit,
        work_at_least,
        work_linger,
        work_hand_over,
    ],
)
def test_an_exception_at_any_line_leaves_nothing_of_any_kind(
    zoo: Zoo, work: Callable[[str], None], stride: int
) -> None:
    """The node of a minimum hold ends by itself, whatever line is struck."""

    def check(key: str) -> None:
        eventually(lambda: not is_left(zoo, key), 2, "something is left")
        assert_none_listed()

    sweep(FUNCTIONS, work, check, stride, clean=held_locks._kept.clear)
