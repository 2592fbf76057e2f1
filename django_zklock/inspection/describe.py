"""Turn the result of a scan into `LockInfo`s, and track since when each holder has held its lock."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from django_zklock.inspection.info import LockInfo, ScannedContender
from django_zklock.inspection.scan import ScanResult
from django_zklock.queue.holders import kind_of_queue, may_hold, waits_for
from django_zklock.queue.markers import LimitRecord, SetLimit, set_limit
from django_zklock.queue.names import path
from django_zklock.queue.nodes import own_limit
from django_zklock.queue.order import Queue
from django_zklock.zk.gateway import Node, to_datetime
from django_zklock.zk.session import Session

MAX_LOCKS: Final = 10_000  # locks that are remembered

HeldSince: TypeAlias = Mapping[tuple[str, str], float]
"""Seconds since 1970 by ZooKeeper's clock, by key and name of the holder."""


@dataclass(frozen=True, slots=True)
class _LastScan:
    since: Mapping[str, float]  # by name of a holder
    at: float


class HeldSinceTracker:
    """
    The holders in the last scan of each lock of a session; used on the protocol's thread.

    ZooKeeper stores when a contender's znode was created, but not when it got the lock: to record that would cost a
    write. A contender that was seen waiting got the lock later than that.
    """

    def __init__(self, session: Session) -> None:
        self._last: dict[str, _LastScan] = {}  # by key

    def update(self, result: ScanResult, *, complete: bool) -> HeldSince:
        """
        Remember the holders in this result, and return since when at most each has held its lock.

        With `complete`, locks that are not in the result are forgotten.
        """
        scanned = {key: self._compare(result, key) for key in result.queues}
        if complete or len(self._last) + len(scanned) > MAX_LOCKS:
            self._last = scanned
        else:
            self._last.update(scanned)
        return {(key, name): since for key, scan in scanned.items() for name, since in scan.since.items()}

    def _compare(self, result: ScanResult, key: str) -> _LastScan:
        last = self._last.get(key)
        since: dict[str, float] = {}
        queue = result.queues[key]
        for child in (queue[index] for index in result.holders(key)):
            node = result.nodes.get((key, child.name))
            if node is None:
                continue
            if last is None:
                since[child.name] = node.ctime
            else:
                since[child.name] = last.since.get(child.name, max(node.ctime, last.at))
        return _LastScan(since, result.began_at)


def describe(result: ScanResult, since: HeldSince) -> tuple[LockInfo, ...]:
    """Return the locks of a result, sorted by key."""
    locks = [_unreadable(result, key, count, why) for key, (count, why) in result.unreadable.items()]
    for key, queue in result.queues.items():
        lock = _QueueDescription(result, key, queue, since).lock()
        if lock is not None:
            locks.append(lock)
        time.sleep(0)  # thousands of contenders take a second; let the protocol's thread run
    return tuple(sorted(locks, key=lambda lock: lock.key))


def _unreadable(result: ScanResult, key: str, count: int, why: str) -> LockInfo:
    return LockInfo(
        key=key,
        path=path(result.base, key),
        kind="lock",
        holders=(),
        waiters=(),
        waiting=count,
        longest_wait=None,
        problem=why,
    )


class _QueueDescription:
    """The description of one queue."""

    def __init__(self, result: ScanResult, key: str, queue: Queue, since: HeldSince) -> None:
        self._result = result
        self._key = key
        self._queue = queue
        self._since = since
        self._held = frozenset(result.holders(key))

    def lock(self) -> LockInfo | None:
        """Return the lock, or None if it is free."""
        key, queue = self._key, self._queue
        holders: list[ScannedContender] = []
        waiters: list[ScannedContender] = []
        expired_holds: list[ScannedContender] = []
        waiting = 0
        problem = ""
        for index, child in enumerate(queue.children):
            is_read = (key, child.name) in self._result.nodes
            node = self._node(child.name)
            if is_read and node is None:
                continue  # it has gone since its directory was listed
            info = None if node is None else self._contender(index, node)
            if (key, child.name) in self._result.expired_holds:
                group = expired_holds
            elif index in self._held:
                group = holders
                problem = problem if is_read else "The znode of its holder was not read."
            else:
                group = waiters
                waiting += 1
            if info is not None:
                group.append(info)
        if not (holders or waiting or problem):
            return None
        limits = self._result.limits(key)
        return LockInfo(
            key=key,
            path=path(self._result.base, key),
            kind=kind_of_queue(queue),
            holders=tuple(holders),
            waiters=tuple(waiters[: self._result.max_waiters]),
            waiting=waiting,
            longest_wait=max((waiter.age for waiter in waiters), default=None),
            problem=problem,
            limit=max(limits.values(), default=None) if queue.limit is None else queue.limit,
            limit_set=self._limit_set(),
            own_limits=self._own_limits([*holders, *waiters]),
            expired_holds=tuple(expired_holds),
        )

    def _node(self, name: str) -> Node | None:
        return self._result.nodes.get((self._key, name))

    def _limit_set(self) -> SetLimit | None:
        node = self._node(self._queue.limit_marker)
        return set_limit(node.name, node.data, node.ctime) if node is not None else None

    def _own_limits(self, contenders: Sequence[ScannedContender]) -> tuple[int, ...]:
        if self._queue.limit is not None:
            return ()
        limits = {contender.limit for contender in contenders if contender.limit is not None}
        return tuple(sorted(limits)) if len(limits) > 1 else ()

    def _contender(self, index: int, node: Node) -> ScannedContender:
        child = self._queue.children[index]
        expired = (self._key, child.name) in self._result.expired_holds
        waits_behind = "" if expired else waits_for(self._queue, index, self._held)
        held_since = None
        if not waits_behind and not expired:
            held_since = to_datetime(self._since.get((self._key, child.name), node.ctime))
        return ScannedContender.from_node(
            self._key,
            child,
            node,
            age=max(0.0, self._result.ended_at - node.ctime),
            held_since=held_since,
            waits_behind=waits_behind,
            may_hold=bool(waits_behind) and self._may_hold(index, node),
        )

    def _may_hold(self, index: int, node: Node) -> bool:
        marker = self._node(self._queue.limit_marker)
        if marker is None or node.czxid > marker.czxid:
            return False
        return may_hold(self._queue, index, own_limit(node.data), LimitRecord.decode(marker.data).before)
