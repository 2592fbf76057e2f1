"""Knows how a person steps in: a lock is broken, or held for a time with a reason. Each step is audited first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from django_zklock.queue.operators import OperatorHold

__all__ = ["Broken", "Holder", "OperatorHold", "break_lock", "end_hold", "hold_lock"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who held a lock that was broken; what ZooKeeper said of it is cut, and has no control characters."""

    name: str
    guid: str
    token: int
    session_id: int
    host: str
    pid: int
    thread: str
    what: str
    about: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A lock that was broken."""

    key: str
    holder: Holder
    reason: str
    by: str


def break_lock(key: str, *, guid: str, token: int, reason: str, by: str, patience: float = 5.0) -> Broken:
    """
    Take a lock from the one who holds it now, who is told at once that it is lost; the next in the queue gets it.

    Exactly the node with this guid and token (its czxid) is deleted, and only if it is the holder's. Nobody who waits
    is ever touched. Goes to the log `zklock.audit`; then the signal `lock_broken` is sent.

    Args:
        key: of the lock.
        guid: of the holder's node, as inspection shows it.
        token: of the holder's node.
        reason: why, for the audit and for the one who loses it; required.
        by: who does it.
        patience: seconds to wait for ZooKeeper.

    Raises:
        LockChangedHands: the one with this guid and token does not hold the lock (any more).
        ZooKeeperUnavailable: ZooKeeper did not answer in time; if the request had been sent, it may be broken.
        ValueError: there is no reason, or nobody who does it.

    """
    raise NotImplementedError


def hold_lock(
    key: str, *, seconds: float, reason: str, by: str, wait: float = 0, patience: float = 5.0
) -> OperatorHold:
    """
    Take a lock for a person, for `seconds` from the moment it is granted, to drain a deploy, say.

    It comes last in the queue like anybody, and waits at most `wait` seconds for its turn. It outlives this process:
    it ends by `end_hold`, or by itself, by the clock of the server.

    Raises:
        LockBusy: somebody has the lock, and `wait` is 0.
        LockTimeout: it was not free within `wait` seconds.
        ZooKeeperUnavailable: ZooKeeper did not answer; what may have been written ends by itself.
        ValueError: there is no reason, nobody who asks, or `seconds` is not within 0 and a week.

    """
    raise NotImplementedError


def end_hold(key: str, *, token: int, by: str, reason: str = "", patience: float = 5.0) -> None:
    """
    End an operator's hold before its time.

    Raises:
        LockChangedHands: no operator's hold of this lock has this token (any more); it may have ended by itself.
        ZooKeeperUnavailable: ZooKeeper did not answer in time.

    """
    raise NotImplementedError
