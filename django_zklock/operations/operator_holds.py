"""
Knows how an operator's hold gets into the queue of a lock, to its front, and to its end.

It is a node of the queue like any, and waits by the same rules; but it is no ephemeral one, so that it outlives the
process that asked. While it waits it says that it ends soon after its time to wait: if that process dies, it does not
take the lock later, when nobody knows of it. As its turn comes it is written anew, with its full time.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Final

from django_zklock import conf
from django_zklock.exceptions import LockBusy, LockTimeout
from django_zklock.locks.errand import Errand, Removal
from django_zklock.locks.protocol.operator_expiry import read_hold
from django_zklock.queue import nodes, operators, order, rules
from django_zklock.queue.nodes import Child, Kind, Payload
from django_zklock.queue.operators import OperatorHold
from django_zklock.queue.order import Queue
from django_zklock.queue.printable import printable
from django_zklock.zk.errors import NodeMissing, Outdated, ZkError
from django_zklock.zk.gateway import DirectoryState, Node
from django_zklock.zk.multi import Create, Delete
from django_zklock.zk.requests import Commit, Done, Step

audit = logging.getLogger("zklock.audit")

SLACK: Final = 10.0
"""Seconds beyond its time to wait that a hold stays in the queue when the process that asked for it has died."""


def take(errand: Errand, *, by: str, reason: str, seconds: float, wait: float) -> OperatorHold:
    """
    Bring a hold to the front of the queue within `wait` seconds, and begin its time.

    Whatever goes wrong, its node is taken out again. Raises `LockBusy`, `LockTimeout` and `ZooKeeperUnavailable`.
    """
    declared = conf.current().options_of_key(errand.key).kind
    kind = Kind.WRITE if declared in ("read", "write") else Kind.LOCK
    turn = _Turn(errand.parent, kind=kind, by=by, reason=reason, wait=wait > 0)
    turn.last(wait + SLACK if wait else seconds)
    try:
        place = _first(errand, turn, wait)
        return _granted(errand, turn, place.name, seconds if wait else None)
    except BaseException:
        errand.see_to(turn.leave, lambda value: None)
        raise


def end_in_time(errand: Errand, hold: OperatorHold) -> None:
    """Have this process end the hold, if it lives so long; on the protocol's thread."""
    removal = Removal(errand.parent, hold.path.rpartition("/")[2])

    def done(value: Any) -> None:
        if value is True:
            _log_end(errand.key, hold, "is over")

    errand.session.loop.call_later(hold.seconds, lambda: errand.see_to(removal, done))


@dataclass(frozen=True, slots=True)
class _Behind:
    """It is not the hold's turn before this one is gone."""

    child: str
    mine: str
    """The name of the own node; empty if it is not in the queue."""
    alone: bool
    """Whether nobody else is in the way."""


class _Turn:
    """The plan of one hold: into the queue, and as far as it can come now."""

    def __init__(self, parent: str, *, kind: Kind, by: str, reason: str, wait: bool) -> None:
        self.guid = operators.new_guid()
        self.wait = wait  # else enter an empty queue only
        self.data = b""  # of the own node
        self._parent = parent
        self._kind = kind  # if the queue does not tell
        self._by = by
        self._reason = reason
        self._entered = False
        self._payload = Payload(
            guid=self.guid,
            host=socket.gethostname(),
            pid=os.getpid(),
            thread=threading.current_thread().name,
            what="",
            since=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            template="",
        )

    def last(self, seconds: float) -> None:
        """Have the node say from now on that the hold ends so long after it is written."""
        self.data = operators.written(self._payload, by=self._by, reason=self._reason, seconds=seconds)

    def __call__(self, found: DirectoryState | None, session_id: int) -> Step:
        """Answer with the own node if it is first, or who is ahead; True: it was made just now, False: it is gone."""
        queue = order.ordered(() if found is None else found.children)
        mine = next((child for child in queue if child.guid == self.guid), None)
        if mine is not None:
            self._entered = True
            verdict = rules.exclusive(queue, mine.name)
            if isinstance(verdict, rules.WaitFor):
                return Done(_Behind(verdict.children[0], mine.name, verdict.alone))
            return Done(mine)
        if self._entered:
            return Done(False)
        if queue and not self.wait:
            return Done(_Behind(queue[0].name, "", len(queue) == 1))
        path = f"{self._parent}/{nodes.prefix(self.guid, _kind(queue, self._kind))}"
        return Commit((Create(path=path, data=self.data, sequential=True),), True)

    def leave(self, found: DirectoryState | None, session_id: int) -> Step:
        """Take out of the queue what is there of this hold."""
        names = () if found is None else found.children
        mine = tuple(Delete(path=f"{self._parent}/{name}") for name in names if nodes.bears(name, self.guid))
        return Commit(mine, True) if mine else Done(True)


