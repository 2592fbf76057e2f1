"""The calls of inspection: a snapshot of all locks, or the state of one. They wait for a scan, and describe it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence, Set
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from typing import Any, Final, TypeAlias

from django_zklock.core import clock
from django_zklock.core.execution.waiters import ThreadWaiter
from django_zklock.core.queue.markers import set_limit
from django_zklock.core.queue.nodes import Kind
from django_zklock.core.queue.order import Queue
from django_zklock.core.zk import process
from django_zklock.core.zk.gateway import to_datetime
from django_zklock.core.zk.options import SessionOptions
from django_zklock.core.zk.outage import address
from django_zklock.core.zk.session import Session
from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.inspection.info import HOLDER_UNREAD, OVER, ConnectionInfo, LockInfo, ScannedContender, Snapshot
from django_zklock.inspection.scan import TOO_SHORT, Scan, ScanLimits, ScanResult
from django_zklock.inspection.waits import MAX_WAITS, Graph, find_waits
from django_zklock.locks.arguments import check_no_running_loop
from django_zklock.locks.holders import kind_of_queue, waits_for
from django_zklock.names.template import is_key, path, show_tails
from django_zklock.shared import Shared

SLACK: Final = 0.25  # seconds beyond the reply timeout, for a busy process
MAX_LOCKS: Final = 30_000  # locks that are read; each needs about three kilobytes here
MAX_WAITERS: Final = 50  # waiters of one lock that are read by a look at it
YIELD_EVERY: Final = 100  # locks that are described before other threads may run, such as the protocol's
TOO_MANY_WAITS: Final = f"Only {MAX_WAITS} waits were searched for deadlocks."


def snapshot(
    *,
    reply_timeout: float = 1.5,
    max_age: float = 1.0,
    max_locks: int | None = MAX_LOCKS,
    max_waiters: int | None = 1,
) -> Snapshot:
    """
    Return a snapshot of all locks that are held or waited for, in `reply_timeout` seconds.

    A snapshot whose scan began at most `max_age` seconds ago is returned again, and callers at the same time share one.
    Of each lock, it has the holders and the first `max_waiters` waiters; all are counted. If there are more than
    `max_locks`, those with the most waiters are read, and the reservations of unique tasks come last. None removes a
    limit. `look_at` has more waiters.

    Never raises because ZooKeeper does not answer: then `problem` says so, and the locks are those of the last scan.
    """
    check_no_running_loop("snapshot", "await sync_to_async(snapshot)(...)")
    key = process.current().options, ScanLimits(max_locks, max_waiters), reply_timeout
    described, ended = _snapshots.get(key, reply_timeout, max_age)
    return described(age=max(0.0, clock.now() - ended), connection=connection())


def look_at(key: str, *, reply_timeout: float = 1.5) -> LockInfo | None:
    """
    Return the present state of one lock with its first fifty waiters, or None if it is free.

    Raises `ZooKeeperUnavailable` if there is no answer within `reply_timeout` seconds.
    """
    check_no_running_loop("look_at", "await sync_to_async(look_at)(...)")
    key = show_tails(key)
    return look_at_each([key], reply_timeout).get(key) if is_key(key) else None


def look_at_each(keys: Collection[str], reply_timeout: float) -> dict[str, LockInfo]:
    """Return the present state of some locks, by key; see `look_at`. Those that are free are not in it."""
    session = process.current()
    until = clock.now() + reply_timeout
    while True:
        scan = _scan(session, ScanLimits(None, MAX_WAITERS, tuple(keys)), reply_timeout)
        if scan is None or scan.problem:  # or not all was listed
            raise ZooKeeperUnavailable(session.explain() if scan is None else scan.problem, lock=", ".join(keys))
        locks = Description(scan).locks()
        # If all that were listed have left meanwhile, others may have come.
        if locks or any(scan.nodes.values()) or not scan.queues or clock.now() > until:
            return {lock.key: lock for lock in locks}


Described: TypeAlias = Callable[..., Snapshot]
"""A snapshot without its age and connection, which are those of the call."""

_last: tuple[SessionOptions, Described, float] | None = None
"""The last snapshot that has listed all directories, and when it ended; written by any thread."""


@Shared
def _snapshots(key: tuple[SessionOptions, ScanLimits, float], timeout: float) -> tuple[Described, float]:
    """Return a snapshot and when it ended. If this scan fails, it is the last one, with the present problem."""
    global _last
    options, limits, _ = key
    session = process.current()
    scan = _scan(session, limits, timeout)
    if scan is not None and scan.listed:
        described = _describe_scan(scan)
        _last = options, described, scan.ended
        return described, scan.ended
    unfinished = TOO_SHORT if session.connected else session.explain()  # this process was too busy to end the scan
    problem = unfinished if scan is None else scan.problem
    if _last is not None and _last[0] == options:
        return partial(_last[1], problem=problem, silent=scan is not None and scan.silent), _last[2]
    if scan is None:
        return partial(Snapshot, taken_at=datetime.now(UTC), locks=(), problem=problem), clock.now()
    return _describe_scan(scan), scan.ended


def _describe_scan(scan: ScanResult) -> Described:
    """Describe all locks, on the caller's thread: with thousands, it takes longer than a heartbeat may be late."""
    locks = Description(scan).locks()
    waits = find_waits(locks, scan.queues, scan.ended_at)
    cycles = Graph(waits, locks).cycles
    if cycles:
        deadlocked = {wait.holds for cycle in cycles for wait in cycle}
        locks = tuple(replace(lock, deadlocked=True) if lock.key in deadlocked else lock for lock in locks)
    over = len(scan.expired_holds)
    notes = (f"Holds that are over, and whose processes have ended: {over}. {OVER}",) if over else ()
    return partial(
        Snapshot,
        taken_at=to_datetime(scan.ended_at),
        locks=locks,
        total=scan.total - len(scan.queues) - len(scan.unreadable) + len(locks),  # those without a lock are free
        problem=scan.problem,
        silent=scan.silent,
        skipped=scan.skipped + notes + ((TOO_MANY_WAITS,) if len(waits) == MAX_WAITS else ()),
        waits=waits,
        cycles=cycles,
    )


