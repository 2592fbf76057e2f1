"""Knows how to ask who holds and who waits for any lock at all, without taking part."""

from __future__ import annotations

from django_zklock.inspection.looks import look_at, snapshot
from django_zklock.inspection.survey import Survey, survey
from django_zklock.inspection.values import Connection, ContenderInfo, LockInfo, Snapshot, Wait
from django_zklock.queue.limits import SetLimit
from django_zklock.queue.operators import OperatorHold

__all__ = [
    "Connection",
    "ContenderInfo",
    "LockInfo",
    "OperatorHold",
    "SetLimit",
    "Snapshot",
    "Survey",
    "Wait",
    "look_at",
    "snapshot",
    "survey",
]
