"""The calls of inspection: a snapshot of all locks, or the state of one. They wait for the scan."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Final

from django_zklock import clock
from django_zklock.conf.url import host_port
from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.execution.waiters import ThreadWaiter
from django_zklock.inspection.info import Connection, LockInfo, Snapshot
from django_zklock.inspection.scan import ScanLimits
from django_zklock.inspection.shared import Shared
from django_zklock.inspection.snapshot_cache import CacheReply, SnapshotCache
from django_zklock.queue.names import is_key, show_tails
from django_zklock.zk import process
from django_zklock.zk.errors import ZkError
from django_zklock.zk.gateway import Gateway
from django_zklock.zk.options import SessionOptions
from django_zklock.zk.requests import call
from django_zklock.zk.server_clock import to_datetime
from django_zklock.zk.session import Session

SLACK: Final = 0.25  # seconds beyond the reply timeout, for a busy process
MAX_WAITERS: Final = 50  # waiters of one lock that are read


def snapshot(
    *, reply_timeout: float = 1.5, max_age: float = 1.0, max_locks: int | None = 1000, max_waiters: int | None = 50
) -> Snapshot:
    """
    Return a snapshot of all locks that are held or waited for, in `reply_timeout` seconds.

    A snapshot that is at most `max_age` seconds old is returned again, and callers at the same time share one scan. Of
    each lock, the holders and the first `max_waiters` waiters are read; all are counted. If there are more than
    `max_locks`, those with the most waiters are read. None removes a limit.

    Never raises because ZooKeeper does not answer: then `problem` says so, and the locks are those of the last scan.
    """
    session = process.current()
    waiter: ThreadWaiter[CacheReply] = ThreadWaiter()
    limits = ScanLimits(max_locks, max_waiters)
    session.post(lambda: session.attached(SnapshotCache).get(limits, reply_timeout, max_age, waiter.set))
    reply = waiter.wait(reply_timeout + SLACK) or CacheReply(None, session.explain())
    connection = connection_of(session)
    if reply.scan is None:
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
    locks, waits, cycles = reply.scan.describe()
    result = reply.scan.result
    return Snapshot(
        taken_at=to_datetime(result.ended_at),
        age=max(0.0, clock.now() - result.ended),
        locks=locks,
        total=result.total - result.free,
        problem=reply.problem,
        notes=result.notes,
        connection=connection,
        waits=waits,
        cycles=cycles,
    )


def look_at(key: str, *, reply_timeout: float = 1.5) -> LockInfo | None:
    """
    Return the present state of one lock with its first fifty waiters, or None if it is free.

    Raises `ZooKeeperUnavailable` if there is no answer within `reply_timeout` seconds.
    """
    if not is_key(key := show_tails(key)):
        return None
    session = process.current()
    waiter: ThreadWaiter[CacheReply] = ThreadWaiter()
    session.post(lambda: session.attached(SnapshotCache).read_one(key, reply_timeout, MAX_WAITERS, waiter.set))
    reply = waiter.wait(reply_timeout + SLACK)
    if reply is None or reply.scan is None or not reply.scan.result.listed or reply.problem:
        raise ZooKeeperUnavailable(session.explain() if reply is None else reply.problem, lock=key)
    locks, _, _ = reply.scan.describe()
    return locks[0] if locks else None


def check_quorum(*, reply_timeout: float = 1.0, max_age: float = 1.0) -> None:
    """
    Let a quorum carry out a transaction that changes nothing. If it does, locks can be granted.

    A success that is at most `max_age` seconds old counts. Raises `ZooKeeperUnavailable` if there is no answer within
    `reply_timeout` seconds.
    """
    problem = _quorum_checks.get(reply_timeout, max_age)
    if problem:
        raise ZooKeeperUnavailable(problem)


def _check_quorum(options: SessionOptions, reply_timeout: float) -> str:
    try:
        reply: int | ZkError = call(process.current(), Gateway.last_zxid, clock.now() + reply_timeout)
    except ZooKeeperUnavailable as error:
        return str(error)
    return str(reply) if isinstance(reply, ZkError) else ""


_quorum_checks: Final = Shared(_check_quorum)


def connection() -> Connection:
    """Return the connection of this process."""
    return connection_of(process.current())


def connection_of(session: Session) -> Connection:
    """Return the state of a session's connection; from any thread."""
    return Connection(
        state=str(session.state),
        server=session.server,
        session_id=session.session_id or 0,
        timeout=session.timeout,
        hosts=tuple(host_port(*host) for host in session.options.hosts),
    )
