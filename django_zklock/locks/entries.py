"""
Knows the `with` blocks of several locks together: which locks of each are taken so far, and how they are let go of.

A block of several locks is a block of each, one inside the other, and ends as those would: what one of them raises at
its end is the error that ends the next. What is known of it hangs on its end alone, as it does for one lock
(`blocks`): should an exception tear that off, it is dropped, and all the locks with it.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from django_zklock.exceptions import LockNotHeld, ZkLockError
from django_zklock.execution import abort
from django_zklock.execution.owner import Owner, current_owner
from django_zklock.execution.transactions import Transaction
from django_zklock.execution.waiters import TaskWaiter, ThreadWaiter
from django_zklock.locks.blocks import BlockEnd
from django_zklock.locks.guard import Guard
from django_zklock.locks.hold import Hold
from django_zklock.locks.protocol.grant import Grant
from django_zklock.locks.taking import RELEASE_PATIENCE

if TYPE_CHECKING:
    from django_zklock.locks.lock import Lock
    from django_zklock.locks.multi import MultiLock

Waiter = TypeVar("Waiter", ThreadWaiter[bool], TaskWaiter[bool])


class MultiEnd:
    """What the interpreter calls at the end of one `with` block of several locks; it alone keeps the block."""

    __slots__ = ("__weakref__", "_lock", "blocks", "kept", "owner")

    def __init__(self, lock: MultiLock) -> None:
        self._lock = lock
        self.blocks: list[BlockEnd] = []  # of the single locks, as far as they were come to; innermost last
        self.owner = current_owner()
        self.kept = False  # by nobody but the lock

    @abort.shielded
    def __call__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        self._lock._leave(self if self.blocks else self._lock._ends.innermost(), error)

    @property
    def grants(self) -> list[Grant]:
        """The grants of the locks whose blocks are open."""
        return [end.block.hold._grant for end in self.blocks if end.block is not None]

    def begin_block(self, lock: Lock) -> None:
        """The caller is about to open a block of one of the locks."""
        end = BlockEnd(lock)
        self.blocks.append(end)
        lock._blocks.expect(end)


class MultiExit:
    """Makes `__exit__` a `MultiEnd` each time it is looked up, which `with` does before it enters."""

    def __get__(self, lock: MultiLock | None, cls: type[MultiLock]) -> Any:
        if lock is None:
            return _leave  # for `ExitStack`, which looks it up on the class
        end = MultiEnd(lock)
        lock._ends.expect(end)
        return end


@abort.shielded
def _leave(lock: MultiLock, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
    lock._leave(lock._ends.innermost(), error)


class Ends:
    """The ends of the blocks of one `MultiLock` that nobody else keeps, by owner; each entry is its owner's alone."""

    def __init__(self) -> None:
        self._kept: dict[Owner, list[MultiEnd]] = {}  # innermost last
        self._expected: dict[Owner, weakref.ref[MultiEnd]] = {}

    def expect(self, end: MultiEnd) -> None:
        """The caller may be about to open the block that this is the end of."""
        self._expected[end.owner] = weakref.ref(end)

    def begin(self, lock: MultiLock) -> MultiEnd:
        """Return the end of the block that the caller opens."""
        expected = self._expected.pop(current_owner(), None)
        end = expected() if expected is not None else None
        if end is None:
            end = MultiEnd(lock)
            end.kept = True
        return end

    def opened(self, end: MultiEnd) -> None:
        """Keep the end of a block that is open now, if nobody else does."""
        if end.kept:
            self._kept.setdefault(end.owner, []).append(end)

    def innermost(self) -> MultiEnd:
        """Return the end of the innermost block of the caller, of those kept here. Raises `LockNotHeld`."""
        ends = self._kept.get(current_owner())
        if not ends and len(self._kept) == 1:
            ends = next(iter(self._kept.values()))  # a coroutine is closed with its loop, by whoever does that
        for end in reversed(ends or []):
            if end.blocks:  # else it was left, and what struck it then kept it from being forgotten
                return end
        raise LockNotHeld("The block was opened by another task, greenlet or thread.")

    def forget(self, end: MultiEnd) -> None:
        """Keep the end of a block no more; doing it again changes nothing."""
        ends = self._kept.get(end.owner, [])
        if end in ends:
            ends.remove(end)
        if not ends:
            self._kept.pop(end.owner, None)


class InsideAll(Transaction):
    """The transactions of a block of several locks: committed if all of them are still held then."""

    def __init__(self, aliases: tuple[str, ...], outer: list[tuple[Hold, Guard]]) -> None:
        super().__init__(aliases)
        self._outer = outer  # of the locks round the innermost one, whose block has the transactions

    @abort.shielded
    def end(self, error: BaseException | None, check: Callable[[], object]) -> None:
        def check_all() -> None:
            for hold, guard in self._outer:
                if guard.matters:
                    hold.check()
            check()

        super().end(error, check_all)


@abort.shielded
def leave(
    end: MultiEnd, error: BaseException | None, new_waiter: Callable[[], Waiter]
) -> tuple[BaseException | None, list[Waiter]]:
    """
    End the blocks of all locks, the innermost first; return the error that goes on, and what says that they are gone.

    Waits for nothing. Whatever strikes it, all locks are let go of.
    """
    waiters: list[Waiter] = []
    try:
        while end.blocks:
            waiter = new_waiter()
            error, clean = _leave_one(end.blocks[-1], error, waiter.set)
            if clean:
                waiters.append(waiter)
            end.blocks.pop()
        return error, waiters
    except BaseException:
        while end.blocks:
            _give_up(end.blocks[-1])
            end.blocks.pop()
        raise


@abort.shielded
def _leave_one(
    end: BlockEnd, error: BaseException | None, left: Callable[[bool], object]
) -> tuple[BaseException | None, bool]:
    """End the block of one lock; return the error that goes on, and whether `left` will be called."""
    blocks = end._lock._blocks
    if end.block is None or not blocks.is_open(end.block):
        blocks.expect_none()  # it was not come to, or has been undone by itself
        return error, False
    try:
        end._lock._leave(error, end.block, left)
    except ZkLockError as lost:
        return lost, True
    except BaseException as struck:  # noqa: BLE001 - raised when all are let go of
        _give_up(end)
        return struck, False
    return error, True


@abort.shielded
def _give_up(end: BlockEnd) -> None:
    """End a block without waiting for anything, unless it has ended; doing it again changes nothing."""
    if end.block is not None and end._lock._blocks.is_open(end.block):
        end._lock._close_anyway(end.block, None)


@abort.shielded
def wait_all(waiters: list[ThreadWaiter[bool]]) -> None:
    """Wait at most a second in all for ZooKeeper's word that the nodes are gone."""
    deadline = time.monotonic() + RELEASE_PATIENCE
    for waiter in waiters:
        waiter.wait(max(0.0, deadline - time.monotonic()))


async def await_all(waiters: list[TaskWaiter[bool]]) -> None:
    """Do the same in a coroutine."""
    deadline = time.monotonic() + RELEASE_PATIENCE
    for waiter in waiters:
        await waiter.wait(max(0.0, deadline - time.monotonic()))
