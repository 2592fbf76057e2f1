"""
The bounds of a hold: the warning after `warn_after`, and the loss of the lock after `max_hold`.

Runs on the protocol's thread. One timer serves all grants of a session, so many short holds with long bounds leave
no timers behind.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

from django_zklock import clock, signals
from django_zklock.execution import work
from django_zklock.locks.guard import Guard
from django_zklock.locks.notify import send_about
from django_zklock.locks.protocol.grant import Grant, GrantedContender, GrantObserver
from django_zklock.zk.session import Session

if TYPE_CHECKING:
    from django_zklock.locks.spec import LockSpec

logger = logging.getLogger("django_zklock.locks")


def apply_bounds(grant: Grant, contender: GrantedContender, spec: LockSpec) -> None:
    """
    Apply `max_hold` and `warn_after` to a new grant; at least one of them is set. From any thread.

    Both count from the grant, also for an owner that acquires the lock again. They count by the boot-time clock,
    because the other callers wait, too, while a machine is suspended.
    """
    began = clock.now() - (clock.now() - grant.since)
    if spec.max_hold is not None:
        grant.max_hold = spec.max_hold
        grant.ends_at = began + spec.max_hold
    warn_at = None if spec.warn_after is None else began + spec.warn_after
    grant.session.post(MaximumHold(grant, contender, spec.warn_after, warn_at).begin)


def release_if_overdue(grant: Grant, contender: GrantedContender) -> None:
    """Delete the znode if the lock was held for too long and no work is left to be aborted; from any thread."""
    if grant.overdue:
        grant.session.post(_release_unless_watched, grant, contender)


def _release_unless_watched(grant: Grant, contender: GrantedContender) -> None:
    if not grant.observed_by(Guard) and all(held.is_unwatched for held in grant.held_shares()):
        contender.abandon()


class MaximumHold(GrantObserver):
    """The bounds of one grant."""

    def __init__(
        self, grant: Grant, contender: GrantedContender, warn_after: float | None, warn_at: float | None
    ) -> None:
        self._grant = grant
        self._contender = contender
        self._warn_after = warn_after
        self._warn_at = warn_at  # on clock.now(); None after the warning
        self._timers: TimerQueue

    def begin(self) -> None:
        """Set the timer, unless the grant is over by now."""
        self._timers = self._grant.session.attached(TimerQueue)
        self._set_timer()
        self._grant.attach(self)

    def on_lost(self, reason: str) -> None:
        self._timers.drop(self)

    def on_released(self) -> None:
        self._timers.drop(self)
        self._grant.detach(self)

    def _set_timer(self) -> None:
        dues = [due for due in (self._warn_at, self._grant.ends_at) if due is not None]
        if dues:
            self._timers.set(self, min(dues))

    def on_due(self) -> None:
        """Warn, or mark the lock as lost: its work is aborted, and its znode deleted when the work has ended."""
        if self._warn_at is not None and clock.now() >= self._warn_at:
            self._warn_at = None
            self._warn()
        if self._grant.overdue:
            self._grant.lose(self._grant.why_overdue)
            _release_unless_watched(self._grant, self._contender)
        else:
            self._set_timer()

    def _warn(self) -> None:
        grant = self._grant
        held = clock.now() - grant.since
        send_about(grant, signals.lock_held_long, held=held)
        logger.warning(
            "lock %r has been held for %.1f s, longer than warn_after, %g s%s",
            grant.key,
            held,
            self._warn_after,
            work.log_suffix(grant.about),
            extra=grant.log_fields(),
        )


class TimerQueue:
    """The times at which the bounds of the grants of one session are due; on the protocol's thread."""

    def __init__(self, session: Session) -> None:
        self._loop = session.loop
        self._due: dict[MaximumHold, float] = {}  # on clock.now()
        self._wakes_at = math.inf

    def set(self, bounds: MaximumHold, due: float) -> None:
        """Call `bounds.on_due()` at `due`, on `clock.now()`, and not at the time that was set before."""
        self._due[bounds] = due
        self._wake(due)

    def drop(self, bounds: MaximumHold) -> None:
        """Forget these bounds."""
        self._due.pop(bounds, None)

    def _wake(self, due: float) -> None:
        if due < self._wakes_at:
            self._wakes_at = due
            self._loop.call_later(max(0.0, due - clock.now()), lambda: self._on_timer(due))

    def _on_timer(self, due: float) -> None:
        if due == self._wakes_at:
            self._wakes_at = math.inf
        now = clock.now()
        for bounds in [bounds for bounds, when in self._due.items() if when <= now]:
            if self._due.pop(bounds, None) is not None:
                self._run(bounds)
        if self._due:
            self._wake(min(self._due.values()))

    def _run(self, bounds: MaximumHold) -> None:
        try:
            bounds.on_due()
        except Exception:
            # The failure of one must not keep the others from being due.
            logger.exception("the end of a hold, or the warning before it, failed: %r", bounds)
