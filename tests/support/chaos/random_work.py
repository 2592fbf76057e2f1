"""Random work under locks. Neither a signal nor an abort of a lock strikes in the few lines that write the history."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from django_zklock.core.execution import abort
from support.chaos.history import Recorder
from support.chaos.holds import READ, SEMAPHORE, WRITE
from support.chaos.subjects import Lost, Refused, ZkLockSubject

WORK = 0.02  # seconds at most, mostly
CHECK_EVERY = 0.005  # seconds, of work
LONG_SHARE = 0.05  # of all work
LONG = 10.0  # seconds at most: longer than a session, so that the lock can be granted to another meanwhile
ASK_AGAIN = 0.001  # seconds; a strike that comes at a bad moment comes again
READS_INSIDE = 0.3  # of all writers
UPGRADES = 0.1  # of all readers: tried in vain
REENTERS = 0.1  # of all others

Wish: TypeAlias = Mapping[str, Any]  # the options that a key is taken with, `kind` and `limit` among them

READ_WRITE = [{"kind": READ}, {"kind": READ}, {"kind": READ}, {"kind": WRITE}]
SHARED = [{"limit": 2}]
LINGERING = [{}, {"linger": 0.02}, {"linger": 0.3}, {"linger": 0.3}]
MIXED = [{}, {"kind": READ}, {"kind": READ}, {"kind": WRITE}, *SHARED, *SHARED]


def wanted(options):
    if options.get("limit"):
        return {"kind": SEMAPHORE, "limit": options["limit"]}
    return {name: options[name] for name in ("kind", "linger") if name in options}


class Struck(Exception):  # as Celery's SoftTimeLimitExceeded
    """The handler of a signal raises this in the main thread."""


_exposed = [True]  # whether the main thread is where it may be struck


def on_alarm(number, frame):
    if not _exposed[0]:
        signal.setitimer(signal.ITIMER_REAL, ASK_AGAIN)
        return
    raise Struck


def expose(exposed):
    if threading.current_thread() is threading.main_thread():
        _exposed[0] = exposed


@dataclass
class RandomWork:
    lock: ZkLockSubject
    recorder: Recorder
    ops: Iterator[int]
    keys: Mapping[str, Sequence[Wish]]
    chance: random.Random

    def once(self):
        key = self.chance.choice(list(self.keys))
        wish = self.chance.choice(self.keys[key])
        timeout = self.chance.choice([0, 0.5, 2, 5, 10])
        turn = _Turn(self, key, wish, next(self.ops))
        expose(False)
        turn.note("invoke", timeout=timeout, **wanted(wish))
        try:
            expose(True)
            with self.lock.block(key, timeout, dict(wish)) as held:
                expose(False)
                turn.run(held, self._seconds())
                expose(True)
        except (Refused, Lost, Struck) as error:
            expose(False)
            turn.refused(error)
            if isinstance(error, Refused):
                time.sleep(self.chance.uniform(0, 0.05))
        finally:
            expose(True)

    def _seconds(self):
        """Return mostly a short time, so that much is tried; sometimes a long one, so that faults strike the work."""
        if self.chance.random() < LONG_SHARE:
            return self.chance.uniform(WORK, LONG)
        return self.chance.uniform(0, WORK)


class _Turn:
    def __init__(self, random_work, key, wish, op):
        self._op = op
        self._wish = wish
        self._kind = wanted(wish).get("kind")
        self._random_work = random_work
        self._key = key
        self._written = set()

    @abort.shielded
    def note(self, kind, /, *, t=None, **about):
        written = self._random_work.recorder.write(kind, t=t, op=self._op, key=self._key, **about)
        self._written.add(kind)
        return written

    def run(self, held, seconds):
        self.note("granted", token=held.token, until=held.until())
        try:
            self._wait(held, seconds)
            if self._kind == READ and self._random_work.chance.random() < UPGRADES:
                self._try_to_write()
            elif self._kind == WRITE and self._random_work.chance.random() < READS_INSIDE:
                with self._random_work.lock.block(self._key, 0, {**self._wish, "kind": READ}) as inner:
                    assert inner.token == held.token, "another token for the writer's own reader"
            elif self._random_work.chance.random() < REENTERS:
                with self._random_work.lock.block(self._key, 0, dict(self._wish)) as inner:
                    assert inner.token == held.token, "another token for the same hold"
            self._check(held)
        except BaseException as error:
            expose(False)
            # Before the block gives the lock back: else the next holder would seem to have been too early.
            self.note("release" if isinstance(error, Struck) else "lost", reason=str(error))
            raise
        self.note("release")

    def _try_to_write(self):
        """Request the write side as a reader: it must be refused at once, or it would wait for itself."""
        try:
            with self._random_work.lock.block(self._key, None, {"kind": WRITE}):
                raise AssertionError("a reader was granted the write side")
        except Refused as error:
            assert str(error) == "LockUpgradeRefused", str(error)

    def _wait(self, held, seconds):
        deadline = time.monotonic() + seconds
        self._check(held)
        while time.monotonic() < deadline:
            expose(True)
            time.sleep(CHECK_EVERY)
            expose(False)
            self._check(held)

    def _check(self, held):
        before = time.monotonic()
        held.check()
        self.note("valid", t=before, until=held.until())

    def refused(self, error):
        """The block was not entered, or it is over and its release failed."""
        if "granted" not in self._written:
            self.note("refused", error=str(error))
