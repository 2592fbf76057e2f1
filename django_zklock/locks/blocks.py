"""One open `with` block under locks that are held, with its guards and its transaction."""

from __future__ import annotations

from django_zklock import clock
from django_zklock.exceptions import LockNotHeld, ZkLockError
from django_zklock.execution import abort
from django_zklock.execution.owner import Owner
from django_zklock.execution.transactions import Transaction
from django_zklock.execution.waiters import TaskWaiter, ThreadWaiter
from django_zklock.locks.guard import Guard, send_lost
from django_zklock.locks.held import RELEASE_TIMEOUT, HeldLock, held_locks
from django_zklock.locks.spec import LockSpec


@abort.shielded
def wait_all(waiters: list[ThreadWaiter[bool]]) -> None:
    """Wait for the confirmation of releases, at most `RELEASE_TIMEOUT` seconds in all."""
    deadline = clock.now() + RELEASE_TIMEOUT
    for waiter in waiters:
        waiter.wait(deadline - clock.now())


async def await_all(waiters: list[TaskWaiter[bool]]) -> None:
    """Wait in a coroutine, as `wait_all` does in a thread."""
    deadline = clock.now() + RELEASE_TIMEOUT
    for waiter in waiters:
        await waiter.wait(deadline - clock.now())


class Block:
    """One open `with` block, under one lock or several."""

    __slots__ = ("_guards", "_holds", "_owner", "_transaction", "is_open")

    def __init__(self, owner: Owner, holds: tuple[HeldLock, ...], specs: tuple[LockSpec, ...]) -> None:
        self._owner = owner
        self._holds = holds  # in the order of their keys
        self._guards = [Guard(hold.grant, spec.policy, owner) for hold, spec in zip(holds, specs, strict=True)]
        self._transaction = Transaction(specs[-1].atomic) if specs[-1].atomic else None
        self.is_open = True

    @abort.shielded
    def open(self) -> None:
        """Arm the guards, and begin the transaction and the work."""
        for guard in self._guards:
            held_locks.open_block(self._owner, guard)
            guard.arm()
        if self._transaction is not None:
            self._transaction.begin()
        for hold in self._holds:
            hold.grant.begun = True

    @abort.shielded
    def close(self, error: BaseException | None) -> BaseException | None:
        """
        End the block, except for the release of its locks; return the error to raise, if any.

        Commits the transaction inside the locks if they are still held; rolls it back if `error` has ended the block.
        The guards are disarmed before, so no abort interrupts COMMIT. Instead, the locks are checked just before it.
        """
        around = self._disarm()
        committed = False
        inherited = self._holds[0].grant.inherited  # then the locks are the parent's
        if self._transaction is not None and inherited:
            self._transaction.forget()
        elif self._transaction is not None:
            try:
                self._transaction.end(error, self._check)
                committed = error is None  # so a loss after the check is no failure
            except BaseException as failed:  # noqa: BLE001 - the caller raises it after the release
                self._transaction.abandon()  # its end may not have begun
                error = failed
        for hold, guard in () if inherited else zip(self._holds, self._guards, strict=True):
            if guard.abort_requested_at is not None or not hold.uses or hold.grant.why_invalid() is not None:
                error = self._lost(error, around, committed=committed) or error
                break
        self.is_open = False
        return error

    @abort.shielded
    def discard(self) -> None:
        """End what remains of a block that an exception has destroyed: disarm its guards, and roll back."""
        self._disarm()
        if self._transaction is not None and self._holds[0].grant.inherited:
            self._transaction.forget()
        elif self._transaction is not None:
            self._transaction.abandon()
        self.is_open = False

    @abort.shielded
    def _disarm(self) -> list[Guard]:
        """Disarm the guards, perhaps again; return those of the blocks around this one, outermost first."""
        around: list[Guard] = []
        for guard in reversed(self._guards):
            guard.disarm()
            around = held_locks.close_block(self._owner, guard)
        return around

    def _check(self) -> None:
        for hold, guard in zip(self._holds, self._guards, strict=True):
            if guard.loss_matters:
                hold.check()

    @abort.shielded
    def _lost(self, error: BaseException | None, around: list[Guard], *, committed: bool) -> ZkLockError | None:
        """Report lost locks; return the error that replaces `error`, if the block was aborted or lost a lock."""
        guards = around + self._guards
        lost: ZkLockError | None = None
        for held in reversed(self._holds):
            guard = guards.pop()
            cause = lost or error
            stopped = guard.stopped(cause)
            reason = held.grant.why_invalid()
            if reason is None:
                if not held.uses and cause is None:
                    lost = LockNotHeld("The lock was released inside the block.", lock=held.key)
                continue
            receipt = guard.receipt(stopped=stopped)
            if not any(outer.grant is held.grant for outer in guards):
                send_lost(held.grant, held, reason, receipt)
            outer_stopped = any(outer.abort_requested_at is not None for outer in guards)  # that block reports the loss
            if (stopped and not outer_stopped) or (cause is None and guard.loss_matters and not committed):
                lost = held.grant.loss(reason)
        return lost
