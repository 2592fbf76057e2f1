"""
Hand a lock over to another process: the transactions of its giver and of its adopter.

The giver's transaction puts a hold in the place of the giver's znode. The adopter's transaction puts a znode of the
adopter in the place of the hold. So the position in the queue always has one znode. Each transaction writes the old
znode before it deletes it. A watch is sent once, so the waiter behind gets "changed", and lists the queue again. It
would take "deleted" for its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from django_zklock.core.errors import ZkLockError
from django_zklock.core.protocol.contender import Contender, Outcome, Phase
from django_zklock.core.protocol.errors import LockNotAdopted
from django_zklock.core.protocol.grant import Grant
from django_zklock.core.protocol.operator_holds import HoldCheck, Replacement
from django_zklock.core.protocol.spec import QueueSpec
from django_zklock.core.protocol.story import Story, drive
from django_zklock.core.queue.escaping import SEQUENCE_DIGITS
from django_zklock.core.queue.hand_over import HandOver
from django_zklock.core.queue.nodes import Payload
from django_zklock.core.queue.operator_hold import HANDED_OVER, OperatorHold
from django_zklock.core.zk.errors import NodeMissing, ZkError
from django_zklock.core.zk.gateway import Gateway, NamesReply, Node
from django_zklock.core.zk.multi import Create, Delete, Operation, SetData
from django_zklock.core.zk.session import Session


def _replace(path: str, data: bytes, create: Create) -> tuple[Operation, ...]:
    return SetData(path=path, data=data, version=-1), Delete(path=path), create


class GivenHold(Replacement):
    """
    The hold that replaces the znode of a giver, until the lock is adopted or the time is over.

    Once `tried`, `done` gets the token of the adopter, or 0 if the hold is not there, or the error with which ZooKeeper
    refuses to tell; on the protocol's thread. The
    token is the czxid of the hold, so it is higher than the giver's. But contenders that came before the hold would
    get a lower one. If there are some, the adopter has the token of the giver.
    """

    def __init__(self, spec: QueueSpec, hand_over: HandOver, done: Callable[[int | ZkError], object]) -> None:
        super().__init__(spec, None, hand_over.guid, hand_over.name)
        self._seconds = hand_over.seconds
        self._sequence = hand_over.sequence
        self._token = 0
        self._done = done
        self._is_withdrawn = False
        self._is_listed = False  # so the token is known; the later checks only see whether the time is over

    def replace(self, grant: Grant, own: Node) -> GivenHold:
        """Replace this znode of the giver, which is about to delete it."""
        self._own, self._token = own, grant.token
        return self

    def changes(self) -> tuple[Operation, ...]:
        payload = None if self._own is None else Payload.decode(self._own.data)
        if self._own is None or payload is None or self._is_withdrawn:
            return ()
        reason = f"handed over on {payload.host}, process {payload.pid}; waiting for its adopter"
        create = self._create(payload, by=payload.what, reason=reason, mark=HANDED_OVER)
        return _replace(self._own.path, self._own.data, create)

    def end_in_time(self, session: Session) -> None:
        """Look whether the hold is there, as the reply may have been lost. Delete it when its time is over."""
        if self.tried:
            self._check(session)

    def withdraw(self, session: Session) -> None:
        """Leave no hold, because nobody has got the text. If that fails, the hold ends in time."""
        self._is_withdrawn = True
        if self.tried:
            self._check(session)

    def _on_checked(self, session: Session, hold: OperatorHold | None, refusal: ZkError | None) -> None:
        if hold is None:
            self._done(refusal or 0)
        elif self._is_withdrawn:
            session.gateway.delete(self._path)
        elif not self._is_listed:
            self._is_listed = True
            session.gateway.children(self._spec.parent, partial(self._on_listed, hold))

    def _on_listed(self, hold: OperatorHold, reply: NamesReply) -> None:
        names = [] if isinstance(reply, ZkError) else reply
        is_last = self._name in names and all(name[-SEQUENCE_DIGITS:] <= self._sequence for name in names)
        self._done(hold.token if is_last else self._token)


class Adopter(Contender):
    """A contender that takes the place of the hold by which the lock was handed over, instead of queueing."""

    __slots__ = ()

    @property
    def _hand_over(self) -> HandOver:
        assert self.spec.adopts is not None
        return self.spec.adopts

    def _join_queue(self) -> None:
        self._create()  # at once: those in the local queue may wait for this hand-over

    def _create(self) -> None:
        self._phase = Phase.PREPARING
        self._forget_replies()
        drive(self._adopt(), self._on_adopted, self.guard)

    def _adopt(self) -> Story[None]:
        gateway, parent, hand_over = self.session.gateway, self.spec.parent, self._hand_over
        yield from find_hold(gateway, self.spec, hand_over)
        prefix, data = self._begin_create()
        path = f"{parent}/{prefix}{hand_over.sequence}"
        self._registry.add(self.guid, path)
        create = Create(path=path, data=data, ephemeral=True)
        yield partial(gateway.commit, _replace(f"{parent}/{hand_over.name}", b"", create))

    def _on_adopted(self, reply: ZkLockError | None) -> None:
        was_sent = self._phase is not Phase.PREPARING
        if reply is None:
            self._search()  # the reply does not describe the znode
        elif was_sent and isinstance(reply, ZkError):
            self._on_created(reply)
        else:
            self._on_error(reply)

    def _payload(self) -> Payload:
        return replace(super()._payload(), adopts=self._hand_over.guid, token=str(self._hand_over.token))

    def _conclude(self, outcome: Outcome) -> None:
        if isinstance(outcome, Grant):
            outcome.token = min(outcome.token, self._hand_over.token)
            outcome.adopted = True
        super()._conclude(outcome)


def find_hold(gateway: Gateway, spec: QueueSpec, hand_over: HandOver) -> Story[None]:
    """Find the hold of a hand-over. Raises the error that says why there is nothing to adopt."""
    while True:
        checked = yield from HoldCheck(gateway, spec.key, spec.parent).run((hand_over.name,))
        hold = checked.remaining.get(hand_over.name)
        if hold is not None and hold.handed_over:
            return
        # If it was not there, the server may be behind that of the giver. So the queue is listed after a sync.
        try:
            names = yield partial(gateway.children_after_sync, spec.parent)
        except NodeMissing:
            names = []
        if hand_over.name not in names or hand_over.name not in checked.ended:
            why = yield from _why_gone(gateway, spec, hand_over, names)
            raise LockNotAdopted(f"The lock {spec.key!r} cannot be adopted: {why}.", lock=spec.key)


def _why_gone(gateway: Gateway, spec: QueueSpec, hand_over: HandOver, names: Sequence[str]) -> Story[str]:
    """Return why the hold of a hand-over is gone. `names` are those in the queue."""
    successors = [name for name in names if name.endswith(hand_over.sequence)]
    try:
        node = yield partial(gateway.read, f"{spec.parent}/{[*successors, hand_over.name][0]}")
        holder = Payload.decode(node.data)
        if holder is not None and holder.adopts == hand_over.guid:
            return f"it was adopted by {holder.what!r} on {holder.host}, process {holder.pid}"
    except NodeMissing:
        pass
    return f"nobody adopted it within {hand_over.seconds:g} s, a person has ended it, or its adopter has ended"
