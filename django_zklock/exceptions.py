"""
The errors of this package, and its warnings.

`ZkLockError` is the root of the errors. Some are builtin errors, too, such as `TimeoutError`.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

from django_zklock.core.errors import (
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
    LockTimeout,
)

__all__ = [
    "AlreadyQueued",
    "DeadlockLink",
    "InvalidLockName",
    "InvalidToken",
    "LockBusy",
    "LockChangedHands",
    "LockDeadlock",
    "LockInTransaction",
    "LockLost",
    "LockLostInterrupt",
    "LockNotAcquired",
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


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn, at the line outside this package that has called it."""
    level = 1
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("django_zklock."):
        frame = frame.f_back
        level += 1
    warnings.warn(text, category, stacklevel=level)
