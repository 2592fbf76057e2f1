"""From what was read to what is shown; everything in the nodes may have been written by anybody."""

from __future__ import annotations

import time
from collections.abc import Mapping

from django_zklock.inspection.servertime import moment
from django_zklock.inspection.values import ContenderInfo, LockInfo
from django_zklock.inspection.walk import Found
from django_zklock.queue import clients, revocations, standing
from django_zklock.queue import limits as records
from django_zklock.queue.limits import SetLimit
from django_zklock.queue.names import path
from django_zklock.queue.nodes import Payload
from django_zklock.queue.operators import operator_hold
from django_zklock.queue.order import Queue
from django_zklock.queue.printable import printable
from django_zklock.queue.standing import Limits
from django_zklock.zk.gateway import Node

_SHORT = 120  # characters shown of a host or thread
_ITEM = 64  # of the name of an item


def describe(found: Found, since: Mapping[tuple[str, str], float]) -> tuple[LockInfo, ...]:
    """Return the locks that were found, by key; `since` tells when each holder got its lock, by key and name."""
    described = []
    for key, queue in found.queues.items():
        described.append(_lock(found, key, queue, since))
        time.sleep(0)  # the threads of the protocol first, as this may be the work of a second
    described += [_unreadable(found, key, count, why) for key, (count, why) in found.unreadable.items()]
    return tuple(sorted((lock for lock in described if lock is not None), key=lambda lock: lock.key))


def _lock(found: Found, key: str, queue: Queue, since: Mapping[tuple[str, str], float]) -> LockInfo | None:
    nodes = found.nodes
    gone = {child.name for child in queue if nodes.get((key, child.name), child) is None}
    if len(gone) == len(queue):
        return None
    limits = found.limits(key)
    many = standing.holders(queue, limits)
    shown = [
        (place, _contender(found, key, queue, place, node, since, many))
        for place, child in enumerate(queue)
        if (node := nodes.get((key, child.name))) is not None
    ]
    holders = tuple(each for place, each in shown if place < many)
    waiters = tuple(each for place, each in shown if place >= many)
    unread = any(child.name not in gone and (key, child.name) not in nodes for child in queue[:many])
    return LockInfo(
        key=key,
        path=path(found.base, key),
        kind=standing.kind(queue),
        holders=holders,
        waiters=waiters[: found.max_waiters],
        waiting=sum(child.name not in gone for child in queue[many:]),
        longest_wait=max((each.age for each in waiters), default=None),
        problem="The node of its holder was not read." if unread else "",
        limit=_limit(queue, limits),
        limit_set=_limit_set(found, key, queue),
    )


def _limit(queue: Queue, limits: Limits) -> int | None:
    if queue.limit is not None:
        return queue.limit.value
    return next((limits[child.name] for child in queue if child.name in limits), None)


def _limit_set(found: Found, key: str, queue: Queue) -> SetLimit | None:
    node = found.nodes.get((key, queue.limit.name)) if queue.limit is not None else None
    return records.set_limit(node.name, node.data, node.ctime) if node is not None else None


def _unreadable(found: Found, key: str, count: int, why: str) -> LockInfo:
    return LockInfo(
        key=key,
        path=path(found.base, key),
        kind="lock",
        holders=(),
        waiters=(),
        waiting=count,
        longest_wait=None,
        problem=why,
    )


def _contender(
    found: Found,
    key: str,
    queue: Queue,
    place: int,
    node: Node,
    since: Mapping[tuple[str, str], float],
    many: int,
) -> ContenderInfo:
    child = queue[place]
    came = node.ctime
    behind = standing.behind(queue, place, many)
    held_since = since.get((key, child.name), came) if not behind else None
    payload = Payload.decode(node.data)
    client = clients.client_of(child, payload)
    if payload is None:
        said = clients.said(node.data)
        payload = Payload(version=0, guid="", host=said.host, pid=0, thread="", what=said.what, since="", template="")
    about = {printable(name, _ITEM): printable(item) for name, item in payload.about.items()}
    operator = operator_hold(
        payload,
        key=key,
        path=node.path,
        token=node.czxid,
        owner=node.owner,
        mtime=node.mtime,
        version=node.version,
    )
    return ContenderInfo(
        name=child.name,
        path=node.path,
        guid=child.guid,
        token=node.czxid,
        session_id=node.owner,
        came=moment(came),
        age=max(0.0, found.taken_at - came),
        held_since=None if held_since is None else moment(held_since),
        client=client,
        host=printable(payload.host, _SHORT),
        pid=payload.pid,
        thread=printable(payload.thread, _SHORT),
        what=printable(payload.what),
        about=about,
        template=printable(payload.template),
        operator=operator,
        waits_behind=behind,
        kind=child.kind.word,
        revoke=revocations.requested(node.data),
    )
