"""The block of `hold.fenced(name)`: a transaction fenced by a row in the table of fences."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType

from django.core.exceptions import SynchronousOnlyOperation

from django_zklock.contrib.fences import rows
from django_zklock.core.execution import abort, owner
from django_zklock.fencing.fence import Fence, check_fence, refusal
from django_zklock.locks.hold import Hold, held_of
from django_zklock.locks.transactions import Transaction


class FencedBlock:
    """
    A transaction that first raises a fence to the token of a holder.

    Until its end, all other holders wait for the fence. After it, those with lower tokens are refused. Within another
    transaction, the fence is locked to the end of that one.

    Raises `StaleToken` if the fence has a higher token, and `LockLost` if the lock turns out to be lost just before
    COMMIT, unless its `abort_on` is "never". Then nothing is committed.
    """

    def __init__(self, fence: Fence, name: str, using: str) -> None:
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
        # Shielded: after an abort in the middle of COMMIT, it would be unknown whether it happened.
        return self._block.__exit__(kind, error, traceback)

    async def __aenter__(self) -> None:
        raise SynchronousOnlyOperation(_INSTEAD)

    async def __aexit__(self, *error: object) -> None:
        """Exists so that `async with` reaches the message of `__aenter__`."""


_INSTEAD = (
    "Django has no transactions in async code, so hold.fenced() does not work there. Put the work into a function "
    'with "with hold.fenced(...):", and await sync_to_async(function)(...).'
)


@contextmanager
def _block(fence: Fence, name: str, using: str) -> Iterator[None]:
    # A generator, because Python closes it when it is deleted: an exception may interrupt even the end of the block.
    transaction = Transaction((using,))
    try:
        transaction.begin()
        _advance(fence, name, using)
        yield
        transaction.end(None, held_of(fence).check_before_commit if isinstance(fence, Hold) else _nothing)
    except BaseException as error:
        transaction.end(error, _nothing)
        raise
    finally:
        transaction.abandon()  # if an exception interrupted the end


def _advance(fence: Fence, name: str, using: str) -> None:
    higher_token = rows.try_advance(name, fence.token, using)
    if higher_token is not None:
        raise refusal(fence, f"The fence {name!r}", higher_token)


def _nothing() -> None:
    """Check nothing: the fence is no hold, or the transaction is rolled back."""
