"""The open `with` blocks of a lock, and the release of a lock whose block an exception has destroyed."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from django_zklock import clock
from django_zklock.conf.options import Unset
from django_zklock.exceptions import LockNotHeld, ZkLockError
from django_zklock.execution import abort, work
from django_zklock.execution.owner import Owner, current_owner
from django_zklock.execution.transactions import Transaction
from django_zklock.execution.waiters import TaskWaiter, ThreadWaiter
from django_zklock.locks import notify, table
from django_zklock.locks.guard import Guard
from django_zklock.locks.held import RELEASE_TIMEOUT, HeldLock

logger = logging.getLogger("django_zklock.locks")


class Part:
    """One lock of a block or of a release."""

    __slots__ = ("count", "guard", "held", "release_on")

    def __init__(self, held: HeldLock, release_on: str | Unset, guard: Guard | None = None) -> None:
        self.held = held
        self.release_on = release_on  # "exit", "commit" or unset: whether open transactions keep the lock
        self.guard = guard
        self.count: int | None = None  # of the held lock after the release; noted when the release begins

    @abort.shielded
    def release(self, done: Callable[[bool], object] | None = None) -> None:
        """Release the lock once; doing it again changes nothing. `HeldLock.release` explains `done`."""
        if self.count is None:
            self.count = self.held.count - 1
        self.held.release(self.count, self.release_on, done)


Waiters: TypeAlias = "list[ThreadWaiter[bool]] | list[TaskWaiter[bool]]"


@abort.shielded
def release_all(parts: Sequence[Part], new_waiter: Callable[[], Any] | None = None) -> list[Any]:
    """
    Release several locks, the last one first, without waiting. Return a waiter for the confirmation of each.

    `new_waiter` creates the waiters; without it, they are None. If an exception interrupts this, all locks are released
    nevertheless.
    """
    waiters = []
    try:
        for part in reversed(parts):
            waiter = new_waiter() if new_waiter is not None else None
            part.release(waiter.set if waiter is not None else None)
            waiters.append(waiter)
        return waiters
    except BaseException:
        for part in reversed(parts):
            part.release()
        raise


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

    __slots__ = ("__weakref__", "owner", "parts", "transaction")

    def __init__(self, owner: Owner, parts: list[Part], transaction: Transaction | None) -> None:
        self.owner = owner
        self.parts = parts  # in the order of their keys
        self.transaction = transaction  # begun inside the locks

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


class HasBlocks(Protocol):
    """A lock, or several as one."""

    _blocks: Blocks

    def _leave(self, error: BaseException | None) -> None: ...


class BlockEnd:
    """
    The `__exit__` of one `with` block. The interpreter calls it, and nothing else refers to the block.

    The handler of a signal, such as a soft time limit, may raise on the first instruction of a function, before any
    `try` of it. If that happens here, nothing calls this again. But the interpreter drops this object with the
    traceback, and the block with it, so the lock is released. A plain `__exit__` would be bound to the lock object,
    which may live as long as the process.
    """

    __slots__ = ("__weakref__", "_lock", "block")

    def __init__(self, lock: HasBlocks) -> None:
        self._lock = lock
        self.block: Block | None = None

    @abort.shielded
    def __call__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        self._lock._leave(error)


class Exit:
    """Makes `__exit__` a `BlockEnd` each time it is looked up, which `with` does before it enters."""

    def __get__(self, lock: HasBlocks | None, cls: type[HasBlocks]) -> Any:
        if lock is None:
            return _leave  # for `ExitStack`, which looks it up on the class
        end = BlockEnd(lock)
        lock._blocks.expect(end)
        return end


@abort.shielded
def _leave(lock: HasBlocks, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
    lock._leave(error)


class Blocks:
    """The open blocks of one lock object, by owner. Each entry is written by its owner alone."""

    __slots__ = ("_expected", "_open")

    def __init__(self) -> None:
        # By task, greenlet or thread.
        self._open: dict[object, list[Callable[[], Block | None]]] = {}  # innermost last; weak if there is a BlockEnd
        self._expected: dict[object, weakref.ref[BlockEnd]] = {}

    def __len__(self) -> int:
        return sum(len(blocks) for blocks in self._open.values())

    def expect(self, end: BlockEnd) -> None:
        """Note that the caller may be about to open the block that `end` belongs to."""
        self._expected[current_owner().subject] = weakref.ref(end)

    def expect_none(self) -> None:
        """Note that the caller opens no block after all."""
        self._expected.pop(current_owner().subject, None)  # or every owner that was refused would be kept

    @abort.shielded
    def open(self, block: Block) -> None:
        """Open a block."""
        owner = block.owner.subject
        expected = self._expected.pop(owner, None)
        end = expected() if expected is not None else None
        if end is None:
            self._open.setdefault(owner, []).append(lambda: block)
        else:
            self._open.setdefault(owner, []).append(self._release_when_dropped(block))
            end.block = block
        for part in block.parts:
            if part.guard is not None:
                table.held_locks.open_block(block.owner, part.guard)

    def _release_when_dropped(self, block: Block) -> weakref.ref[Block]:
        owner, parts, transaction = block.owner, block.parts, block.transaction

        def on_dropped(reference: weakref.ref[Block]) -> None:
            self._remove(owner, reference)
            _disarm(parts, owner)
            if transaction is not None:
                transaction.abandon()
            release_all(parts)  # a `finally` around the block may have released them already
            for part in parts:
                logger.warning(
                    "an exception destroyed the end of a block under lock %r, which is released now%s",
                    part.held.key,
                    work.log_suffix(part.held.grant.about),
                    extra=part.held.grant.log_fields(),
                )

        return weakref.ref(block, on_dropped)

    def innermost(self) -> Block:
        """Return the innermost block of the caller. Raises `LockNotHeld`."""
        blocks = self._open.get(current_owner().subject)
        if not blocks and len(self._open) == 1:
            # The code that drops a generator closes it, and a loop its coroutines: neither is their owner.
            blocks = next(iter(self._open.values()), None)
        block = blocks[-1]() if blocks else None
        if block is None:
            raise LockNotHeld("The block was opened by another task, greenlet or thread.")
        return block

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
            if block.transaction is not None and not block.parts[0].held.grant.inherited:
                block.transaction.abandon()  # its end may not have begun
            block.conclude(failed, around)
            return failed
        return block.conclude(error, around) or error

    @abort.shielded
    def close_anyway(self, block: Block) -> None:
        """End a block whose end was interrupted, and release its locks without waiting."""
        self._shut(block)
        if block.transaction is not None:
            block.transaction.abandon()
        release_all(block.parts)

    @abort.shielded
    def _shut(self, block: Block) -> list[Guard]:
        """Disarm the guards; return those of the blocks around this one. Doing it again changes nothing."""
        for reference in self._open.get(block.owner.subject, []):
            if reference() is block:
                self._remove(block.owner, reference)
                break
        return _disarm(block.parts, block.owner)

    def _remove(self, owner: Owner, reference: Callable[[], Block | None]) -> None:
        blocks = self._open.get(owner.subject, [])
        if reference in blocks:
            blocks.remove(reference)
        if not blocks:
            self._open.pop(owner.subject, None)


@abort.shielded
def _disarm(parts: list[Part], owner: Owner) -> list[Guard]:
    """Disarm the guards of a block; return those of the blocks around it, outermost first."""
    for part in reversed(parts):
        if part.guard is not None:
            part.guard.disarm()
    around: list[Guard] = []
    for part in reversed(parts):
        if part.guard is not None:
            around = table.held_locks.close_block(owner, part.guard)
    return around
