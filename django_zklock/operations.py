"""
Knows how a person steps in: a lock is broken, its holder asked to let go, or it is held for a time with a reason.

What is done goes to the log `zklock.audit` before anybody else is told. A break deletes the one node that was named by
guid and czxid: the server gives no name twice, so nobody else can be struck. A hold is a node of the queue like any, by
the same rules, but no end of a session deletes it (`queue.operators`).
"""

from __future__ import annotations

import logging
import math
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

from django_zklock import signals
from django_zklock.exceptions import LockChangedHands, ZooKeeperUnavailable
from django_zklock.locks.asking import Asked, ask
from django_zklock.locks.breaking import LASTS
from django_zklock.locks.errand import Errand, Removal, children
from django_zklock.locks.holding import end_in_time, take
from django_zklock.locks.operators import read_hold
from django_zklock.locks.refusals import refuse_running_loop
from django_zklock.locks.taking import send_from
from django_zklock.queue import broken, operators, order
from django_zklock.queue.broken import Note
from django_zklock.queue.nodes import Child, Payload
from django_zklock.queue.operators import LONGEST, OperatorHold
from django_zklock.queue.printable import printable
from django_zklock.queue.revocations import Revocation
from django_zklock.zk.changes import Make
from django_zklock.zk.errors import ZkError
from django_zklock.zk.gateway import Gateway, Node

__all__ = ["Broken", "Holder", "OperatorHold", "Revocation", "Revoked", "break_lock", "end_hold", "hold_lock", "revoke"]

audit = logging.getLogger("zklock.audit")

PATIENCE: Final = 5.0
"""Seconds that ZooKeeper has for its answers, beside the time to wait for a lock."""
NOTES_LAST: Final = 60.0
"""Seconds after which the next break deletes a note that nobody has."""

_AT_MOST: Final = 100  # notes that are looked at
_MOST: Final = 500  # characters of a reason or a name that are audited


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who held a lock that was broken; what ZooKeeper said of it is cut, and has no control characters."""

    name: str
    guid: str
    token: int
    session_id: int
    host: str
    pid: int
    thread: str
    what: str
    about: Mapping[str, str]


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
    is ever touched. Goes to the log `zklock.audit`; then the signal `lock_broken` is sent.

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
    by, reason = _named(by), _reasoned(reason)
    errand = Errand(key, patience)
    names = errand.follow(children)
    holder = next((child for child in order.ordered(names) if child.guid == guid), None)
    node = None if holder is None else errand.read(holder.name)
    if holder is None or node is None or node.czxid != token:
        raise _changed_hands(key)
    note = Note(by, reason)
    where = broken.place(errand.base, holder.name)
    removal = Removal(errand.parent, holder.name, (Make(path=where, data=note.encode()),), held=True)
    found = Broken(key=key, holder=_holder(holder, node), reason=reason, by=by)
    try:
        done = errand.follow(removal, directory=broken.directory(errand.base))
    except ZooKeeperUnavailable:
        if removal.tried:
            _log_break(found, "may be broken, as the answer was lost,")
        raise
    if not done and not (removal.tried and _left(errand, note, where)):
        raise _changed_hands(key)
    _log_break(found, "was broken")
    send_from(errand.session, signals.lock_broken, lock=key, holder=found.holder, reason=reason, by=by)
    errand.session.post(_sweep, errand, where)
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
    by, reason = _named(by), _reasoned(reason)
    errand = Errand(key, patience)
    told: list[Asked] = []
    try:
        ask(errand, told, by=by, reason=reason, guid=guid, token=token)
    finally:
        holders = tuple(_holder(each.child, each.node) for each in told)
        for holder, each in zip(holders, told, strict=True):
            _log_asked(key, holder, by, reason, sure=each.sure)
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
    by, reason = _named(by), _reasoned(reason)
    if not 0 < seconds <= LONGEST:
        raise ValueError(f"seconds is a number above 0 and of at most {LONGEST:.0f}, a week, not {seconds!r}.")
    if not 0 <= wait < math.inf:
        raise ValueError(f"wait is a number of seconds, not {wait!r}.")
    errand = Errand(key, patience + wait)
    hold = take(errand, by=by, reason=reason, seconds=seconds, wait=wait)
    audit.warning(
        "lock %s is held by %s", printable(key), hold, extra={**_logged(key, by, reason), "token": hold.token}
    )
    errand.session.post(end_in_time, errand, hold)
    return hold


def end_hold(key: str, *, token: int, by: str, reason: str = "", patience: float = PATIENCE) -> None:
    """
    End an operator's hold before its time.

    Raises:
        LockChangedHands: no operator's hold of this lock has this token (any more); it may have ended by itself.
        ZooKeeperUnavailable: ZooKeeper did not answer in time.

    """
    refuse_running_loop("end_hold", "await sync_to_async(end_hold)(...)")
    by, reason = _named(by), printable(reason.strip(), _MOST)
    errand = Errand(key, patience)
    for name in filter(operators.is_operator, errand.follow(children)):
        node = errand.read(name)
        hold = None if node is None or node.czxid != token else read_hold(key, node)
        if hold is not None:
            break
    else:
        raise _no_hold(key)
    removal = Removal(errand.parent, name)
    if not errand.follow(removal) and not removal.tried:
        raise _no_hold(key)
    audit.warning(
        "the hold of lock %s by %s was ended by %s%s",
        printable(key),
        hold,
        by,
        f": {reason}" if reason else "",
        extra={**_logged(key, by, reason), "token": token},
    )


# --- the note of a break ----------------------------------------------------------------------------------------------


def _left(errand: Errand, note: Note, where: str) -> bool:
    """Tell whether this note was left, with the deletion that it is about."""
    answer = errand.ask(lambda gateway, done: gateway.read(where, done))
    found = Note.decode(answer.data) if isinstance(answer, Node) else None
    return found is not None and found.id == note.id


def _sweep(errand: Errand, where: str) -> None:
    """Delete the note later, and old ones that nobody has deleted now; on the protocol's thread."""
    gateway = errand.session.attached(Gateway)
    parent = broken.directory(errand.base)

    def on_note(answer: Any) -> None:
        if isinstance(answer, Node):
            gateway.children(parent, partial(on_listed, answer.ctime))

    def on_listed(now: float, names: Any) -> None:
        if not isinstance(names, ZkError):
            for name in names[:_AT_MOST]:
                gateway.read(f"{parent}/{name}", partial(on_read, now))

    def on_read(now: float, answer: Any) -> None:
        if isinstance(answer, Node) and answer.ctime < now - NOTES_LAST:
            gateway.delete(answer.path, lambda answer: None)

    errand.session.loop.call_later(LASTS, lambda: gateway.delete(where, lambda answer: None))
    gateway.read(where, on_note)


