"""
Knows how a person steps in: a lock is broken, its holder asked to let go, it is held for a time with a reason, or the
permits of a semaphore are made more or fewer.

What is done goes to the log `zklock.audit` before anybody else is told. A break deletes the one node that was named by
guid and czxid: the server gives no name twice, so nobody else can be struck. A hold is a node of the queue like any, by
the same rules, but no end of a session deletes it (`queue.operators`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from django_zklock import signals
from django_zklock.conf import options
from django_zklock.exceptions import LockChangedHands, ZooKeeperUnavailable
from django_zklock.locks.errand import Errand, Removal, children
from django_zklock.locks.taking import send_from
from django_zklock.locks.validation import refuse_no_span, refuse_no_target, refuse_running_loop
from django_zklock.operations import limits
from django_zklock.operations.audit import (
    Holder,
    audit,
    holder_of,
    log_asked,
    log_break,
    log_limit,
    logged,
    named,
    reasoned,
    said,
)
from django_zklock.operations.break_records import left, sweep
from django_zklock.operations.limits import may_hold
from django_zklock.operations.operator_holds import end, take
from django_zklock.operations.release_requests import Asked, ask
from django_zklock.queue import broken, order
from django_zklock.queue.broken import Note
from django_zklock.queue.limits import Record, SetLimit
from django_zklock.queue.names import check_escaped
from django_zklock.queue.nodes import own_limit
from django_zklock.queue.operators import LONGEST, HoldLabel, OperatorHold
from django_zklock.queue.printable import printable
from django_zklock.queue.revocations import Revocation
from django_zklock.zk.changes import Make

__all__ = [
    "Broken",
    "Holder",
    "OperatorHold",
    "Revocation",
    "Revoked",
    "SetLimit",
    "break_lock",
    "clear_limit",
    "end_hold",
    "hold_lock",
    "limit_of",
    "revoke",
    "set_limit",
]

PATIENCE: Final = 5.0
"""Seconds that ZooKeeper has for its answers, beside the time to wait for a lock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A lock that was broken."""

    key: str
    holder: Holder
    reason: str
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoked:
    """A lock whose holders were asked to let go."""

    key: str
    holders: tuple[Holder, ...]
    """Who was asked."""
    reason: str
    by: str


def break_lock(key: str, *, guid: str, token: int, reason: str, by: str, patience: float = PATIENCE) -> Broken:
    """
    Take a lock from the one who holds it now, who is told at once that it is lost; the next in the queue gets it.

    Exactly the node with this guid and token (its czxid) is deleted, and only if it is the holder's. Nobody who waits
    is ever touched, unless nobody can tell (`ContenderInfo.may_hold`): if it waited, it comes last then. Goes to the
    log `zklock.audit`; then the signal `lock_broken` is sent.

    Args:
        key: of the lock.
        guid: of the holder's node, as inspection shows it.
        token: of the holder's node.
        reason: why, for the audit and for the one who loses it; required.
        by: who does it.
        patience: seconds to wait for ZooKeeper.

    Raises:
        LockChangedHands: the one with this guid and token does not hold the lock (any more).
        ZooKeeperUnavailable: ZooKeeper did not answer in time; if the request had been sent, it may be broken.
        ValueError: there is no reason, or nobody who does it.

    """
    refuse_running_loop("break_lock", "await sync_to_async(break_lock)(...)")
    by, reason = named(by), reasoned(reason)
    refuse_no_target(token=token, guid=guid)
    errand = Errand(key, patience)
    queue = order.ordered(errand.follow(children))
    holder = next((child for child in queue if child.guid == guid), None)
    node = None if holder is None else errand.read(holder.name)
    if holder is None or node is None or node.czxid != token:
        raise _changed_hands(key)
    note = Note(by, reason)
    where = broken.place(errand.base, holder.name)
    beside = (Make(path=where, data=note.encode()),)
    held = not may_hold(errand, queue, holder, node)
    removal = Removal(errand.parent, holder.name, beside, held=held, limit=own_limit(node.data))
    found = Broken(key=key, holder=holder_of(holder, node), reason=reason, by=by)
    try:
        done = errand.follow(removal, directory=broken.directory(errand.base))
    except ZooKeeperUnavailable:
        if removal.tried:
            log_break(key, found.holder, "may be broken, as the answer was lost,", by, reason)
        raise
    if not done and not (removal.tried and left(errand, note, where)):
        raise _changed_hands(key)
    log_break(key, found.holder, "was broken", by, reason)
    send_from(errand.session, signals.lock_broken, lock=key, holder=found.holder, reason=reason, by=by)
    errand.session.post(sweep, errand, where)
    return found


def revoke(key: str, reason: str, *, by: str, guid: str = "", token: int = 0, patience: float = PATIENCE) -> Revoked:
    """
    Ask the holder of a lock to let go, or all of them if several share it; nobody is stopped.

    The holder sees it in `hold.revoke_requested` and by the signal `lock_revoke_requested`, and lets go when its work
    allows. Asking again changes nothing, and who asks later is the one who is shown. Goes to the log `zklock.audit`.

    Args:
        key: of the lock.
        reason: why, for the audit and for the holder; required.
        by: who asks.
        guid: of the one holder that is meant, if not all.
        token: of that holder's node, if it is known.
        patience: seconds to wait for ZooKeeper.

    Raises:
        LockChangedHands: nobody holds the lock, or not the one that is meant (any more).
        NotRevocable: whoever holds it would never hear of it.
        ZooKeeperUnavailable: ZooKeeper did not answer in time; if the request had been sent, they may be asked.
        ValueError: there is no reason, or nobody who asks.

    """
    refuse_running_loop("revoke", "await sync_to_async(revoke)(...)")
    by, reason = named(by), reasoned(reason)
    refuse_no_target(token=token, guid=guid)
    errand = Errand(key, patience)
    told: list[Asked] = []
    try:
        ask(errand, told, by=by, reason=reason, guid=guid, token=token)
    finally:
        holders = tuple(holder_of(each.child, each.node) for each in told)
        for holder, each in zip(holders, told, strict=True):
            log_asked(key, holder, by, reason, sure=each.sure)
    return Revoked(key=key, holders=holders, reason=reason, by=by)


def hold_lock(
    key: str, *, seconds: float, reason: str, by: str, wait: float = 0, patience: float = PATIENCE
) -> OperatorHold:
    """
    Take a lock for a person, for `seconds` from the moment it is granted, to drain a deploy, say.

    It comes last in the queue like anybody, and waits at most `wait` seconds for its turn. It outlives this process:
    it ends by `end_hold`, or by itself, by the clock of the server.

    Raises:
        LockBusy: somebody has the lock, and `wait` is 0.
        LockTimeout: it was not free within `wait` seconds.
        ZooKeeperUnavailable: ZooKeeper did not answer; what may have been written ends by itself.
        ValueError: there is no reason, nobody who asks, or `seconds` is not within 0 and a week.

    """
    refuse_running_loop("hold_lock", "await sync_to_async(hold_lock)(...)")
    by, reason = named(by), reasoned(reason)
    what = f"a number above 0 and of at most {LONGEST:.0f}, a week"
    refuse_no_span("seconds", seconds, what)
    if not 0 < seconds <= LONGEST:
        raise ValueError(f"seconds is {what}, not {seconds!r}.")
    refuse_no_span("wait", wait)
    refuse_no_span("patience", patience)
    errand = Errand(key, patience + wait)
    check_escaped(key)
    hold = take(errand, HoldLabel(by, reason), seconds=seconds, wait=wait)
    audit.warning("lock %s is held by %s", printable(key), hold, extra={**logged(key, by, reason), "token": hold.token})
    return hold


def end_hold(key: str, *, token: int, by: str, reason: str = "", patience: float = PATIENCE) -> None:
    """
    End an operator's hold before its time.

    Raises:
        LockChangedHands: no operator's hold of this lock has this token (any more); it may have ended by itself.
        ZooKeeperUnavailable: ZooKeeper did not answer in time.

    """
    refuse_running_loop("end_hold", "await sync_to_async(end_hold)(...)")
    by, reason = named(by), said(reason)
    refuse_no_target(token=token)
    errand = Errand(key, patience)
    hold = end(errand, token)
    if hold is None:
        raise _no_hold(key)
    audit.warning(
        "the hold of lock %s by %s was ended by %s%s",
        printable(key),
        hold,
        by,
        f": {reason}" if reason else "",
        extra={**logged(key, by, reason), "token": token},
    )


def set_limit(key: str, limit: int, *, reason: str, by: str, patience: float = PATIENCE) -> None:
    """
    Set how many permits a semaphore has, for all processes and over what their code says, until it is cleared.

    Nobody loses a permit: if more are in use than there are now, the next is given once enough have been let go. If
    there are more than before, the next that wait get theirs at once. Setting it again replaces it. Goes to the log
    `zklock.audit`; then the signal `limit_changed` is sent.

    Args:
        key: of the lock; nobody has to hold it or wait for it.
        limit: the permits there are to be, from 1 to 10 000.
        reason: why, for the audit and for who looks at the lock; required.
        by: who does it.
        patience: seconds to wait for ZooKeeper.

    Raises:
        ZooKeeperUnavailable: ZooKeeper did not answer in time; if the request had been sent, it may be set.
        UnreadableQueue: nobody can tell who has a permit now.
        ValueError: there is no reason, or nobody who does it; or there are no such limits.

    """
    refuse_running_loop("set_limit", "await sync_to_async(set_limit)(...)")
    by, reason = named(by), reasoned(reason)
    if not options.is_limit(limit):
        raise ValueError(f"limit is a number of permits from 1 to {options.MOST_PERMITS}, not {limit!r}.")
    errand = Errand(key, patience)
    check_escaped(key)
    record = Record(by, reason)
    try:
        limits.set_limit(errand, limit, record)
    except ZooKeeperUnavailable:
        log_limit(key, f"may have been set to {limit}, as the answer was lost,", by, reason)
        raise
    log_limit(key, f"was set to {limit}", by, reason)
    send_from(errand.session, signals.limit_changed, lock=key, limit=limit, by=by, reason=reason)


def clear_limit(key: str, *, reason: str, by: str, patience: float = PATIENCE) -> bool:
    """
    Have the limit that each process has in its code count again; return whether another one was set.

    Nobody loses a permit. Goes to the log `zklock.audit`; then the signal `limit_changed` is sent, with None.

    Raises:
        ZooKeeperUnavailable: ZooKeeper did not answer in time; if the request had been sent, it may be cleared.
        ValueError: there is no reason, or nobody who does it.

    """
    refuse_running_loop("clear_limit", "await sync_to_async(clear_limit)(...)")
    by, reason = named(by), reasoned(reason)
    errand = Errand(key, patience)
    check_escaped(key)
    try:
        done = limits.clear_limit(errand)
    except ZooKeeperUnavailable:
        log_limit(key, "may have been cleared, as the answer was lost,", by, reason)
        raise
    if done:
        log_limit(key, "was cleared", by, reason)
        send_from(errand.session, signals.limit_changed, lock=key, limit=None, by=by, reason=reason)
    return done


def limit_of(key: str, *, patience: float = PATIENCE) -> SetLimit | None:
    """
    Return the limit that is set for all processes, with who set it and why; None: each goes by its own.

    It tells of a semaphore that nobody is in, too, which `inspection` does not list. Raises `ZooKeeperUnavailable`.
    """
    refuse_running_loop("limit_of", "await sync_to_async(limit_of)(...)")
    errand = Errand(key, patience)
    check_escaped(key)
    return limits.limit_of(errand)


def _changed_hands(key: str) -> LockChangedHands:
    return LockChangedHands(f"The lock {key!r} is not held by that one any more.", lock=key)


def _no_hold(key: str) -> LockChangedHands:
    return LockChangedHands(f"No operator's hold of {key!r} has this token any more.", lock=key)
