"""From what was read to what is shown; everything in the nodes may have been written by anybody."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from django_zklock.inspection.found import Found
from django_zklock.inspection.servertime import moment
from django_zklock.inspection.values import ContenderInfo, LockInfo
from django_zklock.queue import clients, revocations, standing
from django_zklock.queue import limits as records
from django_zklock.queue.limits import SetLimit
from django_zklock.queue.names import path
from django_zklock.queue.nodes import Payload
from django_zklock.queue.operators import operator_hold
from django_zklock.queue.order import Queue
from django_zklock.queue.printable import printable
from django_zklock.queue.signs import Limit
from django_zklock.queue.standing import Limits
from django_zklock.zk.gateway import Node

_SHORT = 120  # characters shown of a host or thread
_ITEM = 64  # of the name of an item


def describe(found: Found, since: Mapping[tuple[str, str], float]) -> tuple[LockInfo, ...]:
    """Return the locks that were found, by key; `since` tells when each holder got its lock, by key and name."""
    described: list[LockInfo | None] = []
    for key, queue in found.queues.items():
        described.append(_lock(found, key, queue, since))
        time.sleep(0)  # the threads of the protocol first, as this may be the work of a second
    described += [_unreadable(found, key, count, why) for key, (count, why) in found.unreadable.items()]
    return tuple(sorted((lock for lock in described if lock is not None), key=lambda lock: lock.key))


def _lock(found: Found, key: str, queue: Queue, since: Mapping[tuple[str, str], float]) -> LockInfo | None:
    held, shown, gone = _look(found, key, since)
    if len(gone) == len(queue):
        return None
    limits = found.limits(key)
    waiters = tuple(each for place, each in shown if place not in held and each.name not in gone)
    return LockInfo(
        key=key,
        path=path(found.base, key),
        kind=standing.kind(queue),
        holders=tuple(each for place, each in shown if place in held),
        waiters=waiters[: found.max_waiters],
        waiting=sum(child.name not in gone for place, child in enumerate(queue) if place not in held),
        longest_wait=max((each.age for each in waiters), default=None),
        problem=_unread(found, key, held),
        limit=_limit(queue, limits),
        limit_set=_limit_set(found, key, queue),
        own_limits=_own_limits(queue.limit, [each for _, each in shown if each.name not in gone]),
        over=tuple(each for _, each in shown if each.name in gone),
    )


def _look(
    found: Found, key: str, since: Mapping[tuple[str, str], float]
) -> tuple[frozenset[int], list[tuple[int, ContenderInfo]], set[str]]:
    """Return who holds a queue, by place; those that were read, with their places; the names of those gone, or over."""
    queue = found.queues.get(key, Queue())
    held = frozenset(found.held(key)) if queue else frozenset()
    shown = [
        (place, _contender(found, key, queue, place, node, since, held))
        for place, child in enumerate(queue)
        if (node := found.nodes.get((key, child.name))) is not None
    ]
    at = [(key, child.name) for child in queue]
    return held, shown, {place[1] for place in at if place in found.over or found.nodes.get(place, "") is None}


def _unread(found: Found, key: str, held: frozenset[int]) -> str:
    queue = found.queues.get(key, Queue())
    unread = any((key, queue[place].name) not in found.nodes for place in held)
    return "The node of its holder was not read." if unread else ""


def _limit(queue: Queue, limits: Limits) -> int | None:
    if queue.limit is not None:
        return queue.limit.value
    return max((limits[child.name] for child in queue if child.name in limits), default=None)


def _own_limits(limit: Limit | None, contenders: Sequence[ContenderInfo]) -> tuple[int, ...]:
    told = {each.limit for each in contenders if each.limit is not None} if limit is None else set()
    return tuple(sorted(told)) if len(told) > 1 else ()


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
    held: frozenset[int],
) -> ContenderInfo:
    child = queue[place]
    came = node.ctime
    over = (key, child.name) in found.over
    behind = "" if over else standing.behind(queue, place, held)
    held_since = None if behind or over else since.get((key, child.name), came)
    payload = Payload.decode(node.data)
    client = clients.client_of(child, payload)
    if payload is None:
        said = clients.said(node.data)
        payload = Payload(version=0, guid="", host=said.host, pid=0, thread="", what=said.what, since="", template="")
    about = {printable(name, _ITEM): printable(item) for name, item in payload.about.items()}
    operator = operator_hold(payload, key=key, path=node.path, token=node.czxid, owner=node.owner, ctime=node.ctime)
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
        release_request=revocations.requested(node.data),
        limit=payload.limit or None,
        may_hold=_may_hold(found, key, queue, place, node) if behind else False,
        owner=payload.owner,
    )


def _may_hold(found: Found, key: str, queue: Queue, place: int, node: Node) -> bool:
    sign = found.nodes.get((key, queue.sign.name)) if queue.sign is not None else None
    return sign is not None and standing.may_hold(queue, place, node.czxid, sign.czxid)
