"""The errors of this package. `ZkLockError` is their root. Some are builtin errors, too, such as `TimeoutError`."""

from __future__ import annotations

from django_zklock.core.errors import (
    AlreadyQueued,
    InvalidLockName,
    InvalidToken,
    LockBusy,
    LockChangedHands,
    LockInTransaction,
    LockLost,
    LockLostInterrupt,
    LockNotAcquired,
    LockNotHeld,
    LockTimeout,
    LockUpgradeRefused,
    StaleToken,
    TooManyLocks,
    UnreadableQueue,
    ZkLockError,
    ZooKeeperUnavailable,
)

__all__ = [
    "AlreadyQueued",
    "InvalidLockName",
    "InvalidToken",
    "LockBusy",
    "LockChangedHands",
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

for _name in __all__:
    globals()[_name].__module__ = __name__  # the public path, for tracebacks, pickles and the filters of monitors
