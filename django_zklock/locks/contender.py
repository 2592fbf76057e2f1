"""
Knows the one way into a queue, through it and out again: the contender, a state machine fed by events.

It runs on the protocol's thread and never waits. The caller, a thread, greenlet or coroutine, waits for its outcome
elsewhere (`locks.waiting`), so whatever strikes the caller cannot strike the protocol: the wait is given up, and
`abandon` makes the contender clean up after itself. What kind of lock it is, only the rule knows.
"""

from __future__ import annotations

import enum
import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from django_zklock.exceptions import UnreadableQueue, ZkLockError, ZooKeeperUnavailable
from django_zklock.locks.hold import Grant
from django_zklock.locks.registry import Registry
from django_zklock.queue import nodes, order, rules
from django_zklock.queue.nodes import Kind, Payload
from django_zklock.zk.errors import NodeMissing, OutcomeUnknown, SessionGone, ZkError
from django_zklock.zk.gateway import Node, Watch
from django_zklock.zk.loop import Timer
from django_zklock.zk.session import Session

logger = logging.getLogger("django_zklock.locks")

WATCH_SELF_AFTER = 0.25  # seconds of holding; shorter holds are spared the watch on their own node
MAX_ENTRIES = 50  # into the queue, that come to nothing one after the other, before something must be very wrong


@dataclass(frozen=True, slots=True)
class Busy:
    """Somebody else is in the queue, and this contender does not wait."""


@dataclass(frozen=True, slots=True)
class Free:
    """Nobody is in the queue, and this contender was only to look."""


Outcome: TypeAlias = Grant | Busy | Free | ZkLockError


class Phase(enum.Enum):
    """Where a contender is."""

    AWAITING = "waits for a session"
    PEEKING = "looks whether the queue is empty"
    PREPARING = "has the parent made"
    ENTERING = "has sent its create"
    UNSURE = "does not know whether its create was carried out"
    LISTING = "is in the queue, and asks for its place"
    QUEUED = "is in the queue, and watches the one ahead"
    PROVING = "is first, and has the session vouched for"
    HOLDING = "holds the lock"
    LEAVING = "leaves as soon as it knows its node"
    GONE = "is out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a contender is to queue for."""

    key: str
    parent: str  # path of the key's node
    rule: rules.Rule
    kind: Kind
    patient: bool  # False: look first, and write nothing when the queue is not empty
    payload: Callable[[str], bytes]  # from the guid of the node to its data
    only_look: bool = False  # never enter


