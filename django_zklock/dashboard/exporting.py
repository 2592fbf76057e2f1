"""The locks as JSON, for dashboards other than ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib.auth.decorators import permission_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from django_zklock.dashboard import core, words
from django_zklock.queue.printable import session_hex

if TYPE_CHECKING:
    from django_zklock.inspection import ContenderInfo, LockInfo, Snapshot


def as_json(snapshot: Snapshot) -> dict[str, Any]:
    """Return a snapshot as what JSON can say; 64 bit numbers are texts, as scripts of browsers have fewer digits."""
    connection = snapshot.connection
    return {
        "taken_at": snapshot.taken_at.isoformat(),
        "age": round(snapshot.age, 3),
        "problem": words.clean(snapshot.problem),
        "total": snapshot.total,
        "connection": {
            "state": connection.state,
            "server": connection.server,
            "session": session_hex(connection.session_id),
            "timeout": connection.timeout,
            "hosts": list(connection.hosts),
        },
        "cycles": [
            [{"who": wait.who, "holds": wait.holds, "waits_for": wait.waits_for} for wait in cycle]
            for cycle in snapshot.cycles
        ],
        "locks": [_lock(info) for info in snapshot.locks],
    }


def _lock(info: LockInfo) -> dict[str, Any]:
    return {
        "key": info.key,
        "path": info.path,
        "kind": info.kind,
        "limit": info.limit,
        "limit_set": info.limit_set
        and {
            "by": info.limit_set.by,
            "reason": info.limit_set.reason,
            "when": info.limit_set.when and info.limit_set.when.isoformat(),
        },
        "own_limits": list(info.own_limits),
        "problem": info.problem,
        "held_for": info.held_for,
        "waiting": info.waiting,
        "longest_wait": info.longest_wait,
        "holders": [_holder(holder) for holder in info.holders],
        "over": [_holder(hold) for hold in info.over],
    }


def _holder(holder: ContenderInfo) -> dict[str, Any]:
    operator = holder.operator
    return {
        "guid": holder.guid,
        "kind": holder.kind,
        "token": str(holder.token),
        "session": session_hex(holder.session_id),
        "came": holder.came.isoformat(),
        "held_since": holder.held_since and holder.held_since.isoformat(),
        "client": holder.client,
        "host": holder.host,
        "pid": holder.pid,
        "thread": holder.thread,
        "what": holder.what,
        "about": dict(holder.about),
        "release_request": holder.release_request
        and {"by": holder.release_request.by, "reason": holder.release_request.reason, "at": holder.release_request.at},
        "operator": operator and {"by": operator.by, "reason": operator.reason, "until": operator.until.isoformat()},
    }


@never_cache
@require_safe
@permission_required("zklock.view_lock", raise_exception=True)
def locks_json(request: HttpRequest) -> HttpResponse:
    """Give all locks as JSON to who may see them, 403 to others; for a project's own `urls.py`."""
    return JsonResponse(as_json(core.inspection.snapshot(max_waiters=1)))
