"""The guard of one block: it aborts the work when the lock is lost, and writes the receipt."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from django_zklock import clock
from django_zklock.execution import abort, work
from django_zklock.execution.owner import Owner
from django_zklock.locks.protocol.grant import Grant, GrantObserver, Policy
from django_zklock.zk.loop import Timer

logger = logging.getLogger("django_zklock.abort")

REPEAT_AFTER = 0.05  # seconds; an abort is repeated, because a shielded function may delay it, or a signal be lost


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
    """Whether the work was interrupted, and went on to its end in spite of that."""


class Guard(GrantObserver):
    """Guards one block of work under one lock."""

    def __init__(self, grant: Grant, policy: Policy, owner: Owner) -> None:
        self.grant = grant
        self._policy = policy
        self._loop = grant.session.loop
        self._abort = abort.abort_for(owner)
        self._grace: Timer | None = None  # protocol's thread only
        # On clock.now(). The protocol's thread writes it before it delivers the abort.
        self.abort_requested_at: float | None = None

    def arm(self) -> None:
        """Begin to guard; called in the work."""
        self._abort.arm()
        self.grant.observe(self)

    @abort.shielded
    def disarm(self) -> None:
        """Stop guarding; called in the work, first thing after the block."""
        self._abort.disarm()
        self.grant.detach(self)

    @property
    def loss_matters(self) -> bool:
        """Whether a loss of the lock fails the work. The end of `max_hold` always does."""
        return self._policy.abort_on != "never" or self.grant.overdue

    def stopped(self, error: BaseException | None) -> bool:
        """Return whether this guard ended the block with this error. To be called once, after `disarm`."""
        return self.abort_requested_at is not None and self._abort.is_mine(error)

    def receipt(self, *, stopped: bool) -> Receipt | None:
        """Return the result of the abort, if there was one."""
        if self.abort_requested_at is None:
            return None
        receipt = Receipt(
            reason=self.grant.lost_reason or "",
            how=self._abort.how,
            stopped_after=clock.now() - self.abort_requested_at,
            delivered=stopped or self._abort.delivered,
            swallowed=self._abort.delivered and not stopped,
        )
        logger.warning(
            "work under lock %r %s %.3f s after the abort (%s): %s%s",
            self.grant.key,
            "swallowed the interrupt and ended" if receipt.swallowed else "ended",
            receipt.stopped_after,
            receipt.how,
            receipt.reason,
            work.log_suffix(self.grant.about),
            extra=self.grant.log_fields(),
        )
        return receipt

    # --- on the protocol's thread -------------------------------------------------------------------------------

    def on_suspect(self, reason: str) -> None:
        """Abort the work after the grace period, if that is the policy."""
        if self._policy.abort_on != "suspended" or self._grace is not None:
            return
        if self._policy.grace > 0:
            self._grace = self._loop.call_later(self._policy.grace, lambda: self._end_grace(reason))
        else:
            self.grant.lose(reason)

    def _end_grace(self, reason: str) -> None:
        if self.grant.is_observed_by(self):
            self.grant.lose(reason)

    def on_confirmed(self) -> None:
        """End the grace period: a quorum has confirmed the session again."""
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None

    def on_lost(self, reason: str) -> None:
        """Abort the work, unless `abort_on` is "never"."""
        if self.loss_matters and self.abort_requested_at is None:
            self.abort_requested_at = clock.now()
            self._request_abort(reason)

    def _request_abort(self, reason: str) -> None:
        if self._abort.armed and not self._abort.delivered:
            self._loop.call_later(REPEAT_AFTER, lambda: self._request_abort(reason))
            self._abort.request(reason)
