"""The locks under test: what the processes of a chaos run ask of a lock, whichever it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any


class Refused(Exception):
    """The lock was not acquired; the message is the kind of the error."""


class Lost(Exception):
    """The lock that was held is no longer held."""


class Held(ABC):
    """One hold of a lock."""

    token: int

    @property
    @abstractmethod
    def kind(self) -> str:
        """The kind of the hold."""

    @abstractmethod
    def until(self) -> float | None:
        """Return until when the holder may trust it, on time.monotonic(); None for a lock without leases."""

    @abstractmethod
    def check(self) -> None:
        """Raise `Lost` unless all that the lock's user can see says that it is held."""

    def downgrade(self) -> None:
        """Turn the writer into a reader. Raises `Lost` if it is no longer held."""
        raise NotImplementedError("this lock cannot be downgraded")

    @abstractmethod
    def release(self) -> None:
        """Give it back."""


class Subject(ABC):
    """One kind of lock, in one process, on one session."""

    @abstractmethod
    def connect(self) -> None:
        """Make the session; returns once it exists."""

    @abstractmethod
    def acquire(self, key: str, timeout: float | None, options: dict[str, Any]) -> Held:
        """
        Acquire, waiting for `timeout` seconds at most (None: for ever). Raises `Refused`.

        The options are for our own lock.
        """

    @abstractmethod
    def block(self, key: str, timeout: float | None, options: dict[str, Any]) -> AbstractContextManager[Held]:
        """Return a `with` block under the lock. Raises `Refused`; `Lost` if the work was stopped, or ended too late."""

    def block_all(self, keys: Sequence[str]) -> AbstractContextManager[Mapping[str, Held]]:
        """Return a `with` block under several locks, with the hold of each key. Raises as `block` does."""
        raise NotImplementedError("this lock is taken by itself")

    def handed_over(self, key: str, timeout: float | None) -> AbstractContextManager[Held]:
        """
        Return a `with` block under a lock that is handed over at the end, to the next such block of this process.

        Raises as `block` does.
        """
        raise NotImplementedError("this lock cannot be handed over")

    @abstractmethod
    def session(self) -> tuple[int, str, float]:
        """Return the session's id, its password in hex, and its timeout as negotiated, if that can be told."""

    @abstractmethod
    def connected(self) -> bool:
        """Tell whether there is a connection, as far as the client knows."""

    @abstractmethod
    def chatter(self) -> None:
        """Send some read to ZooKeeper, as a busy application does, and do not wait for the answer."""

    @abstractmethod
    def known(self) -> list[str]:
        """Return what identifies the znodes that this process still answers for: guids or names."""

    @abstractmethod
    def gauge(self) -> dict[str, int]:
        """Return the sizes of what might leak."""

    def strike(self, point: str, action: str, seconds: float) -> None:
        """Strike at a named moment of the protocol, once."""
        raise NotImplementedError("this lock has no named faultpoints")

    def struck(self) -> bool:
        """Tell whether all strikes have come."""
        raise NotImplementedError("this lock has no named faultpoints")

    @abstractmethod
    def close(self) -> None:
        """End the session in an orderly way."""


def subject(lock: str, url: str, hosts: str, base: str, session_timeout: float) -> Subject:
    """Return the lock of this name: `zklock` or `kazoo`."""
    if lock == "kazoo":
        from support.chaos.subjects.kazoolock import KazooSubject

        return KazooSubject(hosts, base, session_timeout)
    from support.chaos.subjects.zklock import ZkLockSubject

    return ZkLockSubject(url)
