"""Knows the block of work on something that has no row of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import TracebackType

from django.core.exceptions import SynchronousOnlyOperation

from django_zklock.contrib.fences import rows
from django_zklock.execution import abort, owner
from django_zklock.execution.transactions import Transaction
from django_zklock.fencing.fence import Fence, check_fence
from django_zklock.locks.held import check_before_commit
from django_zklock.locks.hold import Hold


class FencedBlock:
    """
    A transaction that begins by raising a fence to a holder's token, and so keeps every other holder from it.

    Raises `StaleToken` when a newer holder was there, and `LockLost` when the lock is found lost just before the
    commit, unless its `abort_on` is "never"; either way nothing is committed. Within another transaction the fence is
    kept to the end of that.
    """

    def __init__(self, fence: Fence, name: str, using: str = "default") -> None:
        check_fence(fence)
        self._block: AbstractContextManager[None] = _block(fence, name, using)

    def __enter__(self) -> None:
        if owner.loop_is_running():
            raise SynchronousOnlyOperation(_INSTEAD)
        self._block.__enter__()

    @abort.shielded
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        # Shielded: an abort that tears the COMMIT would leave nobody knowing whether it happened.
        return self._block.__exit__(kind, error, traceback)

    async def __aenter__(self) -> None:
        raise SynchronousOnlyOperation(_INSTEAD)

    async def __aexit__(self, *error: object) -> None:
        """Be there, so that `async with` comes to the message above."""


_INSTEAD = (
    "Django has no transactions in async code, so there can be no fenced block. Put the work into a function that "
    'has "with hold.fenced(...):", and await sync_to_async(function)(...).'
)


@contextmanager
def _block(fence: Fence, name: str, using: str) -> Iterator[None]:
    # A generator, as it is closed when it is dropped: an exception may strike before it comes to the end of the block.
    transaction = Transaction((using,))
    try:
        transaction.begin()
        rows.advance_fence(fence, name, using)
        yield
        transaction.end(None, partial(check_before_commit, fence._held) if isinstance(fence, Hold) else _nothing)
    except BaseException as error:
        transaction.end(error, _nothing)
        raise
    finally:
        transaction.abandon()  # what was struck before it came to its end


def _nothing() -> None:
    """Check nothing."""
