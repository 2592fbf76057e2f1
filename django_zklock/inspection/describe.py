"""From what was read to what is shown; everything in the nodes may have been written by anybody."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Mapping, Sequence

from django_zklock.inspection.servertime import moment
from django_zklock.inspection.values import ContenderInfo, LockInfo
from django_zklock.inspection.walk import BIG, Found
from django_zklock.queue import limits as records
from django_zklock.queue import revocations, standing
from django_zklock.queue.limits import SetLimit
from django_zklock.queue.names import path
from django_zklock.queue.nodes import Child, Kind, Payload
from django_zklock.queue.operators import operator_hold
from django_zklock.queue.order import Queue
from django_zklock.queue.printable import printable
from django_zklock.queue.standing import Limits
from django_zklock.zk.gateway import Node

_SHORT = 120  # characters shown of a host or thread, and of what another client wrote
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
    held = frozenset(standing.held(queue, limits))
    shown = [
        (place, _contender(found, key, queue, place, node, since, held))
        for place, child in enumerate(queue)
        if (node := nodes.get((key, child.name))) is not None
    ]
    holders = tuple(each for place, each in shown if place in held)
    waiters = tuple(each for place, each in shown if place not in held)
    unread = any(queue[place].name not in gone and (key, queue[place].name) not in nodes for place in held)
    return LockInfo(
        key=key,
        path=path(found.base, key),
        kind=standing.kind(queue),
        holders=holders,
        waiters=waiters[: found.max_waiters],
        waiting=sum(child.name not in gone for place, child in enumerate(queue) if place not in held),
        longest_wait=max((each.age for each in waiters), default=None),
        problem="The node of its holder was not read." if unread else "",
        limit=_limit(queue, limits),
        limit_set=_limit_set(found, key, queue),
        own_limits=_own_limits(queue, [each for _, each in shown]),
    )


def _limit(queue: Queue, limits: Limits) -> int | None:
    if queue.limit is not None:
        return queue.limit.value
    return max((limits[child.name] for child in queue if child.name in limits), default=None)


def _own_limits(queue: Queue, contenders: Sequence[ContenderInfo]) -> tuple[int, ...]:
    told = {each.limit for each in contenders if each.limit is not None} if queue.limit is None else set()
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
    behind = standing.behind(queue, place, held)
    held_since = since.get((key, child.name), came) if not behind else None
    payload = Payload.decode(node.data)
    client = _client(child, node, payload)
    if payload is None:
        host, what = _foreign(client, node.data)
        payload = Payload(version=0, guid="", host=host, pid=0, thread="", what=what, since="", template="")
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
        limit=(payload.limit or None) if child.kind is Kind.LEASE else None,
    )


def _client(child: Child, node: Node, payload: Payload | None) -> str:
    if payload is not None and payload.is_of(child):
        return "zklock"
    if not child.in_grammar_of_curator:
        return "kazoo"
    if payload is not None:
        return "unknown"
    return "Curator" if not node.data or _address(node.data) else "unknown"


def _foreign(client: str, data: bytes) -> tuple[str, str]:
    """Return host and work of another client's contender: Curator writes an address, kazoo what it was told to."""
    if client == "Curator":
        return _address(data), ""
    text = data[: 4 * _SHORT].decode(errors="replace")
    return "", printable(text if len(data) <= BIG else text + "…", _SHORT)


def _address(data: bytes) -> str:
    try:
        return str(ipaddress.ip_address(data[:64].decode("ascii")))
    except ValueError:
        return ""
