"""Turn the result of a scan into `LockInfo`s, and track since when each holder has held its lock."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from django_zklock.inspection.info import LockInfo, ScannedContender
from django_zklock.inspection.scan import ScanResult
from django_zklock.queue.holders import kind_of_queue, may_hold, waits_for
from django_zklock.queue.markers import LimitRecord, set_limit
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
    write. If an earlier scan saw it wait, it got the lock after that scan.
    """

    def __init__(self, session: Session) -> None:
        self._last: dict[str, _LastScan] = {}  # by key

    def update(self, result: ScanResult, *, complete: bool) -> HeldSince:
        """
        Remember the holders in this result, and return the earliest time at which each can have got its lock.

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
    locks = [
        LockInfo(key=key, path=path(result.base, key), waiting=count, problem=why)
        for key, (count, why) in result.unreadable.items()
    ]
    for key, queue in result.queues.items():
        lock = _describe_queue(result, key, queue, since)
        if lock is not None:
            locks.append(lock)
        time.sleep(0)  # thousands of contenders take a second; let the protocol's thread run
    return tuple(sorted(locks, key=lambda lock: lock.key))


def _describe_queue(result: ScanResult, key: str, queue: Queue, since: HeldSince) -> LockInfo | None:
    """Return the lock of a queue, or None if it is free."""
    held = frozenset(result.holders(key))
    marker = result.nodes.get((key, queue.limit_marker))
    holders: list[ScannedContender] = []
    waiters: list[ScannedContender] = []
    expired_holds: list[ScannedContender] = []
    waiting = 0
    problem = ""
    for index, child in enumerate(queue.children):
        is_read = (key, child.name) in result.nodes
        node = result.nodes.get((key, child.name))
        if is_read and node is None:
            continue  # it has gone since its directory was listed
        is_expired = (key, child.name) in result.expired_holds
        if is_expired:
            group = expired_holds
        elif index in held:
            group = holders
            problem = problem if is_read else "The znode of its holder was not read."
        else:
            group = waiters
            waiting += 1
        if node is None:
            continue
        waits_behind = "" if is_expired else waits_for(queue, index, held)
        is_holder = not (waits_behind or is_expired)
        contender = ScannedContender.from_node(
            key,
            child,
            node,
            age=max(0.0, result.ended_at - node.ctime),
            held_since=to_datetime(since.get((key, child.name), node.ctime)) if is_holder else None,
            waits_behind=waits_behind,
            may_hold=bool(waits_behind) and _may_hold(queue, index, node, marker),
        )
        group.append(contender)
    if not (holders or waiting or problem):
        return None
    limits = {contender.limit for contender in (*holders, *waiters) if contender.limit is not None}
    return LockInfo(
        key=key,
        path=path(result.base, key),
        kind=kind_of_queue(queue),
        holders=tuple(holders),
        waiters=tuple(waiters[: result.max_waiters]),
        waiting=waiting,
        longest_wait=max([waiter.age for waiter in waiters], default=None),
        problem=problem,
        limit=max(result.limits(key).values(), default=None) if queue.limit is None else queue.limit,
        limit_set=set_limit(marker.name, marker.data, marker.ctime) if marker is not None else None,
        own_limits=tuple(sorted(limits)) if queue.limit is None and len(limits) > 1 else (),
        expired_holds=tuple(expired_holds),
    )


def _may_hold(queue: Queue, index: int, node: Node, marker: Node | None) -> bool:
    """Return True if a waiter may hold a permit by an earlier limit."""
    if marker is None or node.czxid > marker.czxid:
        return False
    return may_hold(queue, index, own_limit(node.data), LimitRecord.decode(marker.data).before)
