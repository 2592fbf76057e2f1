"""
One open block: its guards, its transaction, and the report of locks that were lost in it.

The guard of each lock aborts the work when the lock is lost.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass

from django_zklock.core import clock, hooks
from django_zklock.core.errors import ZkLockError
from django_zklock.core.execution import abort
from django_zklock.core.execution.owner import Owner
from django_zklock.core.locks.held import Enclosing, HeldLock, enclosing_holds, held_locks
from django_zklock.core.locks.spec import LockSpec, Policy
from django_zklock.core.log import Logger
from django_zklock.core.protocol.grant import Grant, GrantObserver

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


class Block:
    """One open `with` block, under one lock, several, or none: that is for a block that does without a busy lock."""

    def __init__(self, owner: Owner, holds: tuple[HeldLock, ...], specs: tuple[LockSpec, ...]) -> None:
        self._owner = owner
        self._holds = holds  # in the order of their keys
        self._guards = [Guard(hold.grant, spec.policy, owner) for hold, spec in zip(holds, specs, strict=True)]
        self._transaction = hooks.scope.transaction(specs[-1].atomic) if specs and specs[-1].atomic else None
        self._enclosing: tuple[Enclosing | None, Enclosing | None] = None, None  # around the block, and in it
        self.is_open = True

    @abort.shielded
    def open(self) -> None:
        """Arm the guards, and begin the transaction and the work."""
        for guard in self._guards:
            held_locks.open_block(self._owner, guard)
            guard.arm()
        around = enclosing_holds.get()
        while around is not None and around[0]() is None:
            around = around[1]  # that of a generator, which has ended inside another block
        inside = around
        for hold in self._holds:
            inside = weakref.ref(hold), inside
        self._enclosing = around, inside
        enclosing_holds.set(inside)
        if self._transaction is not None:
            self._transaction.begin()
        for hold in self._holds:
            hold.grant.begun = True

    @abort.shielded
    def close(self, error: BaseException | None) -> BaseException | None:
        """End the block, but do not release its locks. Return the error to raise, if any."""
        outer_guards = self._disarm()  # first, so that no abort interrupts COMMIT
        committed = False
        if self._transaction is not None:
            error, committed = self._end_transaction(self._transaction, error)
        for hold, guard in zip(self._holds, self._guards, strict=True):
            # Without uses it was released inside the block, so a loss after that is none.
            is_lost = hold.uses and hold.grant.why_invalid() is not None
            if is_lost or guard.abort_requested_at is not None:
                error = self._report_losses(error, outer_guards, committed=committed) or error
                break
        self.is_open = False
        return error

    @abort.shielded
    def _end_transaction(
        self, transaction: hooks.Transaction, error: BaseException | None
    ) -> tuple[BaseException | None, bool]:
        """
        Commit if the locks are still held; roll back if `error` has ended the block.

        Return the error to raise, and whether the work was committed. After a commit, the loss of a lock is no failure.
        """
        if self._is_inherited:
            transaction.forget()
            return error, False
        try:
            transaction.end(error, self._check)
        except BaseException as failed:  # noqa: BLE001 - the caller raises it after the release
            transaction.abandon()  # its end may not have begun
            return failed, False
        return error, error is None

    @abort.shielded
    def discard(self) -> None:
        """End what remains of a block that an exception has destroyed: disarm its guards, and roll back."""
        self._disarm()
        if self._transaction is not None and self._is_inherited:
            self._transaction.forget()
        elif self._transaction is not None:
            self._transaction.abandon()
        self.is_open = False

    @property
    def _is_inherited(self) -> bool:
        """Whether a fork inside the block has made this process. Then the locks are the parent's."""
        return bool(self._holds) and self._holds[0].grant.inherited

    @abort.shielded
    def _disarm(self) -> list[Guard]:
        """Disarm the guards. Return those of the blocks around this one, outermost first. The call is idempotent."""
        outer_guards: list[Guard] = []
        for guard in reversed(self._guards):
            guard.disarm()
            outer_guards = held_locks.close_block(self._owner, guard)
        around, inside = self._enclosing
        if enclosing_holds.get() is inside:  # not in another context, nor in a block inside that is still open
            enclosing_holds.set(around)
        return outer_guards

    def _check(self) -> None:
        for hold, guard in zip(self._holds, self._guards, strict=True):
            if guard.loss_matters:
                hold.check()

    @abort.shielded
    def _report_losses(
        self, error: BaseException | None, outer_guards: list[Guard], *, committed: bool
    ) -> ZkLockError | None:
        """Report lost locks. Return the error that replaces `error`; None if `error` remains."""
        if self._is_inherited:
            return None
        lost: ZkLockError | None = None
        guards = outer_guards + self._guards
        for held in reversed(self._holds):
            guard = guards.pop()
            if held.uses or guard.abort_requested_at is not None:
                lost = self._report_loss(held, guard, guards, lost or error, committed=committed) or lost
        return lost

    @abort.shielded
    def _report_loss(
        self, held: HeldLock, guard: Guard, outer: list[Guard], cause: BaseException | None, *, committed: bool
    ) -> ZkLockError | None:
        """Report one lock, if it is lost. Return the error that replaces `cause`, if that does not end the block."""
        stopped = guard.stopped(cause)
        reason = held.grant.why_invalid()
        if reason is None:
            return None
        receipt = guard.receipt(stopped=stopped)
        if all(around.grant is not held.grant for around in outer):  # else the block around this one reports it
            held.report_loss(reason, receipt)
        if stopped:
            is_failure = all(around.abort_requested_at is None for around in outer)  # else the block around fails
        else:
            is_failure = cause is None and guard.loss_matters and not committed
        if not is_failure:
            return None
        lost = held.grant.loss(reason)
        lost.not_rolled_back = self._transaction is None and not hooks.scope.rolls_back()
        return lost
