"""Knows the `with` blocks that are open, and lets go of a lock whose block was torn off at its very end."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django_zklock import abort
from django_zklock.exceptions import LockNotHeld
from django_zklock.locks import hold as holds
from django_zklock.locks.guard import Guard
from django_zklock.locks.hold import Hold
from django_zklock.locks.taking import let_go
from django_zklock.owner import Owner, current_owner

if TYPE_CHECKING:
    from django_zklock.locks.lock import Lock


logger = logging.getLogger("django_zklock.locks")


class Block:
    """One `with` block that is open."""

    __slots__ = ("__weakref__", "guard", "hold", "owner")

    def __init__(self, hold: Hold, guard: Guard) -> None:
        self.hold = hold
        self.owner = hold._owner  # that of a shared hold may be another at the end
        self.guard = guard


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
    def open(self, hold: Hold, guard: Guard) -> Block:
        """Open a block."""
        owner = hold._owner
        block = Block(hold, guard)
        expected = self._expected.pop(owner, None)
        end = expected() if expected is not None else None
        if end is None:
            self._open.setdefault(owner, []).append(lambda: block)
        else:
            self._open.setdefault(owner, []).append(self._weakly(block))
            end.block = block
        holds.live_holds.open_block(owner, guard)
        return block

    def _weakly(self, block: Block) -> weakref.ref[Block]:
        hold, guard, owner = block.hold, block.guard, block.owner

        def on_dropped(reference: weakref.ref[Block]) -> None:
            self._strike_off(owner, reference)
            guard.disarm()
            holds.live_holds.close_block(owner, guard)
            let_go(hold, hold._count - 1)  # a `finally` around the block may have released, meanwhile
            logger.warning("an exception tore off the end of a block under lock %s, which is released now", hold.key)

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
