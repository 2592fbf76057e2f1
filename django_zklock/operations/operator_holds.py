"""
Hold a lock for a person, for a time.

The lock is acquired by an ordinary contender. Its znode is ephemeral, so nothing is left if this process dies while it
waits. Once the lock is granted, one transaction replaces that znode by an operator hold, which belongs to no session
(`locks.protocol.replacement`).
"""

from __future__ import annotations

import os
import socket
import threading
import time
from datetime import datetime, timezone
from functools import partial

from django_zklock import conf
from django_zklock.exceptions import LockBusy, LockTimeout, ZkLockError, ZooKeeperUnavailable
from django_zklock.execution.waiters import ThreadWaiter
from django_zklock.locks.errand import Errand, Removal, children
from django_zklock.locks.protocol.contender import Contender, Outcome
from django_zklock.locks.protocol.grant import Grant
from django_zklock.locks.protocol.node import Request
from django_zklock.locks.protocol.operator_holds import read_hold
from django_zklock.queue import operators, order, rules
from django_zklock.queue.nodes import Kind, Payload
from django_zklock.queue.operators import HoldLabel, OperatorHold
from django_zklock.queue.segments import SEQUENCE_DIGITS


def take(errand: Errand, label: HoldLabel, *, seconds: float, wait: float) -> OperatorHold:
    """
    Acquire the lock within `wait` seconds, and leave an operator hold of so many seconds in its queue.

    Raises `LockBusy`, `LockTimeout`, `UnreadableQueue` and `ZooKeeperUnavailable`. After the last one the hold may have
    been made, if its reply was lost.
    """
    waiter: ThreadWaiter[Outcome] = ThreadWaiter()
    contender = Contender(errand.session, _request(errand, label, seconds, wait), waiter.set)
    try:
        contender.start()
        outcome = waiter.wait(wait)
        if outcome is None and not contender.placed:
            outcome = waiter.wait(errand.left)  # ZooKeeper has not answered yet
        if not isinstance(outcome, Grant):
            raise _not_acquired(errand, contender, outcome, wait)
        outcome.begun = True  # from now on its release leaves the hold
    finally:
        contender.abandon()
    own = outcome.path.rpartition("/")[2]
    if not errand.gone(own, errand.left):
        raise errand.unanswered()
    for name in errand.follow(children):
        if name.endswith(own[-SEQUENCE_DIGITS:]) and operators.is_operator(name):
            hold = find(errand, name)
            if hold is not None:
                return hold
    raise ZooKeeperUnavailable(f"The lock {errand.key!r} was lost before it was held. Try again.", lock=errand.key)


def find(errand: Errand, name: str) -> OperatorHold | None:
    """Return the hold that the znode of this name is, or None if it is gone or is no hold."""
    node = errand.read(name)
    return None if node is None else read_hold(errand.key, node)


def end(errand: Errand, token: int) -> OperatorHold | None:
    """Delete the hold with this token, and return it; None if it is gone."""
    for name in filter(operators.is_operator, errand.follow(children)):
        hold = find(errand, name)
        if hold is not None and hold.token == token:
            removal = Removal(errand.parent, name)
            return hold if errand.follow(removal) or removal.tried else None
    return None


def _request(errand: Errand, label: HoldLabel, seconds: float, wait: float) -> Request:
    return Request(
        key=errand.key,
        parent=errand.parent,
        rule=rules.exclusive,
        kind=_kind(errand),
        patient=wait > 0,
        payload=partial(_payload, label, threading.current_thread().name),
        hold_at_least=seconds,
        operator=label,
        deadline=time.monotonic() + wait,
    )


def _payload(label: HoldLabel, thread: str, guid: str) -> bytes:
    return Payload(
        guid=guid,
        host=socket.gethostname(),
        pid=os.getpid(),
        thread=thread,
        what=f"operator {label.by}: {label.reason}",
        since=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        template="",
    ).encode()


def _kind(errand: Errand) -> Kind:
    """
    Return the kind of znode that keeps everybody out of this queue.

    Contenders of ours keep each other out, whatever their kinds. The recipes of Apache Curator see only znodes of their
    own kind, so in the queue of a read-write lock the hold is a writer.
    """
    queue = order.ordered(errand.follow(children))
    if any(child.by_curator and child.kind is Kind.LOCK for child in queue):
        return Kind.LOCK
    declared = conf.current().options_of_key(errand.key).kind
    read_write = declared in ("read", "write") or any(child.kind in (Kind.READ, Kind.WRITE) for child in queue)
    return Kind.WRITE if read_write else Kind.LOCK


def _not_acquired(errand: Errand, contender: Contender, outcome: Outcome | None, wait: float) -> ZkLockError:
    """Return the error that tells why the lock was not acquired."""
    if isinstance(outcome, ZkLockError):
        return errand.about(outcome)
    if not contender.placed:
        return errand.unanswered()
    ahead = contender.ahead
    holder = str(contender.operator or ("another process" if ahead is None else f"{ahead.what!r} on {ahead.host}"))
    if not wait:
        return LockBusy(f"The lock {errand.key!r} is held by {holder}.", lock=errand.key)
    return LockTimeout(
        f"The lock {errand.key!r} was not free within {wait:g} s. Ahead in the queue: {holder}.", lock=errand.key
    )