# --- words ------------------------------------------------------------------------------------------------------------


def _named(by: str) -> str:
    found = printable(by.strip(), _MOST)
    if not found:
        raise ValueError("by is empty; say who does it.")
    return found


def _reasoned(reason: str) -> str:
    found = printable(reason.strip(), _MOST)
    if not found:
        raise ValueError("reason is empty; say why, as others will ask.")
    return found


def _holder(child: Child, node: Node) -> Holder:
    payload = Payload.decode(node.data)
    found = {"token": node.czxid, "session_id": node.owner, "name": child.name, "guid": child.guid}
    if payload is None:
        what = printable(node.data[:_MOST].decode(errors="replace"), _MOST)
        return Holder(**found, host="", pid=0, thread="", what=what, about={})  # type: ignore[arg-type]
    about = {printable(name): printable(value) for name, value in payload.about.items()}
    texts = {name: printable(getattr(payload, name)) for name in ("host", "thread", "what")}
    return Holder(**found, **texts, pid=payload.pid, about=about)  # type: ignore[arg-type]


def _logged(key: str, by: str, reason: str) -> dict[str, object]:
    return {"lock": key, "user": by, "host": socket.gethostname(), "reason": reason}


def _log_break(found: Broken, what: str) -> None:
    holder = found.holder
    audit.warning(
        "lock %s %s by %s: %s; its holder was %s on %s, process %d, thread %s (guid %s, token %d)",
        printable(found.key),
        what,
        found.by,
        found.reason,
        holder.what or "unknown work",
        holder.host or "an unknown host",
        holder.pid,
        holder.thread or "unknown",
        holder.guid,
        holder.token,
        extra={**_logged(found.key, found.by, found.reason), "holder": asdict(holder), "token": holder.token},
    )


def _log_asked(key: str, holder: Holder, by: str, reason: str, *, sure: bool) -> None:
    audit.warning(
        "the holder of lock %s %s asked to let go by %s: %s; it is %s on %s, process %d, thread %s (guid %s, token %d)",
        printable(key),
        "was" if sure else "may have been",
        by,
        reason,
        holder.what or "unknown work",
        holder.host or "an unknown host",
        holder.pid,
        holder.thread or "unknown",
        holder.guid,
        holder.token,
        extra={**_logged(key, by, reason), "holder": asdict(holder), "token": holder.token},
    )


def _changed_hands(key: str) -> LockChangedHands:
    return LockChangedHands(f"The lock {key!r} is not held by that one any more.", lock=key)


def _no_hold(key: str) -> LockChangedHands:
    return LockChangedHands(f"No operator's hold of {key!r} has this token any more.", lock=key)
