"""
Locks as JSON, the same for the admin and for `manage.py zklock`.

Tokens are strings, as they have 64 bits and JavaScript's numbers have 53. Sessions are hexadecimal strings. What is
absent is null, times are in ISO 8601, and spans of time are in seconds.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django_zklock.queue.escaping import session_hex

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django_zklock.inspection.info import LockInfo, ScannedContender, Snapshot
    from django_zklock.locks.queue_reader import ContenderInfo
    from django_zklock.queue.markers import SetLimit
    from django_zklock.queue.operator_hold import OperatorHold


def snapshot_json(snapshot: Snapshot, locks: Iterable[LockInfo] | None = None) -> dict[str, Any]:
    """Return a snapshot for JSON, with all of its locks or only with these."""
    connection = snapshot.connection
    return {
        "taken_at": snapshot.taken_at.isoformat(),
        "age": round(snapshot.age, 3),
        "problem": snapshot.problem,
        "skipped": list(snapshot.skipped),
        "total": snapshot.total,
        "connection": {
            "state": connection.state,
            "server": connection.server,
            "session": session_json(connection.session_id),
            "timeout": connection.timeout,
            "hosts": list(connection.hosts),
        },
        "cycles": [[asdict(wait) for wait in cycle] for cycle in snapshot.cycles],
        "locks": [lock_json(lock) for lock in (snapshot.locks if locks is None else locks)],
    }


def lock_json(lock: LockInfo) -> dict[str, Any]:
    """Return a lock for JSON."""
    return {
        "key": lock.key,
        "path": lock.path,
        "kind": lock.kind,
        "state": lock.state(),
        "limit": lock.limit,
        "limit_set": limit_json(lock.limit_set),
        "own_limits": list(lock.own_limits),
        "holders": [scanned_json(contender) for contender in lock.holders],
        "expired_holds": [scanned_json(contender) for contender in lock.expired_holds],
        "waiters": [scanned_json(contender) for contender in lock.waiters],
        "waiting": lock.waiting,
        "held_for": lock.held_for,
        "held_at_most": any(holder.at_most for holder in lock.holders[:1]),
        "idle_for": lock.idle_for,
        "longest_wait": lock.longest_wait,
        "problem": lock.problem,
    }


def contender_json(contender: ContenderInfo) -> dict[str, Any]:
    """Return a contender for JSON."""
    return {
        "name": contender.name,
        "path": contender.path,
        "guid": contender.guid,
        "kind": contender.kind,
        "token": str(contender.token),
        "session": session_json(contender.session_id),
        "came": contender.came.isoformat(),
        "client": contender.client,
        "host": contender.host,
        "pid": contender.pid,
        "thread": contender.thread,
        "what": contender.what,
        "about": dict(contender.about),
        "template": contender.template,
        "operator": None if contender.operator is None else operator_hold_json(contender.operator),
        "release_request": None if contender.release_request is None else asdict(contender.release_request),
        "limit": contender.limit,
        "max_hold": contender.max_hold or None,
        "session_timeout": contender.session_timeout or None,
        "idle_since": _time(contender.idle_since),
    }


def scanned_json(contender: ScannedContender) -> dict[str, Any]:
    """Return a contender with its place in the queue for JSON."""
    return {
        **contender_json(contender),
        "held_since": _time(contender.held_since),
        "held_at_most": contender.at_most,
        "age": contender.age,
        "waits_behind": contender.waits_behind or None,
        "may_hold": contender.may_hold,
    }


def operator_hold_json(hold: OperatorHold) -> dict[str, Any]:
    """Return an operator hold for JSON."""
    return {
        "by": hold.by,
        "reason": hold.reason,
        "since": hold.since.isoformat(),
        "until": hold.until.isoformat(),
        "token": str(hold.token),
    }


def limit_json(limit: SetLimit | None) -> dict[str, Any] | None:
    """Return a limit that was set for JSON."""
    if limit is None:
        return None
    return {"limit": limit.limit, "by": limit.by, "reason": limit.reason, "when": _time(limit.when)}


def session_json(session_id: int) -> str | None:
    """Return a session id for JSON."""
    return session_hex(session_id) or None


def _time(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()
