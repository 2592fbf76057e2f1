"""
Tasks that book payments under a lock, once each however often they are delivered, and write down what happened.

The journal that they book in, and their history, are in the folder of their broker.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from billiard.pool import soft_timeout_sighandler
from celery.exceptions import Retry, SoftTimeLimitExceeded
from celery.worker.request import Request

from django_zklock import Hold, zk_lock, zk_locked
from django_zklock.core.execution import abort
from django_zklock.exceptions import LockLost, LockNotAcquired, StaleToken
from support.celeryapp import HOME, app
from support.chaos.history import Recorder
from support.chaos.journal import Journal

JOURNAL = "journal.sqlite3"
HISTORY = "history"
WORK = 0.01, 0.12  # seconds, the least and the most, before and after the booking
CHECK_EVERY = 0.01  # seconds
TIMEOUT = 20.0  # seconds that a task waits

_numbers = itertools.count(1)
_running: list[Execution] = []  # the one that runs in this process, if any


@functools.cache
def _recorder(pid: int) -> Recorder:
    return Recorder(Path(os.environ[HOME], HISTORY), process_name(pid))


def process_name(pid: int) -> str:
    """Return what a pool process is called in the history."""
    return f"pool-{pid}"


class Unguarded:
    """The hold of a task that has no lock: the task trusts it for a minute."""

    lease_remaining = 60.0

    def __init__(self) -> None:
        self.token = time.monotonic_ns()

    def check(self) -> None: ...


class Execution:
    """One run of a task: what the history says of it."""

    def __init__(self, key: str) -> None:
        self.key = key
        self._op = next(_numbers)
        self.was_granted = False
        self.write("invoke", timeout=None)

    @abort.shielded
    def write(self, kind: str, *, t: float | None = None, **fields: object) -> None:
        """Append an event."""
        _recorder(os.getpid()).write(kind, t=t, o="main", op=self._op, key=self.key, **fields)

    @abort.shielded
    def granted(self, hold: Hold | Unguarded) -> None:
        """Note that the lock was granted."""
        self.was_granted = True
        before = time.monotonic()  # first: a pause in between makes the claim too modest, never too bold
        self.write("granted", token=hold.token, until=before + hold.lease_remaining)

    def check(self, hold: Hold | Unguarded) -> None:
        """Ask whether the lock is still held. Raises LockLost."""
        before = time.monotonic()
        hold.check()
        self.write("valid", t=before, until=before + hold.lease_remaining)

    def over(self, error: BaseException | None) -> None:
        """Note how it ended."""
        if self.was_granted:
            self.write("release_failed" if isinstance(error, LockLost) else "released", error=repr(error))
            return
        refusal = error.__cause__ if isinstance(error, Retry) else error
        definite = isinstance(refusal, LockNotAcquired)
        self.write("refused", error=type(refusal).__name__, definite=definite)


def recorded(locked: Callable[[str, str], str]) -> Callable[[str, str], str]:
    """
    Have the history say how each run of a locked function began and ended.

    A soft time limit strikes only inside. Celery itself does not survive one while it stores a result on Redis: a
    transaction that was begun and not ended swallows all later results of the process.
    """

    @functools.wraps(locked)
    def run(key: str, ref: str) -> str:
        try:
            signal.signal(signal.SIGUSR1, soft_timeout_sighandler)
            return noted(key, ref)
        finally:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    def noted(key: str, ref: str) -> str:
        execution = Execution(key)
        _running.append(execution)
        try:
            result = locked(key, ref)
        except BaseException as error:
            execution.over(error)
            raise
        finally:
            _running.remove(execution)
        execution.over(None)
        return result

    return run


def book(key: str, ref: str) -> str:
    """Book a payment unless it is booked, with time for others between reading and writing; return which it was."""
    execution = _running[-1]
    with zk_lock(key) as hold:  # the one of the decorator, once more
        return _book_with(execution, hold, ref)


def _book_with(execution: Execution, hold: Hold | Unguarded, ref: str) -> str:
    try:
        execution.granted(hold)
        with contextlib.closing(Journal(Path(os.environ[HOME], JOURNAL))) as journal:
            return _book(execution, hold, journal, ref)
    except LockLost as error:
        if execution.was_granted:  # an abort may come before the first line
            execution.write("lost", reason=str(error))
        raise
    finally:
        if execution.was_granted:
            execution.write("release")


def _book(execution: Execution, hold: Hold | Unguarded, journal: Journal, ref: str) -> str:
    value = journal.claim(execution.key, hold.token)
    execution.write("claimed", token=hold.token, ok=value is not None)
    if value is None:
        raise StaleToken
    if journal.is_done(ref):
        return "was booked"
    _work(execution, hold)
    about = {"token": hold.token, "value": value + 1}
    execution.write("writing", **about)
    ok = journal.book(execution.key, ref, hold.token, value + 1)
    execution.write("fenced", ok=ok, **about)
    if not ok:
        raise StaleToken
    _work(execution, hold)  # for a kill that finds the work done, and the message not acknowledged
    return "booked"


def _work(execution: Execution, hold: Hold | Unguarded) -> None:
    until = time.monotonic() + random.uniform(*WORK)
    while time.monotonic() < until:
        execution.check(hold)
        time.sleep(CHECK_EVERY)


SPAWN = "PAYMENTS_SPAWN"
"""Environment variable: the processes of the pool are spawned, so that none of its tasks waits in the main process."""

if SPAWN in os.environ:
    app.conf.worker_pool_start_method = "spawn"


class NotedRequest(Request):
    """A message of a task; in the main process of a worker."""

    def on_timeout(self, soft: bool, timeout: float) -> Any:
        """Note that the hard time limit kills a process, just before it does."""
        if not soft and self.worker_pid:
            target = process_name(int(self.worker_pid))
            _recorder(os.getpid()).write("nemesis", what="kill", target=target, given_back=True)
        return super().on_timeout(soft, timeout)


# Delivered again when its process is killed; done again, without end, when it lost its lock.
SURE: dict[str, Any] = {
    "acks_late": True,
    "reject_on_worker_lost": True,
    "autoretry_for": (LockLost, StaleToken, SoftTimeLimitExceeded),
    "max_retries": None,
    "Request": NotedRequest,
    "default_retry_delay": 0,
}


@app.task(name="pay", **SURE)
@recorded
@zk_locked("{key}")
def pay(key: str, ref: str) -> str:
    """Book a payment; wait while the lock is busy."""
    return book(key, ref)


@app.task(name="pay_again", **SURE)
@recorded
@zk_locked("{key}", on_conflict="retry")
def pay_again(key: str, ref: str) -> str:
    """Book a payment; come again while the lock is busy."""
    return book(key, ref)


@app.task(name="pay_patiently", **SURE)
@recorded
@zk_locked("{key}", timeout=TIMEOUT, on_conflict="retry")
def pay_patiently(key: str, ref: str) -> str:
    """Book a payment; wait while the lock is busy, and come again after a while."""
    return book(key, ref)


@app.task(name="pay_unguarded", **SURE)
@recorded
def pay_unguarded(key: str, ref: str) -> str:
    """Book a payment without a lock, to see that a test would tell."""
    return _book_with(_running[-1], Unguarded(), ref)
