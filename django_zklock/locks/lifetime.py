"""
Knows how long a grant may last: when a holder is warned, and when it loses the lock for holding it too long.

Runs on the protocol's thread. One timer serves all grants of a session, so that many short ones with a long time each
leave nothing behind.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django_zklock import signals
from django_zklock.execution import work
from django_zklock.locks.guard import Guard
from django_zklock.locks.notify import send_about
from django_zklock.locks.protocol.grant import Grant, GrantObserver
from django_zklock.zk import clock
from django_zklock.zk.session import Session

if TYPE_CHECKING:
    from django_zklock.locks.protocol.contender import Contender
    from django_zklock.locks.terms import Terms

logger = logging.getLogger("django_zklock.locks")


def bound(grant: Grant, contender: Contender, terms: Terms) -> None:
    """
    Have a new grant end, and its holder be warned, in the times that are asked for, if any; from any thread.

    Both count from the grant, and so do those of who takes the lock again. It is the boot-time clock that counts: a
    machine that was suspended has kept the others waiting all the same.
    """
    began = clock.now() - (time.monotonic() - grant.since)
    if terms.max_hold is not None:
        grant.max_hold = terms.max_hold
        grant.ends_at = began + terms.max_hold
    if terms.max_hold is not None or terms.warn_after is not None:
        warn_at = None if terms.warn_after is None else began + terms.warn_after
        grant.session.post(Lifetime(grant, contender, terms.warn_after, warn_at).begin)


def leave_if_overdue(grant: Grant, contender: Contender) -> None:
    """Have the node go, if it was held for too long, and no work is left that was to be stopped; from any thread."""
    if grant.overdue:
        grant.session.post(_leave_unless_watched, grant, contender)


def _leave_unless_watched(grant: Grant, contender: Contender) -> None:
    if not grant.observed_by(Guard, lambda guard: guard.at_work) and all(
        held.is_unwatched for held in grant.parts_held()
    ):
        contender.abandon()


class Lifetime(GrantObserver):
    """The life of one grant."""

    def __init__(
        self, grant: Grant, contender: Contender, warn_after: float | None = None, warn_at: float | None = None
    ) -> None:
        self._grant = grant
        self._contender = contender
        self._warn_after = warn_after
        self._warn_at = warn_at  # on clock.now(); None once it was done
        self._calendar: Calendar

    def begin(self) -> None:
        """Begin to count, unless it is over by now."""
        self._calendar = self._grant.session.attached(Calendar)
        self._set()
        self._grant.attach(self)

    def on_lost(self, reason: str) -> None:
        self._calendar.drop(self)

    def on_released(self) -> None:
        self._calendar.drop(self)
        self._grant.detach(self)

    def _set(self) -> None:
        dues = [due for due in (self._warn_at, self._grant.ends_at) if due is not None]
        if dues:
            self._calendar.set(self, min(dues), self._on_due)

    def _on_due(self) -> None:
        now = clock.now()
        if self._warn_at is not None and now >= self._warn_at:
            self._warn_at = None
            self._warn()
        if self._grant.overdue:
            self._end()
        else:
            self._set()

    def _warn(self) -> None:
        grant = self._grant
        held = time.monotonic() - grant.since
        send_about(grant, signals.lock_held_long, held=held)
        logger.warning(
            "lock %s has been held for %.1f s, longer than warn_after, %g s%s",
            grant.key,
            held,
            self._warn_after,
            work.noted(grant.about),
            extra=grant.logged(),
        )

    def _end(self) -> None:
        """Have the work stopped; the node goes when that is done, which is at once if there is none to be stopped."""
        grant = self._grant
        grant.lose(grant.why_overdue)
        _leave_unless_watched(grant, self._contender)


@dataclass(frozen=True, slots=True)
class _Entry:
    due: float  # on clock.now()
    call: Callable[[], object]


class Calendar:
    """What is due in the grants of one session; on the protocol's thread."""

    def __init__(self, session: Session) -> None:
        self._loop = session.loop
        self._entries: dict[Lifetime, _Entry] = {}
        self._wakes_at = math.inf

    def set(self, lifetime: Lifetime, due: float, call: Callable[[], object]) -> None:
        """Have `call()` run when it is due, instead of what was set for this one before."""
        self._entries[lifetime] = _Entry(due, call)
        self._wake(due)

    def drop(self, lifetime: Lifetime) -> None:
        """Nothing of this one is due any more."""
        self._entries.pop(lifetime, None)

    def _wake(self, due: float) -> None:
        if due < self._wakes_at:
            self._wakes_at = due
            self._loop.call_later(max(0.0, due - clock.now()), lambda: self._on_timer(due))

    def _on_timer(self, due: float) -> None:
        if due == self._wakes_at:
            self._wakes_at = math.inf
        now = clock.now()
        for lifetime in [each for each, entry in self._entries.items() if entry.due <= now]:
            entry = self._entries.pop(lifetime, None)
            if entry is not None:
                self._run(entry)
        if self._entries:
            self._wake(min(entry.due for entry in self._entries.values()))

    def _run(self, entry: _Entry) -> None:
        try:
            entry.call()
        except Exception:
            # What goes wrong with one of them must not keep the others from their end.
            logger.exception("the end of a hold, or the warning before it, failed: %r", entry.call)
