"""Show the holders and waiters of any lock, without joining its queue."""

from __future__ import annotations

from django_zklock.core.protocol.contender_info import ContenderInfo
from django_zklock.core.queue.markers import SetLimit
from django_zklock.core.queue.operator_hold import OperatorHold
from django_zklock.inspection.ensemble import EnsembleReport, HealthFinding, ServerReport, ensemble
from django_zklock.inspection.info import ConnectionInfo, Figures, LockInfo, ScannedContender, Snapshot, Wait
from django_zklock.inspection.queries import check_quorum, connection, look_at, snapshot
from django_zklock.inspection.waits import chain_from

__all__ = [
    "ConnectionInfo",
    "ContenderInfo",
    "EnsembleReport",
    "Figures",
    "HealthFinding",
    "LockInfo",
    "OperatorHold",
    "ScannedContender",
    "ServerReport",
    "SetLimit",
    "Snapshot",
    "Wait",
    "chain_from",
    "check_quorum",
    "connection",
    "ensemble",
    "look_at",
    "snapshot",
]
