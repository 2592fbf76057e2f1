"""
Hold a lock for a person, for a time.

The lock is acquired by an ordinary contender. Its znode is ephemeral, so nothing is left if this process dies while it
waits. Once the lock is granted, one transaction replaces that znode by an operator hold, which belongs to no session
(`core.protocol.operator_holds`).
"""

from __future__ import annotations

import threading

from django_zklock import conf
from django_zklock.core import clock
from django_zklock.core.execution.owner import current_owner
from django_zklock.core.execution.waiters import ThreadWaiter
from django_zklock.core.locks.refusals import refusal
from django_zklock.core.protocol.contender import CallerWait, Contender, Outcome
from django_zklock.core.protocol.grant import Grant
from django_zklock.core.protocol.operator_holds import read_hold
from django_zklock.core.protocol.spec import Caller, QueueSpec
from django_zklock.core.queue import operator_hold, order
from django_zklock.core.queue.escaping import SEQUENCE_DIGITS
from django_zklock.core.queue.nodes import Kind
from django_zklock.core.queue.operator_hold import LONGEST, HoldLabel, OperatorHold
from django_zklock.exceptions import LockChangedHands, ZooKeeperUnavailable
from django_zklock.locks.arguments import blocking, check_seconds, check_target
from django_zklock.names.template import check_own_key
from django_zklock.operations.audit import Action, check_by, check_reason, record
from django_zklock.operations.client import REPLY_TIMEOUT, DeleteNode, QueueClient, children


@blocking
def hold_lock(
    key: str, *, seconds: float, reason: str, by: str, wait: float = 0, reply_timeout: float = REPLY_TIMEOUT
) -> OperatorHold:
    """
    Hold a lock for a person, for `seconds` from the grant, for example during a deploy.

    The call waits in the queue like any contender, for at most `wait` seconds. After the grant, the hold belongs to no
    process. `end_hold` ends it, or it ends by itself, by ZooKeeper's clock. A process that dies while it waits leaves
    nothing.

    Raises:
        LockBusy: the lock has a holder, and `wait` is 0.
        LockTimeout: the lock was not free within `wait` seconds.
        ZooKeeperUnavailable: ZooKeeper did not answer in time. The lock may be held; then the hold ends by itself.
        ValueError: `reason` or `by` is empty, or `seconds` is not between 0 and a week.

    """
    by, reason = check_by(by), check_reason(reason)
    what = f"a number above 0 and of at most {LONGEST:.0f}, a week"
    check_seconds("seconds", seconds, what)
    if not 0 < seconds <= LONGEST:
        raise ValueError(f"seconds is {what}, not {seconds!r}.")
    check_seconds("wait", wait)
    check_seconds("reply_timeout", reply_timeout)
    client = QueueClient(key, reply_timeout + wait)
    check_own_key(key)
    hold = _acquire(client, HoldLabel(by, reason), seconds=seconds, wait=wait)
    text = f"Held until {hold.until:%Y-%m-%d %H:%M:%S} UTC with token {hold.token}"
    record(Action(text=text, key=client.key, by=by, reason=reason, token=hold.token))
    return hold


@blocking
def end_hold(key: str, *, token: int, by: str, reason: str = "", reply_timeout: float = REPLY_TIMEOUT) -> None:
    """
    End an operator hold before its time. A hold that `hold_lock` still waits for has no token, and cannot be ended.

    Raises:
        LockChangedHands: no operator hold of this lock has this token (any more). It may have ended by itself.
        ZooKeeperUnavailable: ZooKeeper did not answer in time.

    """
    by, reason = check_by(by), check_reason(reason, needed=False)
    check_target(token=token)
    client = QueueClient(key, reply_timeout)
    hold = _delete(client, token)
    if hold is None:
        raise LockChangedHands(f"The lock {key!r} has no operator hold with this token any more.", lock=key)
    record(Action(text=f"Ended the hold of {hold}", key=client.key, by=by, reason=reason, token=token))


def _acquire(client: QueueClient, label: HoldLabel, *, seconds: float, wait: float) -> OperatorHold:
    """
    Acquire the lock within `wait` seconds, and leave an operator hold of `seconds` seconds in its queue.

    Raises `LockBusy`, `LockTimeout`, `UnreadableQueue` and `ZooKeeperUnavailable`. After the last one, the hold may
    exist: perhaps only the reply was lost.
    """
    waiter: ThreadWaiter[Outcome] = ThreadWaiter()
    began = clock.now()
    spec = QueueSpec(key=client.key, parent=client.parent, kind=_kind(client), min_hold=seconds)
    caller = Caller(thread=threading.current_thread().name, what=f"operator {label.by}: {label.reason}", operator=label)
    caller_wait = CallerWait(waiter.set, deadline=began + wait)
    contender = Contender(client.session, spec, caller, caller_wait, waits=wait > 0)
    try:
        contender.start()
        outcome = waiter.wait(wait)
        if outcome is None and not contender.has_position:
            outcome = waiter.wait(client.remaining)  # ZooKeeper has not answered yet
        if not isinstance(outcome, Grant):
            error = refusal(contender, current_owner(), outcome, clock.now() - began)
            raise client.with_key(error)
        outcome.begun = True  # from now on, the release of this contender leaves the operator hold
    finally:
        contender.abandon()
    own_name = outcome.path.rpartition("/")[2]
    if not client.wait_gone(own_name, client.remaining):
        raise client.with_key(contender.refusal or ZooKeeperUnavailable(client.session.explain()))
    for name in client.run(children):
        if name.endswith(own_name[-SEQUENCE_DIGITS:]) and operator_hold.is_operator(name):
            hold = _hold_in(client, name)
            if hold is not None:
                return hold
    raise ZooKeeperUnavailable(
        f"The hold of {client.key!r} is over already, or the lock was lost before it began. Try again.", lock=client.key
    )


def _hold_in(client: QueueClient, name: str) -> OperatorHold | None:
    """Return the hold in the znode of this name; None if the znode is gone, or is no hold."""
    node = client.read(name)
    return None if node is None else read_hold(client.key, node)


def _delete(client: QueueClient, token: int) -> OperatorHold | None:
    """Delete the hold with this token, and return it; None if it is gone."""
    for name in filter(operator_hold.is_operator, client.run(children)):
        hold = _hold_in(client, name)
        if hold is not None and hold.token == token:
            delete = DeleteNode(client.parent, name)
            return hold if client.run(delete) or delete.tried else None
    return None


def _kind(client: QueueClient) -> Kind:
    """
    Return the kind of znode that keeps all other contenders waiting in this queue.

    Contenders of ours keep each other out, whatever their kinds. The recipes of Apache Curator see only znodes of their
    own kind, so in the queue of a read-write lock the hold is a writer.
    """
    queue = order.ordered(client.run(children))
    if any(child.by_curator and child.kind is Kind.LOCK for child in queue):
        return Kind.LOCK
    declared = conf.current().options_of_key(client.key).get("kind")
    read_write = declared in ("read", "write") or any(child.kind in (Kind.READ, Kind.WRITE) for child in queue)
    return Kind.WRITE if read_write else Kind.LOCK
