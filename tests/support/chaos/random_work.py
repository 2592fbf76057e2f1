"""
Random work under locks, for a soak: acquire, increment a counter of the store, release.

A reader reads the counter twice, and so does a writer that became a reader. The holder of a permit only works.

A signal may strike in the lock and in the work, as in a user's program. It does not strike in the few lines that write
the history and the store: otherwise the history would not say what happened. `abort.shielded` keeps the lock's own
aborts out of these lines, too.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeAlias

from django_zklock.core.execution import abort
from support.chaos.history import Recorder
from support.chaos.kinds import EXCLUSIVE, LOCK, READ, SEMAPHORE, WRITE
from support.chaos.store import Store
from support.chaos.subjects import Held, Lost, Refused, Subject

WORK = 0.02  # seconds at most, mostly
CHECK_EVERY = 0.005  # seconds, of work
LONG_SHARE = 0.05  # of all work
LONG = 10.0  # seconds at most: longer than a session, so that the lock can be granted to another meanwhile
ASK_AGAIN = 0.001  # seconds; a strike that comes at a bad moment comes again
DOWNGRADES = 0.3  # of all writers
UPGRADES = 0.1  # of all readers: tried in vain

Wish: TypeAlias = Mapping[str, Any]
"""The options that a key is taken with, `kind` and `limit` among them."""


PERMITS = 2
READ_WRITE: Final[list[Wish]] = [{"kind": READ}, {"kind": READ}, {"kind": READ}, {"kind": WRITE}]
SHARED: Final[list[Wish]] = [{"limit": PERMITS}]
LINGERING: Final[list[Wish]] = [{}, {"linger": 0.02}, {"linger": 0.3}, {"linger": 0.3}]
MIXED: Final[list[Wish]] = [{}, {"kind": READ}, {"kind": READ}, {"kind": WRITE}, *SHARED, *SHARED]


def wanted(options: Wish) -> dict[str, Any]:
    """Return what a history says of these options."""
    if options.get("limit"):
        return {"kind": SEMAPHORE, "limit": options["limit"]}
    return {name: options[name] for name in ("kind", "linger") if name in options}


class Struck(Exception):  # as Celery's SoftTimeLimitExceeded
    """The handler of a signal raises this in the main thread."""


_exposed = [True]  # whether the main thread is where it may be struck


def on_alarm(number: int, frame: FrameType | None) -> None:
    """Strike, now or as soon as it is allowed."""
    if not _exposed[0]:
        signal.setitimer(signal.ITIMER_REAL, ASK_AGAIN)
        return
    raise Struck


def expose(exposed: bool) -> None:
    """Set whether the caller may be struck now. Signals strike the main thread only."""
    if threading.current_thread() is threading.main_thread():
        _exposed[0] = exposed


class RandomWork:
    """One owner's work."""

    def __init__(
        self,
        lock: Subject,
        recorder: Recorder,
        store: Path,
        ops: Iterator[int],
        keys: Mapping[str, Sequence[Wish]],
        chance: random.Random,
    ) -> None:
        self.store = Store(store)
        self.counts = {"granted": 0, "refused": 0, "lost": 0, "stale": 0, "struck": 0, "downgraded": 0}
        self._lock = lock
        self._recorder = recorder
        self._ops = ops
        self._keys = keys
        self._chance = chance

    def once(self) -> None:
        """Take a lock and work under it, once."""
        key = self._chance.choice(list(self._keys))
        wish = self._chance.choice(self._keys[key])
        timeout = self._chance.choice([0, 0.5, 2, 5, 10])
        turn = _Turn(self, key, wish, next(self._ops))
        expose(False)
        self._recorder.write("invoke", op=turn.op, key=key, timeout=timeout, **wanted(wish))
        try:
            expose(True)
            with self._lock.block(key, timeout, dict(wish)) as held:
                expose(False)
                turn.run(held, self._seconds())
                expose(True)
            expose(False)
            turn.end("released")
        except Refused as error:
            expose(False)
            self.counts["refused"] += 1
            turn.refused(str(error))
            time.sleep(self._chance.uniform(0, 0.05))
        except Lost as error:
            expose(False)
            turn.lost(str(error))
            turn.end("release_failed", error=str(error))
        except Struck:
            expose(False)
            self.counts["struck"] += 1
            turn.struck()
        finally:
            expose(True)

    def by_chance(self, share: float) -> bool:
        """Return True in this share of all turns."""
        return self._chance.random() < share

    def _seconds(self) -> float:
        """Return mostly a short time, so that much is tried; sometimes a long one, so that faults strike the work."""
        if self._chance.random() < LONG_SHARE:
            return self._chance.uniform(WORK, LONG)
        return self._chance.uniform(0, WORK)


