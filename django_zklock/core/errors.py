"""The errors of this package. `ZkLockError` is their root. Some are builtin errors, too, such as `TimeoutError`."""

from __future__ import annotations

import inspect
from typing import Any


class ZkLockError(Exception):
    """
    A lock operation failed.

    The root of all errors here but `LockLostInterrupt`. `lock` is the key of the lock, if there is one.
    """

    lock: str | None

    def __init__(self, message: str = "", *, lock: str | None = None) -> None:
        super().__init__(message or _first_line(type(self)))
        self.lock = lock


class LockNotAcquired(ZkLockError):
    """The lock was not acquired, because it has another holder."""


class LockBusy(LockNotAcquired):
    """The lock has another holder, and the caller did not want to wait."""


class LockTimeout(LockNotAcquired, TimeoutError):
    """The lock still had another holder when the timeout was over."""


class LockLost(ZkLockError):
    """The lock was held and can no longer be trusted: its lease or session is over, or its znode was deleted."""


class LockNotHeld(ZkLockError, RuntimeError):
    """The lock is not held by this owner (asyncio task, greenlet or thread) of this process."""


class LockChangedHands(ZkLockError):
    """The given holder does not hold the lock (any more). Look up the current holder."""


class LockUpgradeRefused(ZkLockError, RuntimeError):
    """The owner shares the lock with others and cannot acquire it exclusively: it would wait for itself."""


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


class ZooKeeperUnavailable(ZkLockError, ConnectionError):
    """ZooKeeper did not answer in time, so it is unknown whether the lock is free. Or it refused the request."""


class TooManyLocks(ZooKeeperUnavailable):
    """This process has so many locks and waiters that one more might harm ZooKeeper. Nothing was sent."""


class InvalidLockName(ZkLockError, ValueError):
    """The name of the lock, or the value of a field in it, is not valid."""


class UnreadableQueue(ZkLockError):
    """The queue of the lock has a child with an unknown format, so no grant would be safe."""


class LockLostInterrupt(BaseException):
    """
    The work under a lock is aborted, because the lock was lost.

    It is raised inside the work, and becomes `LockLost` at the end of the block. It is no `Exception` and no
    `ZkLockError`, so that an `except` in the work does not swallow it.
    """


def _first_line(cls: type[BaseException]) -> str:
    return (inspect.getdoc(cls) or cls.__name__).partition("\n")[0]
