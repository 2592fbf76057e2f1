"""What is known of locks, as JSON for programs and as cells for people."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django_zklock.inspection import Connection, ContenderInfo, LockInfo, SetLimit, Snapshot, Wait
from django_zklock.management.durations import shown
from django_zklock.queue.operators import OperatorHold
from django_zklock.queue.printable import session_hex

HEAD = ("lock", "kind", "holder", "runs", "held", "waiting", "longest wait", "token")
NUMBERS = ("held", "waiting", "longest wait", "token")


def cells(lock: LockInfo) -> tuple[str, ...]:
    """Return the line of one lock in the list."""
    holder = lock.holders[0] if lock.holders else None
    more = f" +{len(lock.holders) - 1}" if len(lock.holders) > 1 else ""
    held, wait = lock.held_for, lock.longest_wait
    return (
        lock.key,
        kind(lock),
        f"{whose(holder)}{more}" if holder else f"? {lock.problem or '; '.join(map(over, lock.over))}",
        runs(holder) if holder else "",
        "" if held is None else shown(held),
        str(lock.waiting),
        "" if wait is None else shown(wait),
        str(holder.token) if holder else "",
    )


def kind(lock: LockInfo) -> str:
    """Return what a lock is, in a word or two: of a semaphore, how many permits are in use."""
    if lock.limit is None:
        return lock.kind
    return f"{len(lock.holders) if permits_in_use(lock) else 0} of {lock.limit}"


def permits_in_use(lock: LockInfo) -> bool:
    """Tell whether who holds a lock has a permit of a semaphore."""
    return any(each.kind == "semaphore" for each in lock.holders)


def whose(contender: ContenderInfo) -> str:
    """Return which process a contender is of."""
    if contender.operator is not None:
        return contender.operator.who
    if contender.client != "zklock":
        return f"{contender.client}, session {session_hex(contender.session_id)}"
    return f"{contender.host}:{contender.pid}"


def over(contender: ContenderInfo) -> str:
    """Return that the time of a hold is over."""
    return f"{whose(contender)}: its time is over"


def runs(contender: ContenderInfo) -> str:
    """Return what a contender runs."""
    hold = contender.operator
    return contender.what if hold is None else f"until {hold.until:%Y-%m-%d %H:%M:%S} UTC: {hold.reason}"


def lock_json(lock: LockInfo) -> dict[str, Any]:
    """Return a lock for JSON. Tokens are texts, as they have 64 bits and many readers have 53."""
    return {
        "key": lock.key,
        "path": lock.path,
        "kind": lock.kind,
        "limit": lock.limit,
        "limit_set": None if lock.limit_set is None else limit_json(lock.limit_set),
        "own_limits": list(lock.own_limits),
        "holders": [contender_json(each) for each in lock.holders],
        "over": [contender_json(each) for each in lock.over],
        "waiters": [contender_json(each) for each in lock.waiters],
        "waiting": lock.waiting,
        "held_for": lock.held_for,
        "longest_wait": lock.longest_wait,
        "problem": lock.problem,
    }


def contender_json(contender: ContenderInfo) -> dict[str, Any]:
    """Return a contender for JSON."""
    return {
        "name": contender.name,
        "guid": contender.guid,
        "kind": contender.kind,
        "token": str(contender.token),
        "session": session_hex(contender.session_id) or None,
        "came": contender.came,
        "held_since": contender.held_since,
        "age": contender.age,
        "client": contender.client,
        "host": contender.host,
        "pid": contender.pid,
        "thread": contender.thread,
        "what": contender.what,
        "about": dict(contender.about),
        "template": contender.template,
        "operator": None if contender.operator is None else hold_json(contender.operator),
        "waits_behind": contender.waits_behind or None,
        "release_request": None if contender.release_request is None else asdict(contender.release_request),
        "limit": contender.limit,
        "may_hold": contender.may_hold,
    }


def hold_json(hold: OperatorHold) -> dict[str, Any]:
    """Return an operator's hold for JSON."""
    return {"by": hold.by, "reason": hold.reason, "since": hold.since, "until": hold.until, "token": str(hold.token)}


def limit_json(limit: SetLimit) -> dict[str, Any]:
    """Return a limit that was set for JSON."""
    return {"limit": limit.limit, "by": limit.by, "reason": limit.reason, "when": limit.when}


def limit_text(limit: SetLimit) -> str:
    """Return a limit that was set in one line."""
    when = f" on {limit.when:%Y-%m-%d %H:%M:%S} UTC" if limit.when is not None else ""
    return f"limit {limit.limit}, set by {limit.by or 'an unknown person'}{when}: {limit.reason}"


def differing(lock: LockInfo) -> str:
    """Return what is wrong with the limits of those who hold a semaphore or wait for it; empty if nothing is."""
    if not lock.own_limits:
        return ""
    limits = ", ".join(map(str, lock.own_limits[:-1]))
    return (
        f"its holders and waiters have different limits in their code, {limits} and {lock.own_limits[-1]}, and each "
        "goes by its own; set one for all, or give all the same"
    )


def connection_json(connection: Connection) -> dict[str, Any]:
    """Return a connection for JSON."""
    return {
        "state": str(connection.state),
        "server": connection.server,
        "session": session_hex(connection.session_id) or None,
        "timeout": connection.timeout,
        "hosts": list(connection.hosts),
    }


def snapshot_json(snapshot: Snapshot) -> dict[str, Any]:
    """Return all but the locks of a snapshot for JSON."""
    return {
        "taken_at": snapshot.taken_at,
        "age": snapshot.age,
        "problem": snapshot.problem,
        "notes": list(snapshot.notes),
        "total": snapshot.total,
        "connection": connection_json(snapshot.connection),
        "cycles": [
            [{"who": wait.who, "holds": wait.holds, "waits_for": wait.waits_for} for wait in cycle]
            for cycle in snapshot.cycles
        ],
    }


def circle(cycle: tuple[Wait, ...]) -> str:
    """Return in one line who waits for whom, round in a circle."""
    return "; ".join(f"{wait.who} holds {wait.holds} and waits for {wait.waits_for}" for wait in cycle)
