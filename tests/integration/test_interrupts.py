"""Exceptions that strike from outside (soft time limits, Ctrl-C) leave no contender, wherever they strike."""

from __future__ import annotations

import ctypes
import gc
import random
import signal
import threading
import time
import warnings
from collections.abc import Callable

import pytest
from support.strike import LineStrike, Struck, alarm
from support.zoo import Zoo, eventually

from django_zklock.locks import hold as holds
from django_zklock.locks import lock as lock_module
from django_zklock.locks.lock import Lock

pytestmark = [pytest.mark.zookeeper, pytest.mark.filterwarnings("ignore:.*was dropped:ResourceWarning")]


def package_functions() -> list[Callable[..., object]]:
    """All functions that run in the caller's thread between `with` and ZooKeeper, and back."""
    found: list[Callable[..., object]] = []
    for module in (
        lock_module,
        holds,
        *(__import__(f"django_zklock.locks.{name}", fromlist=["x"]) for name in ("attempt", "waiting", "guard")),
    ):
        for thing in vars(module).values():
            if getattr(thing, "__module__", "") != module.__name__:
                continue
            members = vars(thing).values() if isinstance(thing, type) else [thing]
            for member in members:
                member = getattr(member, "fget", member)
                if hasattr(member, "__code__") and member.__name__ != "__del__":
                    found.append(member)
    return found


def assert_nothing_held(zoo: Zoo) -> None:
    gc.collect()
    zoo.assert_empty()
    assert not holds.live_holds._kept
    assert not list(holds.live_holds._blocks.values())
    assert not holds.live_holds._guards


def work_with(lock: Lock) -> None:
    with lock:
        pass


def work_nested(lock: Lock) -> None:
    with lock, lock:
        pass


def work_acquire(lock: Lock) -> None:
    assert lock.acquire()
    lock.release()


def work_acquire_around_with(lock: Lock) -> None:
    assert lock.acquire()
    try:
        with lock:
            pass
    finally:
        lock.release()


@pytest.mark.parametrize("work", [work_with, work_nested, work_acquire_around_with])
def test_an_exception_at_any_line_leaves_nothing(zoo: Zoo, work: Callable[[Lock], None]) -> None:
    """Whatever line of the package the caller is struck in, no contender and no listed hold is left behind."""
    functions = package_functions()
    work(Lock("warm/up"))
    at, leaks = 0, []
    while True:
        key = f"sweep/{at}"
        strike = LineStrike(functions, at)
        try:
            with strike:
                work(Lock(key))
        except Struck:
            pass
        if not strike.where:
            break
        try:
            assert_nothing_held(zoo)
            with Lock(key, timeout=2):
                pass
        except Exception as error:
            leaks.append((at, strike.where, repr(error)))
            holds.live_holds._kept.clear()
            gc.collect()
        at += 1
    assert at > 40
    assert not leaks, leaks[0]