class Contender:
    """One place in one queue, from the first request to the confirmed deletion of the node."""

    def __init__(self, session: Session, request: Request, done: Callable[[Outcome], object]) -> None:
        self.contended = False  # somebody was ahead; read by the caller
        self.placed = False  # ZooKeeper has said where this one stands; read by the caller
        self.ahead: Payload | None = None  # of the one just ahead, if it can be read; read by the caller
        self.session = self._session = session
        self._request = request
        self._done: Callable[[Outcome], object] | None = done
        self._left: Callable[[bool], object] | None = None
        self._registry: Registry | None = None
        self._phase = Phase.AWAITING
        self._turn = 0  # answers to an earlier turn are not for this one
        self._entries = 0  # since it last had a place in the queue
        self._guid = ""
        self._node: Node | None = None
        self._grant: Grant | None = None
        self._watch: Watch | None = None
        self._timer: Timer | None = None

    def __repr__(self) -> str:
        return f"<contender for {self._request.key!r}: {self._phase.value}>"

    # --- from any thread ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin."""
        self._session.post(self._begin)

    def abandon(self, left: Callable[[bool], object] | None = None) -> None:
        """
        Leave, from wherever it is; nothing of it stays in ZooKeeper.

        `left` is called once on the protocol's thread: True, the node is gone; False, it will take a while longer.
        """
        self._session.post(self._leave, left)

    # --- into the queue -----------------------------------------------------------------------------------------

    @property
    def registry(self) -> Registry:
        """The registry of the session."""
        if self._registry is None:
            self._registry = self._session.attached(Registry)
        return self._registry

    def _begin(self) -> None:
        if self._phase is Phase.GONE:
            return
        self.registry.admit(self)
        if self._session.connected:
            self._approach()
        else:
            self._await_session()

    def _await_session(self) -> None:
        self._phase = Phase.AWAITING
        if not self.placed and self._timer is None:
            self._timer = self._session.loop.call_later(self._session.options.connect_timeout, self._on_no_session)

    def _on_no_session(self) -> None:
        self._timer = None
        if self._phase is Phase.AWAITING and not self.placed:
            self._fail(ZooKeeperUnavailable(f"ZooKeeper does not answer: {self._session.last_problem}."))

    def _approach(self) -> None:
        self._cancel_timer()
        if self._request.patient:
            self._enter()
        else:
            self._phase = Phase.PEEKING
            self.registry.gateway.children(self._request.parent, self._in_turn(self._on_peeked))

    def _on_peeked(self, answer: Any) -> None:
        if isinstance(answer, NodeMissing):
            answer = []
        if isinstance(answer, ZkError):
            self._falter(answer, Phase.AWAITING)
        elif self._would_wait(answer):
            self.placed = self.contended = True
            self._conclude(Busy())
            self._leave(None)
        elif self._request.only_look:
            self._conclude(Free())
            self._leave(None)
        else:
            self._enter()

    def _would_wait(self, names: list[str]) -> bool:
        queue = self._ordered(names)
        if queue is None:
            return False  # failed, and concluded
        last = queue[-1].sequence if queue else -1
        me = nodes.Child("me", self._request.kind, "", last + 1)
        return not isinstance(self._request.rule((*queue, me), me.name), rules.Granted)

    def _enter(self) -> None:
        self._turn += 1
        self._entries += 1
        if self._phase is Phase.GONE:
            return
        if self._entries > MAX_ENTRIES:
            self._fail(ZkLockError(f"No way into the queue of {self._request.key!r} after {MAX_ENTRIES} tries."))
            return
        # A fresh guid for each create: a node that bears it was made in this session, by this create.
        self._guid = str(uuid.uuid4())
        self._node = None
        self._phase = Phase.ENTERING
        self.registry.guids.add(self._guid)
        self.registry.gateway.enter(
            self._request.parent,
            nodes.prefix(self._guid, self._request.kind),
            self._request.payload(self._guid),
            self._in_turn(self._on_created, also_when_leaving=True),
            self._in_turn(self._on_listed),
        )

    def _on_created(self, answer: Any) -> None:
        leaving = self._phase is Phase.LEAVING
        if isinstance(answer, Node):
            self._node = answer
            if leaving:
                self._depart()
            else:
                self.registry.heartbeat.keep(answer.path, self._on_own_node_gone)
        elif isinstance(answer, OutcomeUnknown):
            if leaving:
                self._depart()
            else:
                self._phase = Phase.UNSURE
        elif not isinstance(answer, SessionGone):
            # Refused, so there is no node. (When the session is gone, its observers are told, and that is told here.)
            self.registry.guids.discard(self._guid)
            if leaving:
                self._out(gone=True)
            elif isinstance(answer, NodeMissing):
                self._prepare()
            else:
                self._fail(answer)

    def _prepare(self) -> None:
        self._turn += 1
        self._phase = Phase.PREPARING
        self.registry.gateway.make_parents(self._request.parent, self._in_turn(self._on_prepared))

    def _on_prepared(self, answer: Any) -> None:
        if isinstance(answer, ZkError):
            self._falter(answer, Phase.AWAITING)
        else:
            self._enter()  # and once more from the start if the server has reaped the empty parent in between

    def _recover(self) -> None:
        """Find out what became of a create whose answer was lost."""
        self.registry.gateway.children_after_barrier(self._request.parent, self._in_turn(self._on_recovered))

    def _on_recovered(self, answer: Any) -> None:
        if isinstance(answer, NodeMissing):
            answer = []
        if isinstance(answer, ZkError):
            self._falter(answer, Phase.UNSURE)
            return
        found = [name for name in answer if nodes.bears(name, self._guid)]
        if not found:
            self.registry.guids.discard(self._guid)
            self._enter()
            return
        self.registry.gateway.read(f"{self._request.parent}/{found[0]}", self._in_turn(self._on_found))

    def _on_found(self, answer: Any) -> None:
        if isinstance(answer, Node) and answer.owner == self._session.session_id:
            self._node = answer
            self.registry.heartbeat.keep(answer.path, self._on_own_node_gone)
            self._list()
        elif isinstance(answer, (Node, NodeMissing)):
            self.registry.guids.discard(self._guid)
            self._enter()
        else:
            self._falter(answer, Phase.UNSURE)

    # --- through the queue --------------------------------------------------------------------------------------

    def _list(self, *, barrier: bool = False) -> None:
        self._cancel_watch()
        self._phase = Phase.LISTING
        gateway = self.registry.gateway
        ask = gateway.children_after_barrier if barrier else gateway.children
        ask(self._request.parent, self._in_turn(self._on_listed))

    def _on_listed(self, answer: Any) -> None:
        if self._node is None or self._phase not in (Phase.ENTERING, Phase.LISTING):
            return  # the create, answered just before, has decided otherwise
        if isinstance(answer, NodeMissing):
            self._on_own_node_gone()
        elif isinstance(answer, ZkError):
            self._falter(answer, Phase.LISTING)
        else:
            self._judge(answer)

    def _judge(self, names: list[str]) -> None:
        queue = self._ordered(names)
        if queue is None or self._node is None:
            return
        verdict = self._request.rule(queue, self._node.name)
        if isinstance(verdict, rules.Absent):
            self._on_own_node_gone()
            return
        self.placed = True
        self._entries = 0
        if isinstance(verdict, rules.Granted):
            self._first()
            return
        self.contended = True
        if self._request.patient:
            self._await_turn(verdict)
        else:
            self._conclude(Busy())
            self._leave(None)

    def _await_turn(self, verdict: rules.WaitFor) -> None:
        self._phase = Phase.QUEUED
        self._cancel_watch()

        def on_read(answer: Any) -> None:
            if isinstance(answer, NodeMissing):
                self._advance(verdict)
            elif isinstance(answer, Node):
                self.ahead = Payload.decode(answer.data)
            else:
                self._falter(answer, Phase.QUEUED)

        def on_event(deleted: bool) -> None:
            if deleted:
                self._advance(verdict)
            else:
                self._await_turn(verdict)  # only its data changed

        self._watch = self.registry.gateway.read(
            f"{self._request.parent}/{verdict.child}", self._in_turn(on_read), self._in_turn(on_event)
        )

    def _advance(self, verdict: rules.WaitFor) -> None:
        """The one ahead is gone."""
        if self._phase is not Phase.QUEUED:
            return
        if verdict.alone:
            self._first()
        else:
            self._list()  # it may have given up, with others still ahead

    def _first(self) -> None:
        """Take the lock, if a quorum has vouched for the session lately; else have it vouched for first."""
        self._cancel_watch()
        if self._session.suspect or not self._session.lease_valid:
            self._phase = Phase.PROVING
            self._session.doubt("the lease ran out in the queue")
            self.registry.heartbeat.beat()
            return
        node = self._node
        if node is None:
            return
        self._phase = Phase.HOLDING
        self._grant = Grant(self._session, self._request.key, node.path, node.czxid)
        self._conclude(self._grant)
        self._timer = self._session.loop.call_later(WATCH_SELF_AFTER, self._watch_self)

    def _watch_self(self) -> None:
        """Notice when the own node is deleted by somebody else."""
        self._timer = None
        if self._phase is not Phase.HOLDING or self._node is None:
            return

        def on_read(answer: Any) -> None:
            if isinstance(answer, NodeMissing):
                self._on_own_node_gone()

        def on_event(deleted: bool) -> None:
            if deleted:
                self._on_own_node_gone()
            else:
                self._watch_self()

        self._cancel_watch()
        self._watch = self.registry.gateway.read(self._node.path, self._in_turn(on_read), self._in_turn(on_event))

    def _on_own_node_gone(self) -> None:
        if self._phase in (Phase.LEAVING, Phase.GONE) or self._node is None:
            return
        self._forget_node()
        if self._grant is not None:
            self._grant.lose("its node was deleted by somebody else")
        else:
            self._enter()

    # --- out of the queue ---------------------------------------------------------------------------------------

    def _leave(self, left: Callable[[bool], object] | None) -> None:
        if self._phase in (Phase.LEAVING, Phase.GONE):
            if left is not None:
                left(self._phase is Phase.GONE)
            return
        self._done = None
        self._left = left
        before, self._phase = self._phase, Phase.LEAVING
        self._cancel_timer()
        self._cancel_watch()
        if before is Phase.ENTERING and self._node is None:
            return  # until the create is answered
        if self._node is not None or before is Phase.UNSURE:
            self._depart()
        else:
            self._out(gone=True)

    def _depart(self) -> None:
        """Hand the node to the registry, which will see to it that it goes."""
        path = self._node.path if self._node is not None else None
        if path is not None:
            self.registry.heartbeat.drop(path)
        left, self._left = self._left, None
        self._out(gone=False)
        self.registry.depart(self._request.parent, self._guid, path, left)

    def _out(self, *, gone: bool) -> None:
        self._phase = Phase.GONE
        self._turn += 1
        if self._registry is not None:
            self._registry.dismiss(self)
        left, self._left = self._left, None
        if left is not None:
            left(gone)

    def _fail(self, error: ZkLockError) -> None:
        if not error.lock:
            error.lock = self._request.key
        self._conclude(error)
        self._leave(None)

    def _conclude(self, outcome: Outcome) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(outcome)

    # --- the session's news -------------------------------------------------------------------------------------

    def on_connected(self, *, resumed: bool) -> None:
        """Take up what the break interrupted."""
        if self._phase is Phase.AWAITING:
            self._approach()
        elif self._phase is Phase.UNSURE:
            self._recover()
        elif self._phase in (Phase.LISTING, Phase.QUEUED):
            self._turn += 1
            self._list(barrier=True)  # the watch ended with the connection
        elif self._phase is Phase.HOLDING:
            self._turn += 1
            self._watch_self()

    def on_session_lost(self) -> None:
        """The node is gone with its session; queue again, unless it was held."""
        self._cancel_watch()
        self._forget_node()
        if self._phase is Phase.LEAVING:
            self._out(gone=True)
        elif self._grant is not None:
            self._grant.lose("the ZooKeeper session is over")
        elif self._phase is not Phase.GONE:
            self._turn += 1
            self._await_session()

    def on_closed(self) -> None:
        """Who waits for ever would wait in vain."""
        if self._grant is None:
            self._fail(ZooKeeperUnavailable("The ZooKeeper session of this process was closed."))

    def on_suspect(self, reason: str) -> None:
        """Nobody vouches for the session at the moment."""
        if self._grant is not None:
            self._grant.suspect(reason)

    def on_vouched(self) -> None:
        """A quorum has vouched for it."""
        if self._grant is not None:
            self._grant.vouched()
        elif self._phase is Phase.PROVING:
            self._first()

    def on_lease_over(self) -> None:
        """The lock may be somebody else's by now."""
        if self._grant is not None:
            self._grant.lose("the lease is over: no quorum has vouched for the session in time")

    # --- small parts --------------------------------------------------------------------------------------------

    def _in_turn(self, call: Callable[[Any], None], *, also_when_leaving: bool = False) -> Callable[[Any], None]:
        """Pass an answer on only if it still concerns the present turn."""
        turn = self._turn

        def guarded(answer: Any) -> None:
            if turn != self._turn or (self._phase is Phase.LEAVING and not also_when_leaving):
                return
            try:
                call(answer)
            except Exception as error:
                logger.exception(
                    "the protocol failed for lock %s", self._request.key, extra={"lock": self._request.key}
                )
                self._fail(ZkLockError(f"The lock protocol failed: {error!r}."))

        return guarded

    def _falter(self, error: ZkError, phase: Phase) -> None:
        """Go on from `phase` once there is a connection again; any other error is the end."""
        if isinstance(error, (OutcomeUnknown, SessionGone)):
            if phase is Phase.AWAITING:
                self._await_session()
            else:
                self._phase = phase
        else:
            self._fail(error)

    def _ordered(self, names: list[str]) -> tuple[nodes.Child, ...] | None:
        try:
            return order.ordered(names)
        except UnreadableQueue as error:
            self._fail(error)
            return None

    def _forget_node(self) -> None:
        if self._node is not None:
            self.registry.heartbeat.drop(self._node.path)
        self.registry.guids.discard(self._guid)
        self._node = None

    def _cancel_watch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()

    def _cancel_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
