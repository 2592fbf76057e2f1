"""Work under a lock, ways to make it lose the lock, and others that look at it or do not get it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from django_zklock.core.locks.held import held_locks
from django_zklock.inspection import look_at
from django_zklock.locks.hold import held_of
from support.faults import BackgroundCall

Run = Callable[..., Any]
Reports = list[dict[str, Any]]
"""The events of a signal: the fixture `reports` collects them."""


@dataclass(frozen=True)
class FixedFence:
    """A fence of a lock that grants everybody."""

    token: int
    key: str = "k"


def acquired(lock, **options):
    """Acquire a lock that is free, or the caller's; return the hold."""
    hold = lock.acquire(**{"timeout": 10, **options})
    assert hold is not None
    return hold


def assert_refused(lock, error, match=None):
    """Return the error of a block that does not get the lock."""
    with pytest.raises(error, match=match) as caught, lock:
        raise AssertionError("it has the lock")
    return caught.value


def acquire_until(is_enough, lock):
    """Wait for the lock in the main thread, and give up as by a signal when `is_enough()` is true. Return the hold."""
    waits, ended = [True], threading.Event()

    def give_up(*_):
        if waits:
            raise GaveUp

    def watch():
        while not ended.wait(0.01):
            if is_enough():
                signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
                return

    before = signal.signal(signal.SIGUSR1, give_up)
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        return lock.acquire()
    except GaveUp:
        return None
    finally:
        waits.clear()
        ended.set()
        watcher.join()
        signal.signal(signal.SIGUSR1, before)


class GaveUp(Exception): ...


def guards():
    """Return what stops owners inside of blocks; none is left after them."""
    return held_locks._guards


def forget_kept():
    """Forget the locks that a transaction keeps: an exception has ended both."""
    held_locks._kept.clear()


def blocks_of(lock):
    """Return the blocks that this lock object knows: none after their ends, or it would keep their owners."""
    return lock._blocks


def seen(key):
    """Look at a lock that somebody holds."""
    info = look_at(key, reply_timeout=30)
    assert info is not None
    return info


def lose(hold):
    """Lose one hold at once, as the protocol's thread does when the node is found deleted."""
    grant = held_of(hold).grant
    grant.session.post(grant.lose, "the test took it away")


def lose_later(hold, delay):
    grant = held_of(hold).grant
    session = grant.session
    session.post(lambda: session.loop.call_later(delay, lambda: grant.lose("the test took it away")))


def compute(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(100))


def sleep_in_pieces(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)


def run_in_thread(call):
    return BackgroundCall(call).result(40)


in_each_thread = pytest.mark.parametrize("run", [lambda call: call(), run_in_thread], ids=["main thread", "thread"])
"""Test `run(call)` in the main thread and in another one. An abort strikes each of them in a way of its own."""