def _kind(queue: Queue, declared: Kind) -> Kind:
    """
    Return the kind of node by which a hold keeps out everybody, in this queue and later.

    Ours keep each other out whatever they are. Apache Curator's recipes see only nodes of their own kind, so beside
    those who read and write the hold is one who writes.
    """
    if any(child.kind is Kind.LOCK and child.by_curator for child in queue):
        return Kind.LOCK
    return Kind.WRITE if any(child.kind in (Kind.READ, Kind.WRITE) for child in queue) else declared


def _first(errand: Errand, turn: _Turn, wait: float) -> Child:
    """Return the hold's node once it is first in the queue. Raises `LockBusy` and `LockTimeout`."""
    deadline = time.monotonic() + wait
    while True:
        found = errand.follow(turn)
        if isinstance(found, Child):
            return found
        if isinstance(found, _Behind):
            ahead = _await(errand, turn, found, deadline)
            if ahead is None:
                continue
            if wait:
                raise LockTimeout(
                    f"The lock {errand.key!r} was not free within {wait:g} s; it is held by {ahead}.", lock=errand.key
                )
            raise LockBusy(f"The lock {errand.key!r} is held by {ahead}.", lock=errand.key)
        if not found:
            raise _taken_out(errand)


def _await(errand: Errand, turn: _Turn, behind: _Behind, deadline: float) -> str | None:
    """Wait for the one ahead to go, and return None if it is worth while to look again; else who that is, in words."""
    node = errand.read(behind.child) if operators.is_operator(behind.child) else None
    hold = None if node is None else read_hold(errand.key, node)
    patience = deadline - time.monotonic()
    if hold is not None and behind.mine:
        lasts = hold.until.timestamp() - _stamp(errand, turn, behind.mine)
        if lasts <= 0:
            _end(errand, hold)
            return None
        patience = min(patience, lasts)
    elif hold is not None and behind.alone and not turn.wait:
        turn.wait = True  # that it is over can be proven from within the queue alone
        return None
    if patience > 0 and (errand.gone(behind.child, patience) or time.monotonic() < deadline):
        return None
    return str(hold or "somebody else")


def _stamp(errand: Errand, turn: _Turn, mine: str) -> float:
    """Return the time by the server's clock, as a write of the own node tells it."""
    answer = errand.ask(lambda gateway, done: gateway.write(f"{errand.parent}/{mine}", turn.data, -1, done))
    if isinstance(answer, Node):
        return answer.mtime
    raise _taken_out(errand) if isinstance(answer, NodeMissing) else errand.about(answer)


def _end(errand: Errand, hold: OperatorHold) -> None:
    """End a hold that is over."""
    removal = Delete(path=hold.path, version=hold.version)
    answer = errand.ask(lambda gateway, done: gateway.commit((removal,), done))
    if answer is None:
        _log_end(errand.key, hold, "is over, and was ended by the next in the queue")
    elif not isinstance(answer, (NodeMissing, Outdated)):
        raise errand.about(answer)


def _granted(errand: Errand, turn: _Turn, name: str, seconds: float | None) -> OperatorHold:
    """Return the hold that is first in the queue, with its time begun anew if it is to last so many seconds."""
    anew = seconds is not None
    if seconds is not None:
        turn.last(seconds)
    while True:
        node = errand.read(name)
        if node is not None and anew:
            found = node
            answer = errand.ask(
                lambda gateway, done, found=found: gateway.write(found.path, turn.data, found.version, done)  # type: ignore[misc]
            )
            if isinstance(answer, Outdated):
                anew = False  # by an own write whose answer was lost
                continue
            if isinstance(answer, ZkError) and not isinstance(answer, NodeMissing):
                raise errand.about(answer)
            node = answer if isinstance(answer, Node) else None
        hold = None if node is None else read_hold(errand.key, node)
        if hold is None:
            raise _taken_out(errand)
        return hold


def _log_end(key: str, hold: OperatorHold, what: str) -> None:
    audit.info("the hold of lock %s by %s %s", printable(key), hold, what, extra={"lock": key, "token": hold.token})


def _taken_out(errand: Errand) -> LockTimeout:
    return LockTimeout(f"The hold of {errand.key!r} was taken out of the queue by somebody else.", lock=errand.key)
