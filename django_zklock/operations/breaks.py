"""
Break a lock: delete the znode of its holder.

A guid and a token name the znode. The server uses no name twice, so no other contender can be deleted.
"""

from __future__ import annotations

from dataclasses import dataclass

from django_zklock import signals
from django_zklock.core.protocol.contender_info import ContenderInfo
from django_zklock.core.queue import order
from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.locks.arguments import blocking, check_target
from django_zklock.locks.events import events
from django_zklock.operations.audit import check_by, check_reason, record_action
from django_zklock.operations.client import REPLY_TIMEOUT, DeleteNode, QueueClient, children


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A lock that was broken."""

    key: str
    holder: ContenderInfo
    reason: str
    by: str


@blocking
def break_lock(
    key: str, *, guid: str, token: int, reason: str, by: str, reply_timeout: float = REPLY_TIMEOUT
) -> Broken:
    """
    Break a lock: delete the znode of its holder, which learns at once that the lock is lost. The next waiter gets it.

    Only the znode with this guid and token is deleted, and only if it is a holder. Waiters are never
    touched, with one exception: after a change of a limit, a contender that came before may hold or wait
    (`LockInfo.holders_at_most`). If it waits, it is queued again. The break is written to the log `zklock.audit`; then
    the signal `lock_broken` is sent.

    Args:
        key: of the lock.
        guid: of the holder's znode, as inspection shows it.
        token: of the holder's znode.
        reason: why, for the audit; required.
        by: the operator.
        reply_timeout: seconds to wait for ZooKeeper.

    Raises:
        LockChangedHands: the contender with this guid and token does not hold the lock (any more).
        ZooKeeperUnavailable: ZooKeeper did not answer in time. If the request was sent, the lock may be broken.
        ValueError: `reason` or `by` is empty.

    """
    by, reason = check_by(by), check_reason(reason)
    check_target(token=token, guid=guid)
    client = QueueClient(key, reply_timeout)
    queue = order.ordered(client.run(children))
    child = next((child for child in queue if child.guid == guid), None)
    node = None if child is None else client.read(child.name)
    if child is None or node is None or ContenderInfo.from_node(key, child, node).token != token:
        raise client.changed_hands(named=True)
    delete = DeleteNode(client.parent, child.name, client.permit_limits(queue, {child.name: node}))
    broken = Broken(key=key, holder=ContenderInfo.from_node(key, child, node), reason=reason, by=by)
    try:
        done = client.run(delete)
    except ZooKeeperUnavailable:
        if delete.tried:
            record_action("broken", client.key, by, reason, holder=broken.holder, sure=False)
        raise
    if not done and not delete.tried:
        raise client.changed_hands(named=True)
    record_action("broken", client.key, by, reason, holder=broken.holder, sure=done)  # else only the reply was lost
    events.send(client.session, signals.lock_broken, lock=key, holder=broken.holder, reason=reason, by=by)
    return broken
