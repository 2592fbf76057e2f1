"""
Observers of one grant: the guard of a block, and the bounds of a hold.

The guard aborts the work when the lock is lost. The bounds are a warning after `warn_after`, and the loss of the lock
after `max_hold`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from django_zklock.core import clock, hooks
from django_zklock.core.execution import abort
from django_zklock.core.execution.owner import Owner
from django_zklock.core.locks.spec import LockSpec, Policy
from django_zklock.core.log import Logger
from django_zklock.core.protocol.grant import Grant, GrantedContender, GrantObserver
from django_zklock.core.zk.loop import NEVER

logger = Logger("django_zklock.locks")
abort_logger = Logger("django_zklock.abort", always=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The result of an abort."""

    reason: str
    """Why the work was aborted."""
    how: str
    """`task`, `greenlet`, `signal`, `thread`, or `none` if the work cannot be interrupted."""
    stopped_after: float
    """Seconds from the abort to the end of the block."""
    delivered: bool
    """Whether the work was interrupted; if not, the block ended by itself first."""
    swallowed: bool
    """Whether the work has gone on after an interrupt. A later one may have stopped it."""


class Guard(GrantObserver):
    """Guards one block of work under one lock."""

    def __init__(self, grant: Grant, policy: Policy, owner: Owner) -> None:
        self.grant = grant
        self._policy = policy
        self._owner = owner
        self._loop = grant.session.loop
        self._abort = abort.abort_for(owner)
        # On clock.now(). The protocol's thread writes it before it delivers the abort.
        self.abort_requested_at: float | None = None

    def arm(self) -> None:
        """Begin to guard; called in the work."""
        self._abort.arm()
        self.grant.observe(self)

    @abort.shielded
    def disarm(self) -> None:
        """Stop guarding. The work calls this first of all after the block."""
        self._abort.disarm()
        self.grant.detach(self)

    @property
    def loss_matters(self) -> bool:
        """Whether a loss of the lock fails the work."""
        return self._policy.stops_at(self.grant)

    def stopped(self, error: BaseException | None) -> bool:
        """Return whether this guard ended the block with this error. Call it once, after `disarm`."""
        return self.abort_requested_at is not None and self._abort.is_mine(error)

    def receipt(self, *, stopped: bool) -> Receipt | None:
        """Return the result of the abort, and log it, if there was one."""
        if self.abort_requested_at is None:
            return None
        receipt = Receipt(
            reason=self.grant.lost_reason or "",
            how=self._abort.how,
            stopped_after=clock.now() - self.abort_requested_at,
            delivered=stopped or self._abort.delivered,
            swallowed=self._abort.swallowed or (self._abort.delivered and not stopped),
        )
        abort_logger.warning(
            "work under lock %r %s %.3f s after the abort (%s): %s",
            self.grant.key,
            "swallowed the interrupt and ended" if receipt.swallowed else "ended",
            receipt.stopped_after,
            receipt.how,
            receipt.reason,
            about=self.grant.about,
            extra=self.grant.log_fields(),
        )
        if receipt.delivered and self._owner.kind != "task":  # a task is cancelled between two steps
            hooks.scope.interrupted()
        return receipt

    # --- on the protocol's thread -------------------------------------------------------------------------------

    def on_suspect(self, reason: str) -> None:
        """
        Abort the work after the grace period, if there is one. It is aborted at the end of the lease in any case.

        The guard makes the grant lost then, for all its shares.
        """
        remaining = self._policy.trusts_for(self.grant)
        if not self._abort.armed or remaining == math.inf:
            return
        if remaining > 0:
            self._loop.call_later(remaining, lambda: self.on_suspect(reason))
        else:
            self.grant.lose(self.grant.suspect_reason)

    def on_lost(self, reason: str) -> None:
        """Abort the work, unless `abort_on` is "never"."""
        if self.loss_matters and self.abort_requested_at is None:
            self.abort_requested_at = clock.now()
            self._request_abort(reason)

    def _request_abort(self, reason: str) -> None:
        """Request the abort again and again, until the block has been left."""
        if self._abort.armed:
            pause = self._abort.again_after if self._abort.delivered else abort.REPEAT_AFTER
            self._loop.call_later(pause, lambda: self._request_abort(reason))
            self._abort.request(reason)


# --- the bounds of a hold -----------------------------------------------------------------------------------------


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
    if not grant.has_observer_of(Guard) and all(held.is_unwatched for held in grant.held_shares()):
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
