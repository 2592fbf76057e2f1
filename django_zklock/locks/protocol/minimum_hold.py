"""
Knows what stays in the queue when a lock is let go of before the time that it is to be held at least.

The own node goes with the session. So it is replaced, in one transaction, by one that lasts, in the same place of the
queue and in the form of an operator's hold, which the next in the queue ends once it is over by the server's clock.
Nobody is granted the lock in between: a contender that may do so bears a mark, behind which the end of a node is never
taken for one's turn.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django_zklock.locks.errand import Removal
from django_zklock.locks.protocol.grant import Grant
from django_zklock.queue import guids, operators
from django_zklock.queue.guids import Mark
from django_zklock.queue.nodes import Kind, Payload, prefix
from django_zklock.zk.gateway import Gateway, Node
from django_zklock.zk.multi import Create, Delete, Operation
from django_zklock.zk.requests import OptimisticUpdate
from django_zklock.zk.session import Session

if TYPE_CHECKING:
    from django_zklock.locks.protocol.node import Request

DIGITS = 10  # of a sequence number


class Rest:
    """The rest of the time that a lock is to be held; on the protocol's thread."""

    def __init__(self, node: Node, kind: Kind, seconds: float, ends_at: float) -> None:
        self._seconds = seconds  # in all
        self._ends_at = ends_at  # on time.monotonic()
        self._left = 0.0
        self._tried = False
        self._own = node
        self._parent, _, name = node.path.rpartition("/")
        self._guid = guids.new(Mark.OPERATOR)
        self._name = f"{prefix(self._guid, kind)}{name[-DIGITS:]}"  # the same number, so the same place in the queue

    def changes(self) -> tuple[Operation, ...]:
        """Return what lets go of the lock now, and keeps it till then; nothing if the time is over."""
        self._left = min(self._ends_at - time.monotonic(), operators.LONGEST)
        payload = Payload.decode(self._own.data)
        if self._left <= 0 or payload is None:
            return ()
        data = operators.written(
            replace(payload, guid=self._guid, owner=0),
            by=payload.what or "python",  # a hold of nobody would be nobody's to end
            reason=f"held for at least {self._seconds:g} s",
            seconds=self._left,
            rests=True,
        )
        self._tried = True
        return (Delete(path=self._own.path), Create(path=f"{self._parent}/{self._name}", data=data))

    def end_in_time(self, session: Session) -> None:
        """Have this process end it, if it may be there, and it lives so long; who wants the lock does so otherwise."""
        if not self._tried:
            return
        session.loop.call_later(
            max(0.0, self._left),
            lambda: OptimisticUpdate(session, self._parent, Removal(self._parent, self._name), done).start(),
        )

        def done(value: Any) -> None:
            if value is True:
                session.attached(Gateway).delete_if_empty(self._parent)


def rest_of(request: Request, grant: Grant | None, node: Node | None) -> Rest | None:
    """
    Return what is to stay when this grant is let go of, if anything.

    That is nothing of a lock that was lost, or that was given back before any work was begun under it: by one who gave
    up at that moment, or had to have others with it.
    """
    if not request.hold_at_least or grant is None or node is None:
        return None
    if not grant.begun or grant.why_invalid() is not None:
        return None
    ends_at = grant.since + request.hold_at_least
    return Rest(node, grant.kind, request.hold_at_least, ends_at) if time.monotonic() < ends_at else None
