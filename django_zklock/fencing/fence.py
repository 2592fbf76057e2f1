"""The fences of rows, and the errors for those that are refused."""

from __future__ import annotations

from typing import Final, Protocol

from django.db import connections
from django.db.transaction import TransactionManagementError

from django_zklock import signals
from django_zklock.exceptions import LockNotHeld, StaleToken
from django_zklock.locks import transactions
from django_zklock.locks.events import events
from django_zklock.locks.hold import Hold, held_of

_SHARED: Final = ("read", "semaphore")


class Fence(Protocol):
    """A fence of rows: a `Hold`, or another object with the key of a lock and the token of a grant."""

    @property
    def key(self) -> str:
        """The key of the lock."""

    @property
    def token(self) -> int:
        """The token of the grant."""


def check_fence(fence: Fence) -> None:
    """
    Raise `TypeError` for what is no fence, and `LockNotHeld` for a hold that was released.

    Only the token decides what is written, so work with a released hold would usually succeed, without a lock. To use
    a token after the release on purpose, pass another object than the hold.
    """
    if not hasattr(fence, "token") or not hasattr(fence, "key"):
        raise TypeError(f"A fence is a hold, as current_hold() or `with zk_lock(...) as hold` gives it; not {fence!r}.")
    if isinstance(fence, Hold) and fence.state == "released":
        raise LockNotHeld(
            f"The hold of {fence.key!r} was released, so it cannot fence rows. Fence inside the block of the lock.",
            lock=fence.key,
        )


def require_transaction(using: str, call: str) -> None:
    """
    Raise `TransactionManagementError` unless a transaction is open, which keeps the row locked to its end.

    The transaction of a `TestCase` does not count, as for `atomic(durable=True)`: in production there is none.
    """
    connection = connections[using]
    if using in transactions.open_blocks() or (not connection.in_atomic_block and not connection.get_autocommit()):
        return
    raise TransactionManagementError(
        f"{call} needs an open transaction on the database {using!r}: it keeps the row locked to its end, so that no "
        f'newer holder writes in between. Put all the work into "with transaction.atomic(using={using!r}):".'
    )


def refusal(fence: Fence, what: str, seen: int) -> StaleToken:
    """Return the error for an outdated fence: `what`, such as a row, has `seen` a higher token just now."""
    message = f"{what} has seen the token {seen}, and this is {fence.token}"
    if not isinstance(fence, Hold) or fence.lost:
        return StaleToken(f"{message}: the lock {fence.key!r} was granted to another holder since.", lock=fence.key)
    if fence.kind in _SHARED:
        return StaleToken(
            f"{message}: another holder that shares the lock {fence.key!r} has written since. Tokens order holders "
            'that follow one another, not holders at the same time. Write under an exclusive lock: kind="write", or '
            "one lock for each row.",
            lock=fence.key,
        )
    grant = held_of(fence).grant
    about = {"template": grant.template, "kind": fence.kind, "work": grant.what}
    events.send(grant.session, signals.write_refused, lock=fence.key, **about)
    return StaleToken(
        f"{message}, although this process still trusts its hold of the lock {fence.key!r}. Usually a newer holder has "
        "just written. If it stays so: is the row also written under another lock, whose tokens cannot be compared? Or "
        'has ZooKeeper lost its data? Then its tokens began again at low numbers; see "After ZooKeeper has lost its '
        'data" in docs/how-to/fence-your-rows.md.',
        lock=fence.key,
    )
