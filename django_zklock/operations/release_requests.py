"""Ask the holders of a lock to release it: write a request into their znodes, which they watch."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial

from django_zklock.core.protocol.contender_info import ContenderInfo
from django_zklock.core.protocol.operator_holds import read_hold
from django_zklock.core.queue import operator_hold, release_request
from django_zklock.core.queue.nodes import Child, Payload
from django_zklock.core.queue.release_request import ReleaseRequest
from django_zklock.core.zk.errors import NodeMissing, Outdated
from django_zklock.core.zk.gateway import Callback, Gateway, Node, NodeReply
from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.locks.arguments import blocking, check_target
from django_zklock.operations.audit import Action, check_by, check_reason, record
from django_zklock.operations.client import REPLY_TIMEOUT, QueueClient


@blocking
def request_release(
    key: str, reason: str, *, by: str, guid: str = "", token: int = 0, reply_timeout: float = REPLY_TIMEOUT
) -> tuple[Action, ...]:
    """
    Ask the holder of a lock to release it, or all holders if several share it. No work is aborted.

    The holder sees the request in `hold.release_requested` and by the signal `lock_release_requested`. It releases when
    its work allows. The same request again changes nothing; a later one replaces it. Each request is written to the log
    `zklock.audit`.

    Args:
        key: of the lock.
        reason: why, for the audit and for the holder; required.
        by: the operator.
        guid: of the one holder to ask; empty: all of them.
        token: of that holder's znode, if it is known.
        reply_timeout: seconds to wait for ZooKeeper.

    Raises:
        LockChangedHands: the lock has no holder, or not the one that is named (any more).
        ZooKeeperUnavailable: ZooKeeper did not answer in time. If the request was sent, the holder may be asked.
        ValueError: `reason` or `by` is empty. Or the holder is an operator hold or a client of kazoo.

    """
    by, reason = check_by(by), check_reason(reason)
    check_target(token=token, guid=guid)
    client = QueueClient(key, reply_timeout)
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    request = release_request.release_request(by=by, reason=reason, at=at)
    asked: list[Action] = []
    problem = ""
    for child, node in client.holders(guid, token or None):
        unsupported = _why_unsupported(client.key, child, node)
        if unsupported:
            problem = unsupported  # other holders may receive requests
            continue
        holder = ContenderInfo.from_node(client.key, child, node)
        action = Action(
            text="Release requested of", key=client.key, by=by, reason=reason, holder=holder, token=holder.token
        )
        try:
            reply = _write(client, node, request)
        except ZooKeeperUnavailable:
            record(action, sure=False)
            raise
        if isinstance(reply, Node):
            asked.append(record(action))
        elif not isinstance(reply, NodeMissing):  # else it has released by itself
            raise client.with_key(reply)
    if not asked:
        raise ValueError(problem) if problem else client.changed_hands(token or guid)
    return tuple(asked)


def _write(client: QueueClient, node: Node, request: ReleaseRequest) -> NodeReply:
    """Write the request into a znode; return the reply. Repeat this if another client has written it meanwhile."""
    reply: NodeReply = node
    while isinstance(reply, Node):
        # If the same request is there already, an earlier write of this call may have lost its reply.
        if request.same(release_request.requested(reply.data)) or reply.data == release_request.CURATOR:
            return reply
        data, version = release_request.with_request(reply.data, request), reply.version
        written: NodeReply = client.request(partial(_send, path=node.path, data=data, version=version))
        if not isinstance(written, Outdated):
            return written
        reply = client.request(lambda gateway, done: gateway.read(node.path, done))
    return reply


def _send(gateway: Gateway, done: Callback[NodeReply], *, path: str, data: bytes, version: int) -> None:
    gateway.write(path, data, version, done)


def _why_unsupported(key: str, child: Child, node: Node) -> str:
    """Return why the holder would never see a request; empty if it would."""
    if operator_hold.is_operator(child.name):
        hold = read_hold(key, node)
        return (
            f"The lock {key!r} is held by {hold or 'an operator'}, and no program would see the request. "
            "End it with end_hold."
        )
    if Payload.decode(node.data) is None and not child.in_grammar_of_curator:
        return f"The lock {key!r} is held by a client of kazoo, which receives no release requests."
    return ""
