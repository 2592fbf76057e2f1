"""Show the holders and waiters of any lock, without joining its queue."""

from __future__ import annotations

from django_zklock.core.protocol.contender_info import ContenderInfo
from django_zklock.core.queue.markers import SetLimit
from django_zklock.core.queue.operator_hold import OperatorHold
from django_zklock.inspection.ensemble import EnsembleReport, ServerReport, check_quorum, ensemble
from django_zklock.inspection.info import ConnectionInfo, LockInfo, ScannedContender, Snapshot, Wait
from django_zklock.inspection.queries import connection, look_at, look_at_each, snapshot
from django_zklock.inspection.waits import Graph

__all__ = [
    "ConnectionInfo",
    "ContenderInfo",
    "EnsembleReport",
    "Graph",
    "LockInfo",
    "OperatorHold",
    "ScannedContender",
    "ServerReport",
    "SetLimit",
    "Snapshot",
    "Wait",
    "check_quorum",
    "connection",
    "ensemble",
    "look_at",
    "look_at_each",
    "snapshot",
]
