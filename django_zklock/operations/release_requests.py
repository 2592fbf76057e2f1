"""Knows how a holder is asked to let go of a lock: by a word in its node, which it watches."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone

from django_zklock.exceptions import LockChangedHands, NotRevocable
from django_zklock.locks.errand import Errand, children
from django_zklock.locks.protocol.operator_holds import read_hold
from django_zklock.operations.limits import may_hold
from django_zklock.queue import operators, order, revocations, standing
from django_zklock.queue.nodes import Child, Payload
from django_zklock.queue.order import Queue
from django_zklock.queue.revocations import Revocation
from django_zklock.zk.errors import NodeMissing, Outdated, ZkError
from django_zklock.zk.gateway import Node


@dataclass(slots=True)
class Asked:
    """A holder that was asked."""

    child: Child
    node: Node
    """As it was before."""
    sure: bool = False
    """Whether ZooKeeper has said so."""


def ask(errand: Errand, told: list[Asked], *, by: str, reason: str, guid: str = "", token: int = 0) -> None:
    """
    Ask the holders of a lock, or the one with this guid and token; put them into `told`, whatever happens.

    A node that holds a lock does so until it is gone, so nobody else can be asked by mistake. Raises
    `LockChangedHands`, `NotRevocable` and `ZooKeeperUnavailable`.
    """
    request = revocations.revocation(
        by=by, reason=reason, at=datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    )
    queue = order.ordered(errand.follow(children))
    refused: NotRevocable | None = None
    holders = tuple(queue[place] for place in standing.held(queue, errand.limits_in(queue)))
    if guid and all(child.guid != guid for child in holders):
        holders = _perhaps(errand, queue, guid)
    for child in holders:
        if guid and child.guid != guid:
            continue
        try:
            _ask_one(errand, told, child, request, token)
        except NotRevocable as error:
            refused = error  # others of those who share it may hear
    if refused is not None and not told:
        raise refused
    if not told:
        raise LockChangedHands(
            f"The lock {errand.key!r} is not held by that one any more."
            if guid or token
            else f"Nobody holds the lock {errand.key!r}.",
            lock=errand.key,
        )


def _perhaps(errand: Errand, queue: Queue, guid: str) -> tuple[Child, ...]:
    """Return the one with this guid if nobody can tell whether it has a permit."""
    meant = [child for child in queue if child.guid == guid]
    nodes = [(child, errand.read(child.name)) for child in meant]
    return tuple(child for child, node in nodes if node is not None and may_hold(errand, queue, child, node))


def _ask_one(errand: Errand, told: list[Asked], child: Child, request: Revocation, token: int) -> None:
    """Write the request into the node, over whatever somebody else has written meanwhile."""
    asked: Asked | None = None
    while (node := errand.read(child.name)) is not None and token in (0, node.czxid):
        _refuse(errand.key, child, node)
        if asked is None:
            asked = Asked(child, node)
            told.append(asked)
        answer: object = node
        # Else somebody has asked so before; or an own write did, whose answer was lost.
        if not request.same(revocations.requested(node.data)) and node.data != revocations.CURATOR:
            data = revocations.with_request(node.data, request)
            answer = errand.ask(
                lambda gateway, done, node=node, data=data: gateway.write(node.path, data, node.version, done)  # type: ignore[misc]
            )
        if isinstance(answer, ZkError) and not isinstance(answer, (NodeMissing, Outdated)):
            told.remove(asked)
            raise errand.about(answer)
        if isinstance(answer, Node):
            asked.sure = True
            return
    if asked is not None:
        told.remove(asked)  # it let go by itself


def _refuse(key: str, child: Child, node: Node) -> None:
    """Raise `NotRevocable` if nobody would hear of it."""
    if operators.is_operator(child.name):
        hold = read_hold(key, node)
        raise NotRevocable(
            f"The lock {key!r} is held by {hold or 'an operator'}, whom no program asks; end that by end_hold.",
            lock=key,
        )
    if Payload.decode(node.data) is None and not child.in_grammar_of_curator:
        raise NotRevocable(
            f"The lock {key!r} is held by a client of kazoo, which does not hear that it is asked to let go.", lock=key
        )
