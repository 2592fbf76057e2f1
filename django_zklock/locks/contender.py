"""
Knows the one way into a queue, through it and out again: the contender, a state machine fed by events.

It runs on the protocol's thread and never waits. The caller, a thread, greenlet or coroutine, waits for its outcome
elsewhere (`locks.waiting`), so whatever strikes the caller cannot strike the protocol: the wait is given up, and
`abandon` makes the contender clean up after itself. What kind of lock it is, only the rule knows; how its node comes
and goes, its place.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from django_zklock.exceptions import UnreadableQueue, ZkLockError, ZooKeeperUnavailable
from django_zklock.locks import breaking, faultpoints, revoking
from django_zklock.locks.grant import Grant
from django_zklock.locks.operators import Bailiff
from django_zklock.locks.phase import Phase
from django_zklock.locks.place import Place, Request
from django_zklock.locks.predecessors import Predecessors
from django_zklock.locks.registry import Member, Registry
from django_zklock.locks.resting import rest_of
from django_zklock.locks.turns import Turns
from django_zklock.queue import nodes, order, rules
from django_zklock.queue.nodes import Payload
from django_zklock.queue.operators import OperatorHold, is_operator
from django_zklock.zk.errors import NodeMissing, OutcomeUnknown, SessionGone, ZkError
from django_zklock.zk.gateway import Node
from django_zklock.zk.loop import Timer
from django_zklock.zk.session import Session

ME = "me"  # the name of who only looks, among those of nodes
WATCH_SELF_AFTER = 0.25  # seconds of holding; shorter holds are spared the watch on their own node


@dataclass(frozen=True, slots=True)
class Busy:
    """Somebody else is in the queue, and this contender does not wait."""


@dataclass(frozen=True, slots=True)
class Free:
    """Nobody is in the queue, and this contender was only to look."""


Outcome: TypeAlias = Grant | Busy | Free | ZkLockError


class Contender(Member):
    """One contender for one lock, from the first request until it has left the queue."""

    def __init__(self, session: Session, request: Request, done: Callable[[Outcome], object]) -> None:
        self.session = session
        self.placed = False  # ZooKeeper has said where this one stands; read by the caller
        self.ahead: Payload | None = None  # of the one just ahead, if it can be read; read by the caller
        self.operator: OperatorHold | None = None  # that is in the way, as far as is known; read by the caller
        self.on_queued: Callable[[], object] | None = None  # called once if there is somebody ahead
        self.request = request
        self._done: Callable[[Outcome], object] | None = done
        self._left: list[Callable[[bool], object]] = []
        self._phase = Phase.AWAITING
        self._turns = Turns(request.key, self.on_failure, request.about)
        self._grant: Grant | None = None
        self._timer: Timer | None = None
        # Made by `_begin`, on the protocol's thread.
        self._registry: Registry
        self._bailiff: Bailiff
        self._predecessors: Predecessors
        self._place: Place | None = None

    def __repr__(self) -> str:
        return f"<contender for {self.request.key!r}: {self._phase.value}>"

    # --- from any thread ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin."""
        self.session.post(self._turns.run, self._begin)

    def abandon(self, left: Callable[[bool], object] | None = None) -> None:
        """
        Leave, from wherever it is; nothing of it stays in ZooKeeper.

        `left` is called once on the protocol's thread: True, the node is gone; False, it will take a while longer.
        """
        self.session.post(self._leave, left)

    def share(self, *, asked: bool = False) -> None:
        """
        Have the holder, who writes, be one who reads from now on; no other writer comes in between.

        Doing it again changes nothing. Nobody is let in before the time that it is to be held at least, unless the
        holder has `asked` for that.
        """
        grant = self._grant
        left = 0.0 if asked or grant is None else grant.since + self.request.hold_at_least - time.monotonic()
        if left > 0:
            self.session.post(self._share_later, left)
            return
        self.session.post(self._share)
        if grant is not None:
            grant.kind = nodes.Kind.READ  # last, so that who is struck before can do it again

    # --- into the queue -----------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._phase is Phase.GONE:
            return
        if self.session.closing:
            self.on_closed()  # the others have been told, and nobody will tell this one
            return
        self._registry = self.session.attached(Registry)
        self._place = Place(self._registry, self.request, self)
        gateway = self._registry.gateway
        self._bailiff = Bailiff(gateway, self.request, self._turns, self)
        self._predecessors = Predecessors(gateway, self.request.parent, self._turns, self._bailiff, self)
        self._registry.admit(self)
        if self.session.connected:
            self._approach()
        else:
            self._await_session()

    def _await_session(self) -> None:
        self._phase = Phase.AWAITING
        if not self.placed and self._timer is None:
            self._timer = self.session.loop.call_later(self.session.options.connect_timeout, self._on_no_session)

    def _on_no_session(self) -> None:
        self._timer = None
        if self._phase is Phase.AWAITING and not self.placed:
            self._fail(ZooKeeperUnavailable(self.session.explain(self.session.options.connect_timeout)))

    def _approach(self) -> None:
        self._cancel_timer()
        if self.request.patient:
            self._enter()
        else:
            self._phase = Phase.PEEKING
            self._registry.gateway.children(self.request.parent, self._turns.pass_on(self._on_peeked))

    def _on_peeked(self, answer: Any) -> None:
        if isinstance(answer, NodeMissing):
            answer = []
        if isinstance(answer, (OutcomeUnknown, SessionGone)):
            self._await_session()
            return
        queue = self._ordered(answer)
        if queue is None:
            return
        queue = queue.with_newcomer(ME, self.request.kind)
        if isinstance(self.request.rule(queue, ME), rules.Granted):
            self._go_on()
        else:
            names = (each.name for each in queue if each.name != ME and not is_operator(each.name))
            self._bailiff.ask(queue, ME, None, partial(self._on_way, next(names, "")))

    def _on_way(self, first: str, there_is: bool | None) -> None:
        if there_is is None:
            self._await_session()
        elif there_is:
            self._go_on()
        elif first and self.operator is None and not self.request.only_look:
            path = f"{self.request.parent}/{first}"
            self._registry.gateway.read(path, self._turns.pass_on(self._on_holder_read))
        else:
            self._give_way()

    def _on_holder_read(self, answer: Any) -> None:
        if isinstance(answer, Node):
            self.ahead = Payload.decode(answer.data)
        self._give_way()

    def _go_on(self) -> None:
        if self.request.only_look:
            self._conclude(Free())
            self._leave(None)
        else:
            self._enter()

    def _give_way(self) -> None:
        """Leave, rather than wait."""
        self.placed = True
        self._conclude(Busy())
        self._leave(None)

    def _enter(self) -> None:
        self._phase = Phase.ENTERING
        if self._place is not None:
            self._place.take()

    def on_entered(self, listed: Any) -> None:
        """Learn from the place that the node is in the queue."""
        if listed is None:
            self._list()
        else:
            self._phase = Phase.LISTING
            self._on_listed(listed)

    def on_refused(self, error: ZkLockError) -> None:
        """Learn from the place that there is no way in."""
        self._fail(error)

    # --- through the queue --------------------------------------------------------------------------------------

    def _list(self, *, barrier: bool = False) -> None:
        self._phase = Phase.LISTING
        gateway = self._registry.gateway
        ask = gateway.children_after_barrier if barrier else gateway.children
        ask(self.request.parent, self._turns.pass_on(self._on_listed))

    def _on_listed(self, answer: Any) -> None:
        if isinstance(answer, NodeMissing):
            self._on_absent()
        elif not isinstance(answer, (OutcomeUnknown, SessionGone)):  # else to be listed again when connected
            self._judge(answer)

    def _judge(self, names: Any) -> None:
        queue = self._ordered(names)
        if queue is None or self._place is None or self._place.node is None:
            return
        faultpoints.reach("after_list")
        verdict = self.request.rule(queue, self._place.node.name)
        if isinstance(verdict, rules.Absent):
            self._on_absent()
            return
        self.placed = True
        self._place.confirmed()
        if queue.passed:
            self._registry.gateway.delete(f"{self.request.parent}/{queue.passed}", lambda answer: None)
        if isinstance(verdict, rules.Granted):
            self._first()
        elif self.request.patient:
            self._await_turn(verdict)
            self._bailiff.glance(queue, verdict, self._place.node)
        else:
            self._bailiff.ask(queue, self._place.node.name, self._place.node, self._on_ahead_seen)

    def _on_ahead_seen(self, gone: bool | None) -> None:
        if gone:
            self._list()
        elif gone is False:  # else to be listed again when connected
            self._give_way()

    def _on_absent(self) -> None:
        if self._place is not None:
            self._place.forget()
            self.on_node_gone()

    def _await_turn(self, verdict: rules.WaitFor) -> None:
        self._phase = Phase.QUEUED
        self._predecessors.wait_for(verdict)

    def on_ahead_read(self, node: Node) -> None:
        """Learn who is ahead."""
        self.ahead = Payload.decode(node.data)
        self._bailiff.heed(node, self._place.node if self._place is not None else None)
        told, self.on_queued = self.on_queued, None
        if told is not None:
            told()

    def on_ahead_gone(self, *, alone: bool) -> None:
        """Learn that one of those ahead is gone."""
        if self._phase is not Phase.QUEUED:
            return
        faultpoints.reach("on_wake")
        if alone:
            self._first()
        else:
            self._list()  # it may have given up, with others still ahead

    def on_ahead_changed(self) -> None:
        """Learn that the queue may not mean what it did."""
        if self._phase is Phase.QUEUED:
            self._list()

    def _first(self) -> None:
        """Take the lock, if a quorum has vouched for the session lately; else have it vouched for first."""
        self._predecessors.forget()
        if self._place is None or self._place.node is None:
            return
        if self.session.suspect or not self.session.lease.valid:
            self._phase = Phase.PROVING
            self.session.doubt("the lease ran out in the queue")
            self._registry.heartbeat.beat()
            return
        faultpoints.reach("before_grant")
        self._phase = Phase.HOLDING
        self._grant = Grant(
            self.session, self.request.key, self._place.node.path, self._place.node.czxid, self.request.kind
        )
        self._grant.about, self._grant.template = self.request.about, self.request.template
        self._conclude(self._grant)
        self._timer = self.session.loop.call_later(WATCH_SELF_AFTER, self._place.watch)

    def on_node_gone(self) -> None:
        """Learn from the place that somebody else has deleted the node."""
        if self._grant is not None:
            breaking.lose(self._registry.gateway, self._grant)
        else:
            self._turns.next()
            self._predecessors.forget()
            self._enter()

    def on_own_read(self, node: Node) -> None:
        """Learn from the place what the node says now."""
        if self._grant is not None and self._place is not None and self._place.node is not None:
            revoking.heed(self._registry.gateway, self._grant, node, self._place.node.data)

    def _share_later(self, seconds: float) -> None:
        if self._phase is Phase.HOLDING:
            self.session.loop.call_later(seconds, lambda: self._turns.run(self._share_in_time))

    def _share_in_time(self) -> None:
        if self._phase is Phase.HOLDING:
            self.share()

    def _share(self) -> None:
        if self._phase is Phase.HOLDING and self._place is not None:
            self._place.share()

    # --- out of the queue ---------------------------------------------------------------------------------------

    def _leave(self, left: Callable[[bool], object] | None) -> None:
        if left is not None:
            self._left.append(left)
        if self._grant is not None:
            self._grant.release()
        if self._phase is Phase.GONE or self._place is None:
            self._out(gone=self._place is None or self._place.gone)
        elif self._phase is not Phase.LEAVING:
            self._phase = Phase.LEAVING
            self._done = None
            self._turns.next()
            self._cancel_timer()
            self._predecessors.forget()
            rest = rest_of(self.request, self._grant, self._place.node)
            self._place.vacate(lambda gone: self._out(gone=gone), rest)

    def _out(self, *, gone: bool) -> None:
        self._phase = Phase.GONE
        if self._place is not None:
            self._registry.dismiss(self)
        told, self._left = self._left, []
        for left in told:
            left(gone)

    def _fail(self, error: ZkLockError) -> None:
        if not error.lock:
            error.lock = self.request.key
        if self._grant is not None:
            self._grant.lose(str(error))  # before its node goes
        self._conclude(error)
        self._leave(None)

    def on_failure(self, error: Exception) -> None:
        """Give up after something went wrong here; a contender that did nothing more would block the queue."""
        self._fail(ZkLockError(f"The lock protocol failed: {error!r}."))

    def _conclude(self, outcome: Outcome) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(outcome)

    # --- the session's news -------------------------------------------------------------------------------------

    def on_connected(self, *, resumed: bool) -> None:
        """Take up what the break interrupted."""
        if self._phase is Phase.AWAITING:
            self._approach()
        elif self._phase in (Phase.LISTING, Phase.QUEUED):
            self._turns.next()
            self._predecessors.forget()  # they ended with the connection
            self._list(barrier=True)
        elif self._place is not None:
            self._place.reconnected()

    def on_session_lost(self) -> None:
        """The node is gone with its session; queue again, unless it was held."""
        self._turns.next()
        self._predecessors.forget()
        if self._place is not None:
            self._place.forget()
        if self._grant is not None:
            self._grant.lose("the ZooKeeper session is over")
        elif self._phase is not Phase.GONE:
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

    def _ordered(self, names: Any) -> order.Queue | None:
        """Return the queue, or fail: at an error, or at a queue that nobody can read."""
        error: ZkLockError | None = names if isinstance(names, ZkError) else None
        if error is None:
            try:
                return self.request.read(names)
            except UnreadableQueue as unreadable:
                error = unreadable
        self._fail(error)
        return None

    def _cancel_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