def _scan(session: Session, limits: ScanLimits, timeout: float) -> ScanResult | None:
    """Scan in at most `timeout` seconds; return None if the process is too busy for that."""
    waiter: ThreadWaiter[ScanResult] = ThreadWaiter()
    session.post(lambda: Scan(session, limits, timeout, waiter.set).begin())
    return waiter.wait(timeout + SLACK)


class Description:
    """The locks of a scan."""

    def __init__(self, result: ScanResult) -> None:
        self._result = result

    def locks(self) -> tuple[LockInfo, ...]:
        """Return them, sorted by key."""
        result = self._result
        locks = [self._info(key, waiting=count, problem=why) for key, (count, why) in result.unreadable.items()]
        for number, (key, queue) in enumerate(result.queues.items()):
            lock = self._lock(key, queue)
            if lock is not None:
                locks.append(lock)
            if not number % YIELD_EVERY:
                time.sleep(0)
        return tuple(sorted(locks, key=attrgetter("key")))

    def _info(self, key: str, **more: Any) -> LockInfo:
        return LockInfo(key=key, path=path(self._result.base, key), **more)

    def _lock(self, key: str, queue: Queue) -> LockInfo | None:
        """Return the lock of a queue, or None if it is free and can be acquired."""
        held = frozenset(self._result.holders(key))
        unread = self._result.unread(key)
        contenders = self._contenders(key, queue, held)
        holders = [contender for contender in contenders if contender.holds]
        waiters = [contender for contender in contenders if contender.waits_behind]
        waiting = len(waiters) + len(unread - held)
        problem = HOLDER_UNREAD if unread & held else ""
        if not (holders or waiting or problem):
            return None
        return self._info(
            key,
            kind=kind_of_queue(queue),
            holders=tuple(holders),
            waiters=tuple(waiters[: self._result.max_waiters]),
            waiting=waiting,
            longest_wait=max(map(attrgetter("age"), waiters), default=None),
            problem=problem,
            expired_holds=tuple([hold for hold in contenders if not (hold.holds or hold.waits_behind)]),
            **self._limits(key, queue, (*holders, *waiters)),
        )

    def _contenders(self, key: str, queue: Queue, held: Set[int]) -> list[ScannedContender]:
        """Return the contenders of a queue that were read. An operator hold that is over neither holds nor waits."""
        contenders = []
        for index, child in enumerate(queue.children):
            identity = key, child.name
            node = self._result.nodes.get(identity)
            if node is not None:
                is_over = identity in self._result.expired_holds
                waits_behind = "" if is_over else waits_for(queue, index, held)
                contender = ScannedContender.from_node(
                    key,
                    child,
                    node,
                    age=max(0.0, self._result.ended_at - node.ctime),
                    holds=not (waits_behind or is_over),
                    waits_behind=waits_behind,
                )
                contenders.append(contender)
        return contenders

    def _limits(self, key: str, queue: Queue, contenders: Sequence[ScannedContender]) -> dict[str, Any]:
        """Return the limit of a semaphore, and where it comes from."""
        marker = self._result.nodes.get((key, queue.limit_marker))
        limits = {contender.limit for contender in contenders if contender.limit is not None}
        in_code = max(limits, default=1) if queue[0].kind is Kind.PERMIT and contenders else None
        return {
            "limit": queue.limit or in_code,
            "limit_set": set_limit(marker.name, marker.data, marker.ctime) if marker is not None else None,
            "own_limits": tuple(sorted(limits)) if queue.limit is None and len(limits) > 1 else (),
        }


def connection() -> ConnectionInfo:
    """Return the connection of this process."""
    session = process.current()
    return ConnectionInfo(
        state=str(session.state),
        server=session.server,
        session_id=session.session_id or 0,
        timeout=session.timeout,
        hosts=tuple(map(address, session.options.hosts)),
        refused=not session.connected and session.outage.refuses,
    )
