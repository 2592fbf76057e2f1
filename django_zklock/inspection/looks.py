"""Knows how a thread has the locks looked at, and what it is told when there is no answer."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Final

from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.execution.waiters import ThreadWaiter
from django_zklock.inspection.desk import Desk, Reply
from django_zklock.inspection.servertime import moment
from django_zklock.inspection.values import Connection, LockInfo, Snapshot
from django_zklock.inspection.walk import Extent
from django_zklock.queue.names import MAX_KEY
from django_zklock.queue.printable import printable
from django_zklock.zk import clock, process
from django_zklock.zk.session import Session

SLACK: Final = 0.25  # seconds beyond one's patience, for a busy process
WAITERS: Final = 50  # that are shown of one lock


def snapshot(*, patience: float = 1.5, max_age: float = 1.0, max_locks: int = 1000, max_waiters: int = 50) -> Snapshot:
    """
    Look at all locks that somebody holds or waits for, for at most `patience` seconds.

    A snapshot that is at most `max_age` seconds old is given again, and callers at the same time share one look. Of
    each lock the holders are read and the first `max_waiters` waiters; all are counted. If there are more than
    `max_locks`, these are the ones with the most waiters. Never raises because ZooKeeper is away: `problem` says so
    then, and the locks are those that were last seen, with their age.
    """
    session = process.current()
    waiter: ThreadWaiter[Reply] = ThreadWaiter()
    extent = Extent(max_locks, max_waiters)
    session.post(lambda: session.attached(Desk).ask(extent, patience, max_age, waiter.set))
    reply = waiter.wait(patience + SLACK) or Reply(None, session.explain())
    connection = connection_of(session)
    if reply.sight is None:
        return Snapshot(
            taken_at=datetime.now(timezone.utc),
            age=0.0,
            locks=(),
            total=0,
            problem=reply.problem,
            notes=(),
            connection=connection,
            waits=(),
            cycles=(),
        )
    locks, waits, cycles = reply.sight.describe()
    found = reply.sight.found
    return Snapshot(
        taken_at=moment(found.taken_at),
        age=max(0.0, clock.now() - found.ended),
        locks=locks,
        total=found.total - found.lapsed,
        problem=reply.problem,
        notes=found.notes,
        connection=connection,
        waits=waits,
        cycles=cycles,
    )


def look_at(key: str, *, patience: float = 1.5) -> LockInfo | None:
    """
    Look at one lock; return None if nobody holds it or waits for it.

    It is read anew, with its first fifty waiters. Raises `ZooKeeperUnavailable` if there is no answer within `patience`
    seconds.
    """
    if not _may_be_key(key):
        return None
    session = process.current()
    waiter: ThreadWaiter[Reply] = ThreadWaiter()
    session.post(lambda: session.attached(Desk).look(key, patience, WAITERS, waiter.set))
    reply = waiter.wait(patience + SLACK)
    if reply is None or reply.sight is None or not reply.sight.found.listed or reply.problem:
        why = session.explain() if reply is None else reply.problem
        raise ZooKeeperUnavailable(why, lock=key)
    locks, _, _ = reply.sight.describe()
    return locks[0] if locks else None


def connection_of(session: Session) -> Connection:
    """Return what is known of a session's connection now; from any thread."""
    options = session.options
    return Connection(
        state=str(session.state),
        server=session.server,
        session_id=session.session_id or 0,
        timeout=session.timeout,
        hosts=tuple(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in options.hosts),
    )


def _may_be_key(key: str) -> bool:
    """Tell whether a lock can have this key, which anybody may have typed; else it is not sent."""
    return (
        0 < len(key) <= MAX_KEY
        and printable(key, MAX_KEY) == key
        and all(part not in ("", ".", "..") and not part.startswith("!") for part in key.split("/"))
    )
