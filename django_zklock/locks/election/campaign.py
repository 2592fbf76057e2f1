"""Knows one way to the lead: a place in the queue, kept for as long as it takes, and the pauses between two of them."""

from __future__ import annotations

import os
import random
import time
import warnings
import weakref
from typing import Any

from django_zklock.exceptions import ZkLockError
from django_zklock.execution.owner import current_owner
from django_zklock.execution.waiters import Routine
from django_zklock.locks.acquisition import Acquisition
from django_zklock.locks.held import HeldLock
from django_zklock.locks.protocol.contender import Outcome
from django_zklock.locks.protocol.grant import Grant
from django_zklock.zk.session import Session

FIRST_PAUSE = 0.1  # seconds after a loss; the next one is twice as long, and so on
LONGEST_PAUSE = 10.0  # seconds
STEADY = 30.0  # seconds of leading after which the next loss is a first one again


class Pauses:
    """
    How long to wait before the next campaign: the longer, the more often the lead was lost lately.

    Whoever loses its node has to make a new one. Where it is lost at once again (somebody deletes it, no quorum
    vouches for the session, the host is starved), a loop of that wears the queue and the servers out: Curator's latch
    made 2.6 million nodes in two hours (CURATOR-504, CURATOR-644). Up to half of each pause is drawn by lot, so that
    those who lost together do not come back together.
    """

    def __init__(self) -> None:
        self._next = FIRST_PAUSE

    def after(self, grant: Grant | None) -> float:
        """Return the seconds to wait after this grant has ended; none if it was given back, or there was none."""
        if grant is None or grant.lost_reason is None:
            return 0.0
        if time.monotonic() - grant.since >= STEADY:
            self._next = FIRST_PAUSE
        pause, self._next = self._next, min(2 * self._next, LONGEST_PAUSE)
        return pause * random.uniform(0.5, 1.0)  # noqa: S311 - nobody has to be unable to guess it


class Campaign:
    """
    One place in the queue, from the pause before it to the outcome; waited for in a thread or a coroutine.

    It may be waited for again and again, by one at a time, and called off from any thread.
    """

    def __init__(self, session: Session, acquisition: Acquisition, waiter: Any, *, pause: float = 0.0) -> None:
        self.session = session
        self.acquisition = acquisition
        acquisition.waiter = waiter
        self._starts_at = time.monotonic() + pause
        self.started = False
        self._concluded = False
        self._leaving = False  # or about to: somebody saw to that
        self._keeper: weakref.finalize[Any, Any] | None = None

    @property
    def over(self) -> bool:
        """Whether nobody waits for it any more: it was concluded, or is that of the process this was forked from."""
        return self._concluded or self.session.pid != os.getpid()

    @property
    def grant(self) -> Grant | None:
        """What came of it; None as long as nothing has."""
        return self.acquisition.grant

    def outcome(self, timeout: float | None) -> Routine[Outcome | None]:
        """Return the outcome, or None if there was none within `timeout` seconds (None: wait without limit)."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self.started:
            outcome: Outcome | None = yield from self.acquisition.waiter.outcome(self._left(timeout))
            if outcome is not None or not self._start():
                return outcome
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        outcome = yield from self.acquisition.waiter.outcome(left)
        return outcome

    def _left(self, timeout: float | None) -> float:
        """Return the seconds of the pause that are left to wait now."""
        left = max(0.0, self._starts_at - time.monotonic())
        return left if timeout is None else min(left, timeout)

    def _start(self) -> bool:
        if time.monotonic() < self._starts_at:
            return False
        self.started = True
        self.acquisition.start(self.session, self.acquisition.waiter, None, 0.0)
        return True

    def conclude(self, outcome: Outcome, *, keep: bool = False) -> HeldLock:
        """Return the held lock, which is the caller's, or raise what the outcome means; once."""
        self.acquisition.conclude(outcome, current_owner(), keep=keep)
        held = self.acquisition.held
        assert held is not None
        self._concluded = True
        if self._keeper is not None:
            self._keeper.detach()
        return held

    def call_off(self, error: ZkLockError) -> None:
        """Leave the queue, and have whoever waits raise `error`; from any thread. Too late if there is an outcome."""
        self._leaving = True
        self.session.post(self.acquisition.call_off, error)

    def abandon(self) -> None:
        """Leave, from wherever it is, and let go of what was granted; nothing of it stays in ZooKeeper."""
        self._leaving = True
        if self._keeper is not None:
            self._keeper.detach()
        self.acquisition.abandon()

    def belong_to(self, candidate: object) -> None:
        """Leave when `candidate` is dropped while nobody leads yet: nobody could lead then, and nobody withdraw."""
        self._keeper = weakref.finalize(candidate, self._on_dropped)
        self._keeper.atexit = False  # the session is closed then

    def _on_dropped(self) -> None:
        if self.over:
            return  # the hold sees to itself
        forgotten = self.started and not self._leaving
        self.abandon()
        if forgotten:
            message = f"the candidate for {self.acquisition.terms.key!r} was dropped without being withdrawn"
            warnings.warn(message, ResourceWarning, stacklevel=1)