class _Turn:
    """One acquisition, and the events of it that were written."""

    def __init__(self, random_work: RandomWork, key: str, wish: Wish, op: int) -> None:
        self.op = op
        self._wish = wish
        self._kind = wanted(wish).get("kind", LOCK)
        self._random_work = random_work
        self._key = key
        self._written: set[str] = set()
        self._valid = 0.0  # when the lock was last known to be held

    @abort.shielded
    def note(self, kind: str, *, t: float | None = None, **about: Any) -> float:
        """Write an event of this acquisition."""
        written = self._random_work._recorder.write(kind, t=t, op=self.op, key=self._key, **about)
        self._written.add(kind)
        return written

    @property
    def _claims(self) -> bool:
        """Whether it has written a grant, and no loss or release yet."""
        return "granted" in self._written and not self._written & {"lost", "release"}

    def run(self, held: Held, seconds: float) -> None:
        """Do the work, inside the block. A signal strikes it only where it is exposed."""
        random_work = self._random_work
        self._valid = self.note("granted", token=held.token, until=held.until())
        random_work.counts["granted"] += 1
        try:
            if self._kind in EXCLUSIVE:
                self._increment(held, seconds)
                if self._kind == WRITE and random_work.by_chance(DOWNGRADES):
                    self._downgrade(held)
                    self._read(held, seconds)
            elif self._kind == READ:
                if self._claim(held) is not None:  # else a newer holder may write
                    self._read(held, seconds)
                if random_work.by_chance(UPGRADES):
                    self._try_to_write()
            else:
                self._wait(held, seconds)
                if random_work.by_chance(0.1):
                    self._reenter(held, self._wish)
        except BaseException as error:
            expose(False)
            if isinstance(error, Struck):
                self.note("release")
            else:
                self.lost("the work was stopped")
            raise
        self.note("release")

    def _increment(self, held: Held, seconds: float) -> None:
        random_work = self._random_work
        value = self._claim(held)
        self._wait(held, seconds)
        if random_work.by_chance(0.1):
            reads = self._kind == WRITE and random_work.by_chance(0.5)
            self._reenter(held, {"kind": READ} if reads else self._wish)
        # Written even if the lock is lost by now: the fence must refuse the write of a holder that ignores its loss.
        if value is None or not self._write(held.token, value + 1):
            random_work.counts["stale"] += 1
        self._check(held)

    def _claim(self, held: Held) -> int | None:
        value = self._random_work.store.claim(self._key, held.token)
        self.note("claimed", token=held.token, ok=value is not None)
        return value

    def _read(self, held: Held, seconds: float) -> None:
        for length in (0, seconds):
            self._wait(held, length)
            value = self._random_work.store.value(self._key)
            if self._check(held):
                self.note("observed", t=self._valid, value=value)

    def _downgrade(self, held: Held) -> None:
        self.note("downgrade")
        try:
            held.downgrade()
        except Lost as error:
            self.note("downgrade_failed")
            self.lost(str(error))
        else:
            self.note("downgraded")
            self._random_work.counts["downgraded"] += 1

    def _try_to_write(self) -> None:
        """Request the write side as a reader: it must be refused at once, or it would wait for itself."""
        try:
            with self._random_work._lock.block(self._key, None, {"kind": WRITE}):
                raise AssertionError("a reader was granted the write side")
        except Refused as error:
            assert str(error) == "LockUpgradeRefused", str(error)
        except Lost as error:
            self.lost(str(error))

    def _wait(self, held: Held, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self._check(held):
            expose(True)
            time.sleep(CHECK_EVERY)
            expose(False)

    def _reenter(self, held: Held, wish: Wish) -> None:
        try:
            with self._random_work._lock.block(self._key, 0, dict(wish)) as inner:
                assert inner.token == held.token, "another token for the same hold"
        except Lost as error:
            self.lost(str(error))

    def _check(self, held: Held) -> bool:
        before = time.monotonic()
        try:
            held.check()
        except Lost as error:
            self.lost(str(error))
            return False
        self._valid = self.note("valid", t=before, until=held.until())
        return True

    def _write(self, token: int, value: int) -> bool:
        self.note("writing", token=token, value=value)
        ok = self._random_work.store.write(self._key, token, value)
        self.note("fenced", token=token, value=value, ok=ok)
        return ok

    def lost(self, reason: str) -> None:
        """The owner knows that the lock is lost."""
        if self._claims:
            self._random_work.counts["lost"] += 1
            self.note("lost", reason=reason)
        elif "granted" not in self._written:
            self.note("refused", error=reason, definite=False)

    def refused(self, error: str) -> None:
        """The block was not entered, or its end failed."""
        if "granted" in self._written:
            self.note("release_failed", error=error)
        else:
            self.note("refused", error=error, definite=True)

    def end(self, kind: str, error: str = "") -> None:
        """The block is over."""
        if "release" in self._written:
            self.note(kind, error=error)

    def struck(self) -> None:
        """A signal ended the block, somewhere."""
        if "granted" not in self._written:
            self.note("refused", error="Struck", definite=False)
        elif self._claims:  # struck before it could write its release; it has claimed nothing since
            self.note("release", t=self._valid)
