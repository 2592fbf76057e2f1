"""Exceptions that strike from outside leave none of several locks taken, wherever they strike."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from django.db import connections
from support.ledger import Ledger
from support.strike import (
    LineStrike,
    Struck,
    assert_none_listed,
    functions_of,
    long_strides,
    sweep,
)
from support.zoo import Zoo, eventually

from django_zklock.exceptions import LockBusy, LockNotAcquired
from django_zklock.execution import transactions
from django_zklock.locks import acquisition, base, held, hold, lock, multi
from django_zklock.locks.held import held_locks
from django_zklock.locks.lock import zk_lock
from django_zklock.locks.multi import MultiLock, zk_locks

pytestmark = [
    pytest.mark.zookeeper,
    pytest.mark.filterwarnings("ignore:.*was dropped:ResourceWarning"),
    pytest.mark.timeout(900),  # hundreds of lines, each struck once in a traced interpreter
]

FUNCTIONS = functions_of(multi, base, hold, lock, held, acquisition)


def assert_nothing_held(zoo: Zoo) -> None:
    gc.collect()
    eventually(lambda: all("/busy/" in path for path in zoo.contenders()), 2, "contenders left behind")
    assert_none_listed()


def work_block(locks: MultiLock) -> None:
    with locks, ExitStack() as stack:
        stack.enter_context(zk_locks(locks.locks[1], "c"))


def work_acquire(locks: MultiLock) -> None:
    assert locks.acquire()
    try:
        with locks:
            pass
    finally:
        locks.release()


def work_in_vain(locks: MultiLock) -> None:
    with contextlib.suppress(LockBusy), zk_locks("busy", *locks.locks, "c", timeout=0):
        pass
    assert zk_locks("busy", *locks.locks).acquire(blocking=False) is None


@long_strides
@pytest.mark.parametrize("work", [work_block, work_acquire, work_in_vain])
def test_an_exception_at_any_line_leaves_none_of_several_locks(
    zoo: Zoo, work: Callable[[MultiLock], None], stride: int
) -> None:
    """No contender and no listed hold is left, whatever line of the acquisition or of the release is struck."""
    with zoo.hold_elsewhere("busy"):
        sweep_all(zoo, work, stride, {})


@long_strides
def test_an_exception_at_any_line_inside_several_locks_leaves_no_transaction(
    zoo: Zoo, ledger: Ledger, stride: int
) -> None:
    """The one that is begun inside all locks ends before them."""

    def check() -> None:
        connection = connections["ledger"]
        assert not connection.in_atomic_block

    with zoo.hold_elsewhere("busy"):
        sweep_all(zoo, work_simple, stride, {"atomic": "ledger"}, check)


@pytest.mark.chaos
@pytest.mark.parametrize("timeout", [0, 0.05])
def test_an_exception_at_any_line_leaves_no_callback_on_a_held_lock(zoo: Zoo, timeout: float) -> None:
    """Each attempt for another one listens to its loss; to one that is held for long there would be ever more."""

    def count() -> None:
        counts.append(len(outer._grant._observers))

    def observers() -> int:
        before = len(counts)
        outer._grant.session.post(count)
        eventually(lambda: len(counts) > before)
        return counts[-1]

    counts: list[int] = []
    functions = functions_of(acquisition)
    with zoo.hold_elsewhere("busy"), zk_lock("a") as outer:
        before = observers()
        at = 0
        leaks = []
        while True:
            strike = LineStrike(functions, at)
            with contextlib.suppress(Struck, LockNotAcquired), strike, zk_locks("a", "busy", timeout=timeout):
                pass
            if not strike.where:
                break
            gc.collect()
            if observers() != before:
                leaks.append(strike.where)
                before = observers()
            at += 1
        assert at > 10
    assert not leaks
    assert_nothing_held(zoo)


def work_simple(locks: MultiLock) -> None:
    with locks:
        pass


def sweep_all(
    zoo: Zoo,
    work: Callable[[MultiLock], None],
    stride: int,
    options: dict[str, Any],
    check: Callable[[], None] = lambda: None,
) -> None:
    def check_all(key: str) -> None:
        check()
        assert_nothing_held(zoo)
        with zk_locks(f"{key}/b", f"{key}/a", "c", timeout=20):
            pass

    sweep(
        FUNCTIONS + (functions_of(transactions) if options else []),
        work,
        check_all,
        stride,
        make=lambda key: zk_locks(f"{key}/b", f"{key}/a", **options),
        clean=held_locks._kept.clear,
    )
