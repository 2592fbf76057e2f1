"""Turn the result of a scan into `LockInfo`s."""

from __future__ import annotations

import time

from django_zklock.core.queue.holders import kind_of_queue, waits_for
from django_zklock.core.queue.markers import set_limit
from django_zklock.core.queue.nodes import Kind
from django_zklock.core.queue.order import Queue
from django_zklock.inspection.info import LockInfo, ScannedContender
from django_zklock.inspection.scan import ScanResult
from django_zklock.names.template import path


def describe(result: ScanResult) -> tuple[LockInfo, ...]:
    """Return the locks of a result, sorted by key."""
    locks = [
        LockInfo(key=key, path=path(result.base, key), waiting=count, problem=why)
        for key, (count, why) in result.unreadable.items()
    ]
    for key, queue in result.queues.items():
        lock = _describe_queue(result, key, queue)
        if lock is not None:
            locks.append(lock)
        time.sleep(0)  # thousands of contenders take a second; let the protocol's thread run
    return tuple(sorted(locks, key=lambda lock: lock.key))


def _describe_queue(result: ScanResult, key: str, queue: Queue) -> LockInfo | None:
    """Return the lock of a queue, or None if it is free."""
    held = frozenset(result.holders(key))
    marker = result.nodes.get((key, queue.limit_marker))
    holders: list[ScannedContender] = []
    waiters: list[ScannedContender] = []
    expired_holds: list[ScannedContender] = []
    waiting = 0
    problem = ""
    for index, child in enumerate(queue.children):
        identity = key, child.name
        if identity not in result.nodes:
            if index in held:
                problem = "The znode of its holder was not read."
            else:
                waiting += 1
            continue
        node = result.nodes[identity]
        if node is None:
            continue  # it has gone since its directory was listed
        is_expired = identity in result.expired_holds
        group = expired_holds if is_expired else holders if index in held else waiters
        waiting += group is waiters
        waits_behind = "" if is_expired else waits_for(queue, index, held)
        contender = ScannedContender.from_node(
            key,
            child,
            node,
            age=max(0.0, result.ended_at - node.ctime),
            holds=not (waits_behind or is_expired),
            waits_behind=waits_behind,
        )
        group.append(contender)
    if not (holders or waiting or problem):
        return None
    limits = {contender.limit for contender in (*holders, *waiters) if contender.limit is not None}
    in_code = max(limits, default=1) if queue[0].kind is Kind.PERMIT else None
    return LockInfo(
        key=key,
        path=path(result.base, key),
        kind=kind_of_queue(queue),
        holders=tuple(holders),
        waiters=tuple(waiters[: result.max_waiters]),
        waiting=waiting,
        longest_wait=max([waiter.age for waiter in waiters], default=None),
        problem=problem,
        limit=queue.limit or in_code,
        limit_set=set_limit(marker.name, marker.data, marker.ctime) if marker is not None else None,
        own_limits=tuple(sorted(limits)) if queue.limit is None and len(limits) > 1 else (),
        expired_holds=tuple(expired_holds),
    )
