"""The errors of a lock that another contender has. They describe that contender."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from django_zklock.core.errors import ZkLockError

if TYPE_CHECKING:  # it imports kazoo, and users import the errors everywhere
    from django_zklock.core.protocol.contender_info import ContenderInfo


class LockNotAcquired(ZkLockError):
    """
    The lock was not acquired, because it has another holder.

    `ahead` describes the holder, or the contender just ahead of a waiter. It is None if it is not known, or the caller.
    """

    ahead: ContenderInfo | None

    def __init__(self, message: str = "", *, lock: str | None = None, ahead: ContenderInfo | None = None) -> None:
        super().__init__(message, lock=lock)
        self.ahead = ahead


class LockBusy(LockNotAcquired):
    """The lock has another holder, and the caller did not want to wait."""


class LockTimeout(LockNotAcquired, TimeoutError):
    """The lock still had another holder when the timeout was over."""


@dataclass(frozen=True, slots=True)
class DeadlockLink:
    """One owner in a deadlock: it holds one lock, and waits for another, which the next link holds."""

    holder: ContenderInfo
    """The contender that holds `holds`; its `what`, `host` and `pid` say who the owner is."""
    holds: str
    waits_for: str
    """The keys of the two locks."""
    holds_template: str
    waits_for_template: str
    """The names of these before their fields were filled in."""

    def __str__(self) -> str:
        """Describe it in one sentence."""
        return f"{self.holder} holds {self.holds!r} and waits for {self.waits_for!r}."


class LockDeadlock(LockNotAcquired):
    """
    The wait was part of a deadlock, which it has ended: owners waited in a circle for each other's locks.

    `circle` has one link for each owner. Each waits for the lock of the next link; the last one waits for the lock of
    the first, which is the owner that got this error.
    """

    circle: tuple[DeadlockLink, ...] = ()
