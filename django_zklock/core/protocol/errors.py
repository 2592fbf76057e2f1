"""The errors of a lock that another contender has. They describe that contender."""

from __future__ import annotations

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


class LockNotAdopted(LockNotAcquired):
    """The lock was handed over, and waits for its adopter no longer: it was adopted, or its time was over."""
