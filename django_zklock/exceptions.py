"""The errors of this package. `ZkLockError` is their root. Some are builtin errors, too, such as `TimeoutError`."""

from __future__ import annotations

from typing import Any

from django_zklock.core.errors import (
    InvalidHandOver,
    InvalidLockName,
    LockLost,
    LockLostInterrupt,
    LockNotHeld,
    LockUpgradeRefused,
    TooManyLocks,
    UnreadableQueue,
    ZkLockError,
    ZooKeeperUnavailable,
)
from django_zklock.core.protocol.errors import (
    DeadlockLink,
    LockBusy,
    LockDeadlock,
    LockNotAcquired,
    LockNotAdopted,
    LockTimeout,
)

__all__ = [
    "AlreadyQueued",
    "DeadlockLink",
    "InvalidHandOver",
    "InvalidLockName",
    "InvalidToken",
    "LockBusy",
    "LockChangedHands",
    "LockDeadlock",
    "LockInTransaction",
    "LockLost",
    "LockLostInterrupt",
    "LockNotAcquired",
    "LockNotAdopted",
    "LockNotHeld",
    "LockTimeout",
    "LockUpgradeRefused",
    "StaleToken",
    "TooManyLocks",
    "UnreadableQueue",
    "ZkLockError",
    "ZooKeeperUnavailable",
]


class LockChangedHands(ZkLockError):
    """The given holder does not hold the lock (any more). Look up the current holder."""


class LockInTransaction(ZkLockError, RuntimeError):
    """The lock cannot be acquired inside an open transaction: it would be released before the COMMIT."""


class AlreadyQueued(ZkLockError):
    """
    The task was not sent: a task with the same key is queued or running.

    `task_id` is the id of that task, and `result` its AsyncResult.
    """

    task_id: str = ""
    result: Any = None


class StaleToken(ZkLockError):
    """The fencing token is out of date: a newer holder has written the row, or the lease of a signed token is over."""


class InvalidToken(ZkLockError, PermissionError):
    """The fencing token is not trusted: it was not signed with our keys, or is for another resource."""


for _name in __all__:
    globals()[_name].__module__ = __name__  # the public path, for tracebacks, pickles and the filters of monitors
