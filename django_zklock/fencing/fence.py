"""Knows what a fence is, and what is said of one that is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from django.db import connections
from django.db.transaction import TransactionManagementError

from django_zklock.exceptions import FenceRegressed, LockNotHeld, StaleToken
from django_zklock.execution import transactions

if TYPE_CHECKING:
    from django_zklock.locks.hold import Hold

_SHARED: Final = ("read", "semaphore")


class Fence(Protocol):
    """What a row is fenced with: a `Hold`, or whatever else names a lock and the token of one of its grants."""

    @property
    def key(self) -> str:
        """The key of the lock."""

    @property
    def token(self) -> int:
        """The token of the grant."""


def check_fence(fence: Fence) -> None:
    """
    Raise for what names no grant, and for a hold that was released and that no transaction keeps.

    The token alone decides what is written, so work under a released hold would mostly succeed, without a lock. A
    token that is used on purpose after the release is no `Hold`.
    """
    if not hasattr(fence, "token") or not hasattr(fence, "key"):
        raise TypeError(f"A fence is a hold, as current_hold() or `with zk_lock(...) as hold` gives it; not {fence!r}.")
    hold = _as_hold(fence)
    if hold is not None and hold._held.is_over:
        raise LockNotHeld(
            f"The hold of {fence.key!r} was released, so it cannot fence any more. Fence inside the block of the lock.",
            lock=fence.key,
        )


def require_transaction(using: str, call: str) -> None:
    """
    Raise unless a transaction is open, that the row stays locked to the end of.

    That of a `TestCase` does not count, as with `atomic(durable=True)`: outside the test there would be none.
    """
    connection = connections[using]
    if using in transactions.open_blocks() or (not connection.in_atomic_block and not connection.get_autocommit()):
        return
    raise TransactionManagementError(
        f"{call} needs an open transaction on the database {using!r}: the row is locked to its end, so that no newer "
        f'holder comes between. Put it, and all that it protects, into "with transaction.atomic(using={using!r}):".'
    )


def refusal(fence: Fence, what: str, seen: int | None) -> StaleToken:
    """Return the error for a fence that `what` refuses, which has `seen` a higher token, read just now."""
    message = f"{what} has seen {'a newer token' if seen is None else f'the token {seen}'}, and this is {fence.token}"
    hold = _valid_hold(fence)
    if seen is not None and hold is not None:
        from django_zklock.fencing import horizon  # noqa: PLC0415 - Django's start does not import kazoo

        reached = horizon.ask(hold)
        if reached is not None and seen > reached and not hold.lost:
            return FenceRegressed(
                f"{message}; but ZooKeeper has come no further than {reached}, so it cannot have given that token to "
                "anybody: it was wiped, or restored from an older state, or is another one than before. All writes "
                'will be refused until it is there again. "manage.py zklock fences" lists such rows, and with --reset '
                "lets tokens begin anew.",
                lock=fence.key,
            )
    if hold is not None and hold.kind in _SHARED and not hold.lost:
        return StaleToken(
            f"{message}: another holder that shares the lock {fence.key!r} has written since. Tokens order holders "
            "that come after one another, not those at the same time; write under a lock that is held alone: "
            'kind="write", or one for each row.',
            lock=fence.key,
        )
    return StaleToken(f"{message}: the lock {fence.key!r} has been given to somebody else since.", lock=fence.key)


def _valid_hold(fence: Fence) -> Hold | None:
    hold = _as_hold(fence)
    return hold if hold is not None and not hold.lost else None


def _as_hold(fence: Fence) -> Hold | None:
    from django_zklock.locks.hold import Hold  # noqa: PLC0415 - models import this module, and kazoo comes with a hold

    return fence if isinstance(fence, Hold) else None
