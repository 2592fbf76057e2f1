"""The bounds of a hold: a warning after `warn_after`, and the loss of the lock after `max_hold`."""

from __future__ import annotations

from django_zklock.core import clock, hooks
from django_zklock.core.locks.spec import LockSpec
from django_zklock.core.log import Logger
from django_zklock.core.protocol.grant import Grant, GrantedContender, GrantObserver
from django_zklock.core.zk.loop import NEVER

logger = Logger("django_zklock.locks")


def apply_bounds(grant: Grant, contender: GrantedContender, spec: LockSpec) -> None:
    """
    Apply `max_hold` and `warn_after` to a new grant; at least one of them is set. From any thread.

    Both count from the grant, also for an owner that acquires the lock again. They count by the boot-time clock: while
    this machine is suspended, callers on other machines wait for the lock.
    """
    if spec.max_hold is not None:
        grant.max_hold = spec.max_hold
        grant.ends_at = grant.since + spec.max_hold
    grant.session.post(HoldBounds(grant, contender, spec.warn_after).begin)


def release_if_overdue(grant: Grant, contender: GrantedContender) -> None:
    """Delete the znode if the lock was held for too long and no work is left to be aborted; from any thread."""
    if grant.overdue:
        grant.session.post(_release_unless_watched, grant, contender)


def _release_unless_watched(grant: Grant, contender: GrantedContender) -> None:
    held = grant.held()
    if held is None or held.is_unwatched:
        contender.abandon()


class HoldBounds(GrantObserver):
    """The bounds of one grant; on the protocol's thread."""

    def __init__(self, grant: Grant, contender: GrantedContender, warn_after: float | None) -> None:
        self._grant = grant
        self._contender = contender
        self._warn_after = warn_after
        self._warn_at = None if warn_after is None else grant.since + warn_after  # None after the warning, too
        self._timer = NEVER

    def begin(self) -> None:
        """Set the timer, unless the grant is over by now."""
        self._set_timer()
        self._grant.attach(self)

    def on_lost(self, reason: str) -> None:
        self._timer.cancel()

    def on_released(self) -> None:
        self.on_lost("")
        self._grant.detach(self)

    def _set_timer(self) -> None:
        dues = [due for due in (self._warn_at, self._grant.ends_at) if due is not None]
        if dues:
            self._timer = self._grant.session.loop.call_later(max(0.0, min(dues) - clock.now()), self._on_due)

    def _on_due(self) -> None:
        """Mark the lock as lost, or warn: its work is aborted, and its znode deleted when the work has ended."""
        grant = self._grant
        overdue = grant.overdue
        if overdue:
            grant.lose(grant.why_overdue)
            _release_unless_watched(grant, self._contender)
        if self._warn_at is not None and clock.now() >= self._warn_at:
            self._warn_at = None
            self._warn(clock.now() - grant.since)
        if not overdue:
            self._set_timer()

    def _warn(self, held: float) -> None:
        grant = self._grant
        hooks.events.held_long(grant, held)
        stack = grant.stack()
        logger.warning(
            "lock %r (token %d) has been held for %.1f s, longer than warn_after, %g s; its holder is %s",
            grant.key,
            grant.token,
            held,
            self._warn_after,
            stack.holder,
            about=grant.about,
            extra=grant.log_fields(),
            stack=stack,
        )
