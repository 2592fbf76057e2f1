"""Knows how to ask who holds and who waits for any lock at all, without taking part."""

from __future__ import annotations

from django_zklock.inspection.survey import Survey, survey
from django_zklock.inspection.values import Connection, ContenderInfo, LockInfo, Snapshot, Wait
from django_zklock.queue.operators import OperatorHold

__all__ = [
    "Connection",
    "ContenderInfo",
    "LockInfo",
    "OperatorHold",
    "Snapshot",
    "Survey",
    "Wait",
    "look_at",
    "snapshot",
    "survey",
]


def snapshot(*, patience: float = 1.5, max_age: float = 1.0, max_locks: int = 1000, max_waiters: int = 50) -> Snapshot:
    """
    Look at all locks that somebody holds or waits for, for at most `patience` seconds.

    A snapshot that is at most `max_age` seconds old is given again, and callers at the same time share one look. Of
    each lock the holders are read and the first `max_waiters` waiters; all are counted. Never raises because ZooKeeper
    is away: `problem` says so then, and the locks are those that were last seen, with their age.
    """
    raise NotImplementedError


def look_at(key: str, *, patience: float = 1.5) -> LockInfo | None:
    """
    Look at one lock; return None if nobody holds it or waits for it.

    It is read anew, with its first fifty waiters. Raises `ZooKeeperUnavailable` if there is no answer within `patience`
    seconds.
    """
    raise NotImplementedError
