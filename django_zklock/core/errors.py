"""The errors of this package. `ZkLockError` is their root. Some are builtin errors, too, such as `TimeoutError`."""

from __future__ import annotations

import inspect


class ZkLockError(Exception):
    """
    A lock operation failed.

    The root of all errors here but `LockLostInterrupt`. `lock` is the key of the lock, if there is one.
    """

    lock: str | None
    not_rolled_back = False
    """Whether the work that has begun, or a part of it, is not rolled back."""

    def __init__(self, message: str = "", *, lock: str | None = None) -> None:
        super().__init__(message or _first_line(type(self)))
        self.lock = lock


class LockLost(ZkLockError):
    """The lock was held and can no longer be trusted: its lease or session is over, or its znode was deleted."""


class LockNotHeld(ZkLockError, RuntimeError):
    """The lock is not held by this owner (asyncio task, greenlet or thread) of this process."""


class LockUpgradeRefused(ZkLockError, RuntimeError):
    """The owner shares the lock with others and cannot acquire it exclusively: it would wait for itself."""


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
