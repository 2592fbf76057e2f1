"""Knows the `with` blocks that are open, and lets go of a lock whose block was torn off at its very end."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django_zklock.conf.options import Unset
from django_zklock.exceptions import LockNotHeld, ZkLockError
from django_zklock.execution import abort, work
from django_zklock.execution.owner import Owner, current_owner
from django_zklock.execution.transactions import Transaction
from django_zklock.locks import hold as holds
from django_zklock.locks.guard import Guard
from django_zklock.locks.hold import Hold
from django_zklock.locks.taking import give_back, tell_lost

if TYPE_CHECKING:
    from django_zklock.locks.lock import Lock


logger = logging.getLogger("django_zklock.locks")


class Block:
    """One `with` block that is open."""

    __slots__ = ("__weakref__", "guard", "hold", "owner", "release", "transaction")

    def __init__(self, hold: Hold, guard: Guard, transaction: Transaction | None, release: str | Unset) -> None:
        self.hold = hold
        self.owner = hold._owner  # that of a shared hold may be another at the end
        self.guard = guard
        self.transaction = transaction  # begun inside the lock
        self.release = release

    @abort.shielded
    def end_transaction(self, error: BaseException | None) -> None:
        """
        Commit what was begun inside the lock if the lock is still held, or roll it back if `error` has ended the block.

        The guard is disarmed before, so that no abort can tear COMMIT. What it would have aborted is seen by the check.
        """
        if self.transaction is None:
            return
        if self.hold._grant.inherited:
            self.transaction.forget()
        else:
            self.transaction.end(error, self.hold.check if self.guard.matters else lambda: None)


class BlockEnd:
    """
    What the interpreter calls at the end of one `with` block; it alone keeps the block.

    The handler of a signal, such as a soft time limit, may raise on the first instruction of a function, before any
    `try` of it. When that happens to the end of a block, nobody will call it again. But the interpreter drops it, with
    the traceback, and so the block; and the lock is let go of. A plain `__exit__` is bound to the lock object instead,
    which may live as long as the process.
    """

    __slots__ = ("__weakref__", "_lock", "block")

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self.block: Block | None = None

    @abort.shielded
    def __call__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        self._lock._leave(error)


class Exit:
    """Makes `__exit__` a `BlockEnd` each time it is looked up, which `with` does before it enters."""

    def __get__(self, lock: Lock | None, cls: type[Lock]) -> Any:
        if lock is None:
            return _leave  # for `ExitStack`, which looks it up on the class
        end = BlockEnd(lock)
        lock._blocks.expect(end)
        return end


@abort.shielded
def _leave(lock: Lock, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
    lock._leave(error)


class Blocks:
    """The open blocks of one lock object, by owner; each entry is its owner's alone."""

    __slots__ = ("_expected", "_open")

    def __init__(self) -> None:
        self._open: dict[Owner, list[Callable[[], Block | None]]] = {}  # innermost last; weak where there is an end
        self._expected: dict[Owner, weakref.ref[BlockEnd]] = {}

    def __len__(self) -> int:
        return sum(len(blocks) for blocks in self._open.values())

    def expect(self, end: BlockEnd) -> None:
        """The caller may be about to open the block that this is the end of."""
        self._expected[current_owner()] = weakref.ref(end)

    def expect_none(self) -> None:
        """The caller opens no block after all."""
        self._expected.pop(current_owner(), None)  # or every owner that was turned away would be kept

    @abort.shielded
    def open(self, block: Block) -> None:
        """Open a block."""
        owner = block.hold._owner
        expected = self._expected.pop(owner, None)
        end = expected() if expected is not None else None
        if end is None:
            self._open.setdefault(owner, []).append(lambda: block)
        else:
            self._open.setdefault(owner, []).append(self._weakly(block))
            end.block = block
        holds.live_holds.open_block(owner, block.guard)

    def _weakly(self, block: Block) -> weakref.ref[Block]:
        hold, guard, owner = block.hold, block.guard, block.owner
        transaction, release = block.transaction, block.release

        def on_dropped(reference: weakref.ref[Block]) -> None:
            self._strike_off(owner, reference)
            guard.disarm()
            if transaction is not None:
                transaction.abandon()
            holds.live_holds.close_block(owner, guard)
            give_back(hold, hold._count - 1, release)  # a `finally` around the block may have released, meanwhile
            logger.warning(
                "an exception tore off the end of a block under lock %s, which is released now%s",
                hold.key,
                work.noted(hold._grant.about),
                extra=hold._grant.logged(),
            )

        return weakref.ref(block, on_dropped)

    def innermost(self) -> Block:
        """Return the innermost block of the caller. Raises `LockNotHeld`."""
        blocks = self._open.get(current_owner())
        if not blocks and len(self._open) == 1:
            # A generator is closed by whoever drops it, and a coroutine when its loop is closed: not by their owner.
            blocks = next(iter(self._open.values()), None)
        block = blocks[-1]() if blocks else None
        if block is None:
            raise LockNotHeld("The block was opened by another task, greenlet or thread.")
        return block

    def is_open(self, block: Block) -> bool:
        """Tell whether a block has not ended yet."""
        return any(reference() is block for reference in self._open.get(block.owner, []))

    @abort.shielded
    def shut(self, block: Block) -> list[Guard]:
        """Watch over a block no more; return the guards of those around it. Doing it again changes nothing."""
        block.guard.disarm()
        owner = block.owner
        for reference in self._open.get(owner, []):
            if reference() is block:
                self._strike_off(owner, reference)
                break
        return holds.live_holds.close_block(owner, block.guard)

    def _strike_off(self, owner: Owner, reference: Callable[[], Block | None]) -> None:
        blocks = self._open.get(owner, [])
        if reference in blocks:
            blocks.remove(reference)
        if not blocks:
            self._open.pop(owner, None)

    @abort.shielded
    def close(self, block: Block, error: BaseException | None) -> ZkLockError | None:
        """End a block; return what is to be raised instead of its error, if it was stopped or its lock was lost."""
        around = self.shut(block)
        try:
            block.end_transaction(error)
        except BaseException as failed:
            _conclude(block, failed, around)
            raise
        return _conclude(block, error, around)


@abort.shielded
def _conclude(block: Block, error: BaseException | None, around: list[Guard]) -> ZkLockError | None:
    hold, guard = block.hold, block.guard
    if hold._grant.inherited:
        return None
    stopped = guard.stopped(error)
    reason = guard.why_lost()
    if reason is None:
        if hold._count or error is not None:
            return None
        return LockNotHeld("The lock was released inside the block.", lock=hold.key)
    receipt = guard.receipt(stopped=stopped)
    if not any(outer.grant is hold._grant for outer in around):
        tell_lost(hold, reason, receipt)
    outer_stopped = any(outer.asked_at is not None for outer in around)  # then that block will say so itself
    committed = error is None and block.transaction is not None  # after the check; too late to speak of a failure
    if (stopped and not outer_stopped) or (error is None and guard.matters and not committed):
        return hold._grant.loss(reason)
    return None
