"""
Locks as JSON, the same for the admin and for `manage.py zklock`.

Tokens are strings, as they have 64 bits and JavaScript's numbers have 53. Sessions are hexadecimal strings. What is
absent is null, times are in ISO 8601, and spans of time are in seconds.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from django_zklock.core.queue.escaping import session_hex
from django_zklock.core.queue.markers import SetLimit
from django_zklock.core.queue.operator_hold import OperatorHold
from django_zklock.core.queue.release_request import ReleaseRequest
from django_zklock.inspection.info import ConnectionInfo, LockInfo, ScannedContender, Snapshot, Wait
from django_zklock.locks.queue_reader import ContenderInfo

_CONTENDER: Final = (
    *("name", "path", "guid", "kind", "token", "session", "came", "client", "host", "pid", "thread", "what", "about"),
    *("template", "operator", "release_request", "limit", "max_hold", "session_timeout", "idle_since"),
)
NAMES: Final[dict[type, tuple[str, ...]]] = {
    Snapshot: ("taken_at", "age", "problem", "skipped", "total", "connection", "cycles", "locks"),
    ConnectionInfo: ("state", "server", "session", "timeout", "hosts"),
    Wait: ("who", "holds", "waits_for"),
    LockInfo: (
        *("key", "path", "kind", "state", "limit", "limit_set", "own_limits", "holders", "expired_holds", "waiters"),
        *("waiting", "held_for", "held_at_most", "idle_for", "longest_wait", "problem"),
    ),
    ContenderInfo: _CONTENDER,
    ScannedContender: (*_CONTENDER, "held_since", "held_at_most", "age", "waits_behind"),
    OperatorHold: ("by", "reason", "since", "until", "token"),
    ReleaseRequest: ("by", "reason", "at"),
    SetLimit: ("limit", "by", "reason", "when"),
}
"""The names of each value in JSON, in their order."""
_OR_ABSENT: Final = {"max_hold", "session_timeout", "waits_behind"}
"""Names of values that are absent if they are 0 or empty."""


def to_json(value: Any) -> Any:
    """Return a value of inspection for JSON."""
    names = NAMES.get(type(value))
    if names is not None:
        return {name: to_json(_attribute(value, name)) for name in names}
    if isinstance(value, datetime):
        return value.isoformat()
    return [to_json(item) for item in value] if isinstance(value, tuple) else value


def _attribute(value: Any, name: str) -> object:
    if name == "token":
        return str(value.token)
    if name == "session":
        return session_hex(value.session_id) or None
    if name == "state" and isinstance(value, LockInfo):
        return value.state()
    if name == "held_at_most":
        return any(holder.at_most for holder in value.holders[:1]) if isinstance(value, LockInfo) else value.at_most
    attribute = getattr(value, name)
    return None if name in _OR_ABSENT and not attribute else attribute
