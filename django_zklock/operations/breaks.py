"""
Break a lock: delete the znode of its holder. The audit log has the operator and the reason.

A guid and a token name the znode. The server uses no name twice, so no other contender can be deleted.
"""

from __future__ import annotations

from django_zklock import signals
from django_zklock.core.protocol.contender_info import ContenderInfo
from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.locks.arguments import blocking, check_target
from django_zklock.locks.events import events
from django_zklock.operations.audit import Action, check_by, check_reason, record
from django_zklock.operations.client import REPLY_TIMEOUT, DeleteNode, QueueClient


@blocking
def break_lock(
    key: str, *, token: int, guid: str = "", reason: str, by: str, reply_timeout: float = REPLY_TIMEOUT
) -> Action:
    """
    Break a lock: delete the znode of its holder, which learns at once that the lock is lost. The next waiter gets it.

    Only the znode with this guid and token is deleted, and only if it is a holder. Waiters are never
    touched, with one exception: after a change of a limit, a contender that came before may hold or wait
    (`LockInfo.holders_at_most`). If it waits, it is queued again. The break is written to the log `zklock.audit`; then
    the signal `lock_broken` is sent.

    Args:
        key: of the lock.
        token: of the holder's znode, as inspection shows it.
        guid: of the same znode; empty: the token alone names it.
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
    for child, node in client.holders(guid, token):
        holder = ContenderInfo.from_node(key, child, node)
        action = Action(
            text="Broken; its holder was", key=client.key, by=by, reason=reason, holder=holder, token=holder.token
        )
        delete = DeleteNode(client.parent, child.name, client.limits)
        try:
            done = client.run(delete)
        except ZooKeeperUnavailable:
            if delete.tried:
                record(action, sure=False)
            raise
        if done or delete.tried:
            action = record(action, sure=done)
            events.send(client.session, signals.lock_broken, lock=key, holder=holder, reason=reason, by=by)
            return action
    raise client.changed_hands(token)
