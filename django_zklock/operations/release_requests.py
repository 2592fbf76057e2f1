"""Ask the holders of a lock to release it: write a request into their znodes, which they watch."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from django_zklock.core.protocol.contender_info import ContenderInfo
from django_zklock.core.protocol.operator_holds import read_hold
from django_zklock.core.queue import operator_hold, release_request
from django_zklock.core.queue.nodes import Child, Payload
from django_zklock.core.queue.release_request import ReleaseRequest
from django_zklock.core.zk.errors import NodeMissing, Outdated, ZkError
from django_zklock.core.zk.gateway import Node
from django_zklock.locks.arguments import blocking, check_target
from django_zklock.operations.audit import check_by, check_reason, record_action
from django_zklock.operations.client import REPLY_TIMEOUT, QueueClient


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseRequested:
    """A lock whose holders were asked to release it."""

    key: str
    holders: tuple[ContenderInfo, ...]
    """The holders that were asked."""
    reason: str
    by: str


@blocking
def request_release(
    key: str, reason: str, *, by: str, guid: str = "", token: int = 0, reply_timeout: float = REPLY_TIMEOUT
) -> ReleaseRequested:
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
    request = release_request.release_request(
        by=by, reason=reason, at=datetime.now(UTC).isoformat(timespec="milliseconds")
    )
    targets: list[_Target] = []
    problem = ""
    try:
        for child in client.holders(guid):
            problem = _write(client, targets, child, request, token) or problem
    finally:
        for target in targets:
            record_action("release requested", client.key, by, reason, holder=target.holder, sure=target.sure)
    if problem and not targets:
        raise ValueError(problem)
    if not targets:
        raise client.changed_hands(named=bool(guid or token))
    return ReleaseRequested(key=key, holders=tuple(target.holder for target in targets), reason=reason, by=by)


@dataclass(slots=True)
class _Target:
    """A holder that was asked, or may have been."""

    holder: ContenderInfo
    """The holder, as it was before the request."""
    sure: bool = False
    """Whether ZooKeeper has confirmed the write."""


def _write(client: QueueClient, targets: list[_Target], child: Child, request: ReleaseRequest, token: int) -> str:
    """
    Write the request into the znode. Repeat this if another client has written the znode meanwhile.

    The holder is put into `targets`, even if an error is raised. Returns why this holder receives no requests, or an
    empty string. Other holders may receive them.
    """
    target: _Target | None = None
    while (node := client.read(child.name)) is not None:
        if token not in (0, ContenderInfo.from_node(client.key, child, node).token):
            break
        if problem := _why_unsupported(client.key, child, node):
            return problem
        if target is None:
            target = _Target(ContenderInfo.from_node(client.key, child, node))
            targets.append(target)
        reply: object = node
        # If the same request is there already, an earlier write of this call may have lost its reply.
        if not request.same(release_request.requested(node.data)) and node.data != release_request.CURATOR:
            data = release_request.with_request(node.data, request)
            reply = client.request(
                lambda gateway, done, node=node, data=data: gateway.write(node.path, data, node.version, done)  # type: ignore[misc]
            )
        if isinstance(reply, ZkError) and not isinstance(reply, (NodeMissing, Outdated)):
            targets.remove(target)
            raise client.with_key(reply)
        if isinstance(reply, Node):
            target.sure = True
            return ""
    if target is not None:
        targets.remove(target)  # it has released by itself
    return ""


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
