"""The open `with` blocks of a lock."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from django_zklock import clock
from django_zklock.conf.options import Unset
from django_zklock.exceptions import LockNotHeld, ZkLockError
from django_zklock.execution import abort
from django_zklock.execution.owner import Owner, current_owner
from django_zklock.execution.transactions import Transaction
from django_zklock.execution.waiters import TaskWaiter, ThreadWaiter
from django_zklock.locks import notify, table
from django_zklock.locks.guard import Guard
from django_zklock.locks.held import RELEASE_TIMEOUT, HeldLock


class Part:
    """One lock of a block or of a release."""

    __slots__ = ("acquired", "count", "guard", "held", "release_on")

    def __init__(self, held: HeldLock, release_on: str | Unset, guard: Guard | None = None) -> None:
        self.held = held
        self.release_on = release_on  # "exit", "commit" or unset: whether open transactions keep the lock
        self.guard = guard
        self.acquired = held.acquired - 1 if guard is None else None  # of the held lock after a release, not a block
        self.count: int | None = None  # likewise, after both; noted when it begins

    @abort.shielded
    def release(self, done: Callable[[bool], object] | None = None) -> None:
        """Release the lock once; doing it again changes nothing. `HeldLock.release` explains `done`."""
        if self.count is None:
            self.count = self.held.count - 1
        if self.acquired is not None:
            self.held.acquired = self.acquired
        self.held.release(self.count, self.release_on, done)


@abort.shielded
def release_all(parts: Sequence[Part], new_waiter: Callable[[], Any] | None = None) -> list[Any]:
    """
    Release several locks, the last one first, without waiting. Return a waiter for the confirmation of each.

    `new_waiter` creates the waiters; without it, there are none. Doing it again changes nothing.
    """
    waiters = [] if new_waiter is None else [new_waiter() for _ in parts]
    for part, waiter in itertools.zip_longest(reversed(parts), waiters):
        part.release(None if waiter is None else waiter.set)
    return waiters


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

    __slots__ = ("over", "owner", "parts", "transaction")

    def __init__(self, owner: Owner, parts: list[Part], transaction: Transaction | None) -> None:
        self.owner = owner
        self.parts = parts  # in the order of their keys
        self.transaction = transaction  # begun inside the locks
        self.over = False  # its locks are released

    @abort.shielded
    def end_transaction(self, error: BaseException | None) -> None:
        """
        Commit the transaction inside the locks if they are still held; roll it back if `error` has ended the block.

        The guards are disarmed before, so no abort interrupts COMMIT. Instead, the locks are checked just before it.
        """
        if self.transaction is None:
            return
        if self.parts[0].held.grant.inherited:
            self.transaction.forget()
        else:
            self.transaction.end(error, self._check)

    @abort.shielded
    def drop_transaction(self) -> None:
        """Roll the transaction back, in any state; a forked child forgets it."""
        if self.transaction is not None and self.parts[0].held.grant.inherited:
            self.transaction.forget()
        elif self.transaction is not None:
            self.transaction.abandon()

    def _check(self) -> None:
        for part in self.parts:
            if part.guard is not None and part.guard.loss_matters:
                part.held.check()

    @abort.shielded
    def conclude(self, error: BaseException | None, around: list[Guard]) -> ZkLockError | None:
        """
        Report lost locks; return the error that replaces `error`, if the block was aborted or lost a lock.

        `around` are the guards of the blocks around this one, outermost first.
        """
        committed = error is None and self.transaction is not None  # so a loss after the check is no failure
        guards = around + [part.guard for part in self.parts if part.guard is not None]
        lost: ZkLockError | None = None
        for part in reversed(self.parts):
            if part.guard is not None:
                guards.remove(part.guard)
                lost = _conclude(part.held, part.guard, lost or error, guards, committed=committed) or lost
        return lost


@abort.shielded
def _conclude(
    held: HeldLock, guard: Guard, error: BaseException | None, around: list[Guard], *, committed: bool
) -> ZkLockError | None:
    if held.grant.inherited:
        return None
    stopped = guard.stopped(error)
    reason = held.grant.why_invalid()
    if reason is None:
        if held.count or error is not None:
            return None
        return LockNotHeld("The lock was released inside the block.", lock=held.key)
    receipt = guard.receipt(stopped=stopped)
    if not any(outer.grant is held.grant for outer in around):
        notify.send_lost(held, reason, receipt)
    outer_stopped = any(outer.abort_requested_at is not None for outer in around)  # then that block reports the loss
    if (stopped and not outer_stopped) or (error is None and guard.loss_matters and not committed):
        return held.grant.loss(reason)
    return None


class Blocks:
    """The open blocks of one lock object, by owner. Each entry is written by its owner alone."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: dict[object, list[Block]] = {}  # by task, greenlet or thread; the innermost block last

    def __len__(self) -> int:
        return sum(len(blocks) for blocks in self._open.values())

    @abort.shielded
    def open(self, block: Block) -> None:
        """Open a block, and arm its guards."""
        self._open.setdefault(block.owner.subject, []).append(block)
        for part in block.parts:
            if part.guard is not None:
                table.held_locks.open_block(block.owner, part.guard)
                part.guard.arm()

    def innermost(self) -> Block:
        """Return the innermost block of the caller. Raises `LockNotHeld`."""
        blocks = self._open.get(current_owner().subject)
        if not blocks and len(self._open) == 1:
            # The code that drops a generator closes it, and a loop its coroutines: neither is their owner.
            blocks = next(iter(self._open.values()), None)
        if not blocks:
            raise LockNotHeld("The block was opened by another task, greenlet or thread.")
        return blocks[-1]

    @abort.shielded
    def close(self, block: Block, error: BaseException | None) -> BaseException | None:
        """
        End a block, except for the release of its locks; return the error to raise, if any.

        Commits the transaction inside the locks, or rolls it back.
        """
        around = self._shut(block)
        try:
            block.end_transaction(error)
        except BaseException as failed:  # noqa: BLE001 - the caller raises it after the release
            block.drop_transaction()  # its end may not have begun
            block.conclude(failed, around)
            return failed
        return block.conclude(error, around) or error

    @abort.shielded
    def drop(self, block: Block) -> None:
        """End a block that an exception has destroyed: roll back, and release its locks without waiting."""
        if block.over:
            return  # the owner may have acquired the same locks again
        self._shut(block)
        block.drop_transaction()
        release_all(block.parts)
        block.over = True

    @abort.shielded
    def _shut(self, block: Block) -> list[Guard]:
        """Disarm the guards, perhaps again; return those of the blocks around this one, outermost first."""
        blocks = self._open.get(block.owner.subject, [])
        if block in blocks:
            blocks.remove(block)
        if not blocks:
            self._open.pop(block.owner.subject, None)
        around: list[Guard] = []
        for part in reversed(block.parts):
            if part.guard is not None:
                part.guard.disarm()
                around = table.held_locks.close_block(block.owner, part.guard)
        return around
