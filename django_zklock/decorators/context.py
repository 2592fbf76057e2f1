"""Knows what a locked call wants of what it runs in, and what plain code does about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from django_zklock.conf.options import LockOptions
from django_zklock.exceptions import LockLost, LockNotAcquired, ZkLockError
from django_zklock.locks.multi import Locks


class Surroundings(Protocol):
    """What a call runs in: it has defaults of its own, and knows what to do without the lock."""

    @property
    def what(self) -> str:
        """The work, as others in the queue may see it; never its arguments."""

    @property
    def about(self) -> Mapping[str, str]:
        """The same, item by item, for programs that read the queue."""

    @property
    def timeout(self) -> float:
        """Seconds to wait for the lock where nothing else is said."""

    @property
    def on_conflict(self) -> str:
        """What to do after that where nothing else is said."""

    def entering(self, lock: Locks, options: LockOptions) -> None:
        """Learn that the call is about to take its lock; may raise to keep it from that. Not for async functions."""

    def admitted(self) -> None:
        """Learn that the call has its lock; may raise to keep it from its work. Not for async functions."""

    def refused(self, error: ZkLockError, lock: Locks, options: LockOptions) -> Any:
        """Return what the call returns without having had the lock, or raise."""

    def lost(self, error: LockLost, options: LockOptions) -> Any:
        """Return what the call returns when the lock was lost under it, or raise."""


class Code:
    """Plain code: waits 10 s, then raises."""

    timeout = 10.0
    on_conflict = "raise"

    def __init__(self, what: str) -> None:
        self.what = what
        self.about: dict[str, str] = {}

    def entering(self, lock: Locks, options: LockOptions) -> None: ...

    def admitted(self) -> None: ...

    def refused(self, error: ZkLockError, lock: Locks, options: LockOptions) -> None:
        if options.on_conflict != "skip" or not isinstance(error, LockNotAcquired):
            raise error

    def lost(self, error: LockLost, options: LockOptions) -> None:
        raise error
