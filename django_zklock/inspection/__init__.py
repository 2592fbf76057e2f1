"""Show who holds and who waits for any lock, without taking part in its queue."""

from __future__ import annotations

from django_zklock.inspection.info import Connection, ContenderInfo, LockInfo, Snapshot, Wait
from django_zklock.inspection.queries import look_at, snapshot
from django_zklock.queue.limits import SetLimit
from django_zklock.queue.operators import OperatorHold

__all__ = [
    "Connection",
    "ContenderInfo",
    "LockInfo",
    "OperatorHold",
    "SetLimit",
    "Snapshot",
    "Wait",
    "look_at",
    "snapshot",
]
