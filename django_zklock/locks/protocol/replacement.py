"""
Replace the znode of a holder by an operator hold, which lasts without a session.

It happens on release, for a minimum hold that is not over yet, and for a person who holds a lock for a time.

One transaction deletes the holder's znode and creates the other one with the same sequence number, so it has the same
place in the queue. No waiter takes that delete for its turn: the guid of such a holder bears a mark, so its successor
lists the queue again. If the process crashes before the transaction, the lock stays held until the session timeout is
over, and is free then. Runs on the protocol's thread.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from django_zklock import clock
from django_zklock.locks.protocol.grant import Grant
from django_zklock.locks.protocol.operator_holds import end_in_time
from django_zklock.queue import guids, operator_hold
from django_zklock.queue.escaping import SEQUENCE_DIGITS
from django_zklock.queue.guids import Mark
from django_zklock.queue.nodes import Kind, Payload, prefix
from django_zklock.zk.gateway import Node
from django_zklock.zk.multi import Create, Delete, Operation
from django_zklock.zk.session import Session

if TYPE_CHECKING:
    from django_zklock.locks.protocol.spec import Caller, QueueSpec


class Replacement:
    """The operator hold that takes the place of one holder's znode."""

    def __init__(self, spec: QueueSpec, caller: Caller, kind: Kind, own: Node, ends_at: float) -> None:
        self._spec = spec
        self._label = caller.operator
        self._own = own
        self._ends_at = ends_at  # on clock.now()
        self._seconds = 0.0
        self._tried = False
        self._guid = guids.new(Mark.OPERATOR)
        name = f"{prefix(self._guid, kind)}{own.name[-SEQUENCE_DIGITS:]}"
        self._path = f"{spec.parent}/{name}"

    def changes(self) -> tuple[Operation, ...]:
        """Return the transaction that replaces the znode; nothing if the time is over, so the znode can just go."""
        payload = Payload.decode(self._own.data)
        least, label = self._spec.min_hold, self._label
        # A person gets the full time, from this write on.
        self._seconds = least if label is not None else self._ends_at - clock.now()
        if self._seconds <= 0 or payload is None:
            return ()
        self._tried = True
        data = operator_hold.hold_data(
            replace(payload, guid=self._guid, owner=0, max_hold=0, session_timeout=0),
            by=label.by if label is not None else payload.what or "python",
            reason=label.reason if label is not None else f"held for at least {least:g} s",
            seconds=self._seconds,
            minimum=label is None,
        )
        return (Delete(path=self._own.path), Create(path=self._path, data=data))

    def end_in_time(self, session: Session) -> None:
        """Have this process end the hold, if it was made."""
        if self._tried:
            end_in_time(session, self._spec.key, self._path, self._seconds)


def replacement(spec: QueueSpec, caller: Caller, grant: Grant | None, node: Node | None) -> Replacement | None:
    """
    Return what is to replace the znode when this grant is released, if anything.

    Nothing replaces a lock that was lost, or that was released before its work began: the caller gave up at that
    moment, or did not get the other locks that it needs.
    """
    if grant is None or node is None:
        return None
    if not grant.begun or grant.why_invalid() is not None:
        return None
    ends_at = grant.since + spec.min_hold
    return Replacement(spec, caller, grant.kind, node, ends_at) if clock.now() < ends_at else None
