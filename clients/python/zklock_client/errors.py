"""The errors of the client. `ZkLockError` is their root. Some are builtin errors, too, such as `TimeoutError`."""

from __future__ import annotations

from typing import Final

LONGEST: Final = 1000
"""Characters of a text from outside."""


def printable(text: str) -> str:
    """Return a text of a coordinator as logs and terminals may show it: short, and without control characters."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text[:LONGEST])


class ZkLockError(Exception):
    """A lock operation failed. `lock` is the key of the lock, if there is one; `code` is the coordinator's reason."""

    def __init__(self, message: str, *, lock: str | None = None, code: str = "") -> None:
        super().__init__(printable(message))
        self.lock = lock
        self.code = code


class LockBusy(ZkLockError):
    """The lock has another holder, and the caller did not want to wait."""


class LockTimeout(ZkLockError, TimeoutError):
    """The lock still had another holder when the wait was over."""


class LockLost(ZkLockError):
    """The lock was held and can no longer be trusted: its lease is over, or the coordinator has lost it."""


class LockNotHeld(ZkLockError, RuntimeError):
    """The lock was released."""


class LeaseRefused(ZkLockError):
    """The coordinator refuses the request. The text says why; `code` is the coordinator's word for the reason."""


class CoordinatorUnavailable(ZkLockError, ConnectionError):
    """No coordinator answered in time, or none of them reaches ZooKeeper."""


class ClientUnusable(ZkLockError, RuntimeError):
    """The client is closed, or was in use when the process was forked."""
