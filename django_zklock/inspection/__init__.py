"""Show the holders and waiters of any lock, without joining its queue."""

from __future__ import annotations

from django_zklock.inspection.info import Connection, ContenderInfo, LockInfo, Snapshot, Wait
from django_zklock.inspection.queries import look_at, snapshot
from django_zklock.queue.markers import SetLimit
from django_zklock.queue.operator_hold import OperatorHold

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
