"""The errors of this package: one root, and the builtin a caller would catch beside it."""

from __future__ import annotations

import inspect
from typing import Any


class ZkLockError(Exception):
    """
    A lock operation failed.

    The root of all errors here; catch it to catch them all. `lock` is the key of the lock, where there is one.
    """

    lock: str | None

    def __init__(self, message: str = "", *, lock: str | None = None) -> None:
        super().__init__(message or _first_line(type(self)))
        self.lock = lock


class LockNotAcquired(ZkLockError):
    """The lock was not acquired. Somebody else has it."""


class LockBusy(LockNotAcquired):
    """The lock is held by somebody else, and the caller asked not to wait."""


class LockHeldByCaller(LockBusy):
    """
    The lock is held by a task that waits for the result of this one, so neither would ever go on.

    Let the caller let go of the lock first, or call the work as a function: the lock is its owner's to take again.
    """


class LockTimeout(LockNotAcquired, TimeoutError):
    """The lock was still held by somebody else when the time to wait was over."""


class LockLost(ZkLockError):
    """The lock was held, and can no longer be trusted: its lease is over, its session gone or its node deleted."""


class LockNotHeld(ZkLockError, RuntimeError):
    """The lock is not held by this owner (asyncio task, greenlet or thread) of this process."""


class LockChangedHands(ZkLockError):
    """The lock is not held by the one it was to be taken from (any more). Look again who has it."""


class ReleaseRequestUnsupported(ZkLockError):
    """The holder receives no release requests: it is an operator hold, or of a client that does not know them."""


class LockUpgradeRefused(ZkLockError, RuntimeError):
    """The lock was to be taken for more by an owner that shares it with others, and would wait for itself."""


class LockInTransaction(ZkLockError, RuntimeError):
    """The lock was to be taken inside an open transaction, and would be released before that is committed."""


class AlreadyQueued(ZkLockError):
    """
    The task was not sent: one of the same key is queued or runs already.

    `task_id` is that one's, and `result` its AsyncResult.
    """

    task_id: str = ""
    result: Any = None


class StaleToken(ZkLockError):
    """The row has seen a newer holder: this fencing token is out of date."""


class FenceRegressed(StaleToken):
    """
    The row has seen a token that ZooKeeper is yet to come to: its data were wiped, or restored from an older state.

    Until it comes there, every write is refused. `manage.py zklock fences` shows such rows, and resets them.
    """


class ForgedToken(ZkLockError, PermissionError):
    """This fencing token cannot be trusted: nobody who has our keys signed it, or it is for another resource."""


class ExpiredToken(ZkLockError):
    """The lease behind this fencing token is over, by the clock of who received it."""


class ZooKeeperUnavailable(ZkLockError, ConnectionError):
    """ZooKeeper did not answer in time, so nobody can tell who holds the lock."""


class InvalidLockName(ZkLockError, ValueError):
    """The lock's name, or a value put into it, cannot be the name of a lock."""


class UnreadableQueue(ZkLockError):
    """The lock's queue holds something that nobody's grammar knows, so no grant from it would be safe."""


class LockLostInterrupt(BaseException):
    """
    The work under a lock is being stopped, because the lock was lost.

    Raised inside the work, and turned into `LockLost` at the edge of the block. It is no `Exception`, and
    stands outside the tree of `ZkLockError`, so that no `except Exception` in the work can swallow it.
    """


def _first_line(cls: type[BaseException]) -> str:
    return (inspect.getdoc(cls) or cls.__name__).partition("\n")[0]
