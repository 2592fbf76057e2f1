"""
Step in as an operator: break a lock, ask its holders to release it, hold it for a time, or limit it.

Each function blocks until ZooKeeper has answered. Before it returns, it writes to the log `zklock.audit`. The app
`django_zklock.contrib.events` also writes each action to its table.
"""

from __future__ import annotations

from django_zklock.core.queue.markers import SetLimit
from django_zklock.core.queue.operator_hold import OperatorHold
from django_zklock.core.queue.release_request import ReleaseRequest
from django_zklock.operations.audit import Action, acting_via
from django_zklock.operations.breaks import break_lock
from django_zklock.operations.limits import clear_limit, limit_of, set_limit
from django_zklock.operations.operator_holds import end_hold, hold_lock
from django_zklock.operations.release_requests import request_release

__all__ = [
    "Action",
    "OperatorHold",
    "ReleaseRequest",
    "SetLimit",
    "acting_via",
    "break_lock",
    "clear_limit",
    "end_hold",
    "hold_lock",
    "limit_of",
    "request_release",
    "set_limit",
]
