"""
The contender: a state machine that enters the queue of a lock, waits for its turn, holds the lock and leaves.

It runs on the protocol's thread and never blocks. The caller (a thread, greenlet or coroutine) waits for the outcome
elsewhere (`execution.waiters`), so an exception in the caller never interrupts the protocol: the caller gives up, and
`abandon` makes the contender clean up. The kind of lock is in its rule (`queue.rules`), its znode in `ContenderNode`.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from django_zklock import clock
from django_zklock.exceptions import UnreadableQueue, ZkLockError, ZooKeeperUnavailable
from django_zklock.locks.protocol import faultpoints, loss, release_requests
from django_zklock.locks.protocol.directory import Directory
from django_zklock.locks.protocol.grant import Grant
from django_zklock.locks.protocol.node import ContenderNode
from django_zklock.locks.protocol.operator_holds import CheckedHolds, HoldCheck
from django_zklock.locks.protocol.predecessors import Predecessors
from django_zklock.locks.protocol.registry import Registry, SessionListener
from django_zklock.locks.protocol.replacement import replacement
from django_zklock.locks.protocol.replies import ReplyGuard
from django_zklock.locks.protocol.spec import Caller, QueueSpec
from django_zklock.queue import nodes, operator_hold, order, rules
from django_zklock.queue.nodes import Payload
from django_zklock.queue.operator_hold import OperatorHold
from django_zklock.zk.errors import NodeMissing, OutcomeUnknown, SessionGone, ZkError
from django_zklock.zk.gateway import NamesReply, Node, NodeReply
from django_zklock.zk.loop import Timer
from django_zklock.zk.session import BEAT_SHARE, Session

NEWCOMER = "me"  # the name of a contender without a znode, among those of znodes
WATCH_SELF_AFTER = 0.25  # seconds of holding; a shorter hold costs no watch on its znode
WATCH_SELF_SHARE = 1 / 6  # of the session timeout, spent waiting; a shorter wait costs no watch on its znode


class Phase(enum.Enum):
    """What a contender does now."""

    AWAITING = "waits for a session"
    PEEKING = "lists the directory, to see whether the queue is empty"
    LOCAL_QUEUE = "waits until this process has room for one more in the queue"
    ENTERING = "creates its znode"
    LISTING = "is in the queue, and lists it"
    QUEUED = "is in the queue, and watches its predecessors"
    PROVING = "is first, and waits for a quorum to confirm its session and its znode"
    HOLDING = "holds the lock"
    LEAVING = "leaves the queue"
    GONE = "has left the queue"


@dataclass(frozen=True, slots=True)
class Busy:
    """The queue is not empty, and this contender does not wait."""

    waiters: int | None = None
    """How many contenders wait, if `max_waiters` is the reason."""


Outcome: TypeAlias = Grant | Busy | ZkLockError


class Contender(SessionListener):
    """One contender for one lock, from the first request until it has left the queue."""

    __slots__ = (
        "_directory",
        "_done",
        "_grant",
        "_left",
        "_node",
        "_phase",
        "_predecessors",
        "_registry",
        "_replies",
        "_timer",
        "_waits",
        "ahead",
        "caller",
        "deadline",
        "in_local_queue",
        "on_queued",
        "operator",
        "placed",
        "session",
        "spec",
    )

    def __init__(
        self,
        session: Session,
        spec: QueueSpec,
        caller: Caller,
        done: Callable[[Outcome], object],
        *,
        waits: bool,
        deadline: float | None = None,
    ) -> None:
        self.session = session
        self.placed = False  # its position in the queue is known; read by the caller
        self.ahead: Payload | None = None  # of the contender just ahead, if it can be read; read by the caller
        self.operator: OperatorHold | None = None  # an operator hold ahead, if one is known; read by the caller
        self.in_local_queue = False  # it waits in the local queue of this process; read by the caller
        self.on_queued: Callable[[], object] | None = None  # called once if it has to wait
        self.spec = spec
        self.caller = caller
        self.deadline = deadline  # when the caller gives up, on clock.now()
        self._waits = waits  # False: look first, and write nothing if the queue is not empty
        self._done: Callable[[Outcome], object] | None = done
        self._left: tuple[Callable[[bool], object], ...] = ()
        self._phase = Phase.AWAITING
        self._replies = ReplyGuard(spec.key, self.on_failure, caller.about)
        self._grant: Grant | None = None
        self._timer: Timer | None = None
        # Set by `_begin`, on the protocol's thread.
        self._registry: Registry
        self._directory: Directory | None = None
        # Made by `_prepare`: a contender in the local queue does not need them yet.
        self._predecessors: Predecessors
        self._node: ContenderNode | None = None

    def __repr__(self) -> str:
        return f"<contender for {self.spec.key!r}: {self._phase.value}>"

    # --- from any thread ----------------------------------------------------------------------------------------

    @property
    def guid(self) -> str:
        """The guid of its znode; empty if it has none."""
        return "" if self._node is None else self._node.guid

    def start(self) -> None:
        """Begin."""
        self.session.post(self._replies.run, self._begin)

    def abandon(self, left: Callable[[bool], object] | None = None) -> None:
        """
        Leave the queue, in any phase. Nothing of this contender stays in ZooKeeper.

        `left` is called once on the protocol's thread: with True when the znode is gone, with False when it is clear
        that this takes longer.
        """
        self.session.post(self._leave, left)

    def share(self, *, asked: bool = False) -> None:
        """
        Make the write lock that is held a read lock; no other writer comes in between.

        Doing it again changes nothing. Before the end of `min_hold`, no other reader is let in unless the holder has
        `asked` for it.
        """
        grant = self._grant
        left = 0.0 if asked or grant is None else grant.since + self.spec.min_hold - clock.now()
        if left > 0:
            self.session.post(self._share_later, left)
            return
        self.session.post(self._share)
        if grant is not None:
            grant.kind = nodes.Kind.READ  # last, so that a caller that is interrupted before can do it again

    def set_process(self, pid: int) -> None:
        """Show others in the queue that this process of the machine does the work; from any thread."""
        self.session.post(self.describe, {"pid": pid})

    # --- while it holds the lock ----------------------------------------------------------------------------------

    def describe(self, fields: Mapping[str, Any], done: Callable[[], object] | None = None) -> None:
        """Show others in the queue these fields of the payload; see `ContenderNode.describe`."""
        if self._phase is Phase.HOLDING and self._node is not None:
            self._node.describe(fields, done)

    # --- into the queue -----------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._phase is Phase.GONE:
            return
        if self.session.closing:
            self.on_closed()  # the other contenders were notified before this one began
            return
        self._registry = self.session.attached(Registry)
        self._directory = self._registry.directory(self.spec.parent).join()
        self._registry.add(self)
        if self.session.connected:
            self._enter_or_peek()
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

    def _enter_or_peek(self) -> None:
        self._cancel_timer()
        bound = self.spec.max_waiters if self._waits else 0
        exclusive = self.spec.kind in (nodes.Kind.LOCK, nodes.Kind.WRITE)  # else the local queue may be granted at once
        if bound is None or self.placed or self._shared.admitted(self):
            self._queue_up()
        elif exclusive and self._shared.in_local_queue >= max(bound, 1):
            self._leave_busy(self._shared.in_local_queue)
        else:
            self._phase = Phase.PEEKING
            self._shared.names(self._replies.wrap(self._on_peeked))

    def _on_peeked(self, answer: NamesReply) -> None:
        if isinstance(answer, NodeMissing):
            answer = []
        if isinstance(answer, (OutcomeUnknown, SessionGone)):
            self._await_session()
            return
        queue = self._ordered(answer)
        if queue is None:
            return
        longer = queue.with_newcomer(NEWCOMER, self.spec.kind)
        free = isinstance(self.spec.rule(longer, NEWCOMER), rules.Granted)
        if self._waits:
            self._queue_up_if_short(queue, free)
        elif free:
            self._enter()
        elif holds := operator_hold.holds_ahead(longer, NEWCOMER):
            self._check_holds(holds, partial(self._on_peek_checked, longer))
        else:
            self._read_holder(queue[0].name)

    def _on_peek_checked(self, queue: order.Queue, found: CheckedHolds | None) -> None:
        if found is None:
            self._await_session()
            return
        left = queue.without(found.over)
        self.operator = found.first
        if isinstance(self.spec.rule(left, NEWCOMER), rules.Granted):
            self._enter()
        elif self.operator is not None:
            self._leave_busy()
        else:
            self._read_holder(left[0].name)

    def _read_holder(self, name: str) -> None:
        path = f"{self.spec.parent}/{name}"
        self._registry.gateway.read(path, self._replies.wrap(self._on_holder_read))

    def _on_holder_read(self, answer: NodeReply) -> None:
        if isinstance(answer, Node):
            self.ahead = Payload.decode(answer.data)
        self._leave_busy()

    def _leave_busy(self, waiters: int | None = None) -> None:
        """Leave instead of waiting."""
        self.placed = True
        self._conclude(Busy(waiters if self._waits else None))
        self._leave(None)

    def _queue_up_if_short(self, queue: order.Queue, free: bool) -> None:
        """Wait, unless `max_waiters` wait already: in the queue, on their way into it, or in the local queue."""
        granted = 0
        for child in queue:
            rule = self.spec.rule if child.kind is self.spec.kind else rules.rule_for(child.kind, 1)
            if not isinstance(rule(queue, child.name), rules.Granted):
                break
            granted += 1
        listed = sum(child.guid in self._registry.guids for child in queue[granted:])
        coming = self._shared.in_local_queue + max(
            0, self._shared.waiting - listed
        )  # those that are not in the queue yet
        room = self._room(queue) if free else 0
        waiters = len(queue) - granted + max(0, coming - room)
        if coming < room or waiters < (self.spec.max_waiters or 0):
            self._queue_up()
        else:
            self._leave_busy(waiters)

    def _room(self, queue: order.Queue) -> int:
        """Return how many newcomers of this kind would be granted at once, if one would."""
        if self.spec.kind is nodes.Kind.READ:
            return sys.maxsize
        rule = self.spec.rule
        return rule.permits(queue) - len(queue) if isinstance(rule, rules.Permits) else 1

    def _queue_up(self) -> None:
        if self._shared.admit(self):
            self._enter()
            return
        self._phase = Phase.LOCAL_QUEUE
        self.placed = self.in_local_queue = True
        self._tell_queued()

    def on_admitted(self) -> None:
        """There is room in the queue for this contender."""
        self.in_local_queue = False
        self._replies.run(self._enter if self.session.connected else self._await_session)

    def _prepare(self) -> None:
        if self._node is None:
            gateway = self._registry.gateway
            self._node = ContenderNode(self._registry, self._shared, self.spec, self.caller, self)
            self._predecessors = Predecessors(gateway, self.spec.parent, self._replies, self)

    def _enter(self) -> None:
        self._prepare()
        self._phase = Phase.ENTERING
        if self._node is not None:
            self._node.create()

    def on_entered(self, listed: NamesReply | None) -> None:
        """The znode is in the queue."""
        if listed is None:
            self._list()
        else:
            self._phase = Phase.LISTING
            self._on_listed(listed)

    def on_refused(self, error: ZkLockError) -> None:
        """The znode cannot be created."""
        self._fail(error)

    # --- through the queue --------------------------------------------------------------------------------------

    def _list(self, *, barrier: bool = False) -> None:
        self._phase = Phase.LISTING
        ask = self._shared.names_after_sync if barrier else self._shared.names
        ask(self._replies.wrap(self._on_listed))

    def _on_listed(self, answer: NamesReply) -> None:
        if isinstance(answer, NodeMissing):
            self._on_absent()
        elif not isinstance(answer, (OutcomeUnknown, SessionGone)):  # else to be listed again when connected
            self._apply_rule(answer)

    def _apply_rule(self, names: NamesReply) -> None:
        queue = self._ordered(names)
        if queue is None or self._node is None or self._node.node is None:
            return
        faultpoints.reach("after_list")
        verdict = self.spec.rule(queue, self._node.node.name)
        if isinstance(verdict, rules.Absent):
            self._on_absent()
            return
        self.placed = True
        self._node.confirmed()
        if queue.stale_marker:
            self._registry.gateway.delete(f"{self.spec.parent}/{queue.stale_marker}", lambda answer: None)
        if isinstance(verdict, rules.Granted):
            self._grant_if_proven()
            return
        holds = operator_hold.holds_ahead(queue, self._node.node.name)
        if holds:
            self._check_holds(holds, partial(self._on_checked, queue, verdict))
        else:
            self.operator = None
            self._wait_or_leave_busy(verdict)

    def _wait_or_leave_busy(self, verdict: rules.WaitFor) -> None:
        if self._waits:
            self._phase = Phase.QUEUED
            self._predecessors.wait_for(verdict)
            if self._node is not None and not self._node.watched:
                self._node.watch_in(self.session.timeout * WATCH_SELF_SHARE)
        else:
            self._leave_busy()

    # --- operator holds, if there are any -----------------------------------------------------------------------

    def _check_holds(self, names: Sequence[str], done: Callable[[CheckedHolds | None], object]) -> None:
        check = HoldCheck(
            self._registry.gateway,
            self.spec.key,
            self.spec.parent,
            self._replies.wrap,
        )
        check.run(names, done)

    def _on_checked(self, queue: order.Queue, verdict: rules.WaitFor, found: CheckedHolds | None) -> None:
        if found is None or self._node is None or self._node.node is None:
            return  # to be listed again when connected
        if found.over:
            self._list()
            return
        self.operator = found.first
        self._wait_or_leave_busy(verdict)
        seconds = found.next_check(operator_hold.holds_to_end(queue, self._node.node.name, verdict.children))
        if seconds is not None and self._phase is Phase.QUEUED:
            self._cancel_timer()
            self._timer = self.session.loop.call_later(seconds, lambda: self._replies.run(self._on_hold_over))

    def _on_hold_over(self) -> None:
        self._timer = None
        self.on_ahead_changed()

    def _on_absent(self) -> None:
        self._replies.new_generation()
        self._predecessors.forget()
        self._phase = Phase.ENTERING
        if self._node is not None:
            self._node.search()

    def on_ahead_read(self, node: Node) -> None:
        """The data of a predecessor were read."""
        self.ahead = Payload.decode(node.data)
        self._tell_queued()

    def _tell_queued(self) -> None:
        told, self.on_queued = self.on_queued, None
        if told is not None:
            told()

    def on_ahead_gone(self, *, alone: bool) -> None:
        """A predecessor is gone. If it was the only one (`alone`), the lock is granted."""
        if self._phase is not Phase.QUEUED:
            return
        faultpoints.reach("on_wake")
        if alone:
            self._grant_if_proven()
        else:
            self._list()  # it may have given up while others are still ahead

    def on_ahead_changed(self) -> None:
        """The queue may have another meaning now, so list it again."""
        if self._phase is Phase.QUEUED:
            self._list()

    def _grant_if_proven(self) -> None:
        """
        Take the lock if no heartbeat is due; else have a quorum confirm the session and the znode first.

        A waiter sends no heartbeats. After a long wait its lease is over, or would be soon after the grant.
        """
        self._predecessors.forget()
        self._cancel_timer()
        if not self.session.suspect and self._registry.heartbeat.due_in > 0:
            self._take()
        else:
            self._prove()

    def _prove(self) -> None:
        """Ask a quorum, and again after a pause, because a reply that takes long extends no lease."""
        if self._node is None or self._node.node is None:
            return
        self._phase = Phase.PROVING
        self._cancel_timer()
        self._timer = self.session.loop.call_later(
            self.session.timeout * BEAT_SHARE, lambda: self._replies.run(self._prove_again)
        )
        self._node.prove()

    def _prove_again(self) -> None:
        self._timer = None
        if self._phase is Phase.PROVING:
            self._prove()

    def on_proven(self) -> None:
        """A quorum has confirmed that the session lives and the znode exists."""
        if self._phase is Phase.PROVING and not self.session.suspect and self.session.lease.valid:
            self._cancel_timer()
            self._take()

    def _take(self) -> None:
        if self._node is None or self._node.node is None:
            return
        faultpoints.reach("before_grant")
        self._phase = Phase.HOLDING
        self._grant = Grant(self.session, self.spec.key, self._node.node.path, self._node.node.czxid, self.spec.kind)
        self._grant.what, self._grant.about = self.caller.what, self.caller.about
        self._grant.template = self.spec.template
        self._node.keep()
        self._node.watch_in(WATCH_SELF_AFTER)
        self._conclude(self._grant)
        self._shared.granted(self)

    def on_node_gone(self) -> None:
        """Another session has deleted the znode."""
        if self._grant is not None:
            loss.lose(self._registry.gateway, self._grant)
        else:
            self._replies.new_generation()
            self._predecessors.forget()
            self._enter()

    def on_own_read(self, node: Node) -> None:
        """The znode was read while its lock is held."""
        if self._grant is not None and self._node is not None and self._node.node is not None:
            release_requests.on_own_znode_read(self._registry.gateway, self._grant, node, self._node.node.data)

    def _share_later(self, seconds: float) -> None:
        if self._phase is Phase.HOLDING:
            self.session.loop.call_later(seconds, lambda: self._replies.run(self._share_in_time))

    def _share_in_time(self) -> None:
        if self._phase is Phase.HOLDING:
            self.share()

    def _share(self) -> None:
        if self._phase is Phase.HOLDING and self._node is not None:
            self._node.share()

    # --- out of the queue ---------------------------------------------------------------------------------------

    def _leave(self, left: Callable[[bool], object] | None) -> None:
        if left is not None:
            self._left = (*self._left, left)
        if self._grant is not None:
            self._grant.release()
        if self._phase is Phase.LEAVING:
            return
        self._done = None
        self._replies.new_generation()
        self._cancel_timer()
        if self._phase is Phase.GONE or self._node is None:
            self._finish_leaving(self._node is None or self._node.gone)
        else:
            self._phase = Phase.LEAVING
            self._predecessors.forget()
            successor = (
                replacement(self.spec, self.caller, self._grant, self._node.node) if self.spec.min_hold else None
            )
            self._node.leave(self._finish_leaving, successor)

    def _finish_leaving(self, gone: bool) -> None:
        before, self._phase = self._phase, Phase.GONE
        if before is not Phase.GONE and self._directory is not None:
            self._registry.remove(self)
            self._directory.leave(self)
        told, self._left = self._left, ()
        for left in told:
            left(gone)

    def _fail(self, error: ZkLockError) -> None:
        if not error.lock:
            error.lock = self.spec.key
        if self._grant is not None:
            self._grant.lose(str(error))  # before its node goes
        self._conclude(error)
        self._leave(None)

    def on_failure(self, error: Exception) -> None:
        """Give up after a failure of this code. A contender that just stopped would block the queue."""
        self._fail(ZkLockError(f"The lock protocol failed: {error!r}."))

    def _conclude(self, outcome: Outcome) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(outcome)

    # --- events of the session -------------------------------------------------------------------------------------

    def on_connected(self, *, resumed: bool) -> None:
        """Continue what the lost connection has interrupted."""
        if self._phase is Phase.AWAITING:
            self._enter_or_peek()
            return
        if self._phase in (Phase.LISTING, Phase.QUEUED):
            self._replies.new_generation()
            self._predecessors.forget()  # they ended with the connection
            self._list(barrier=True)
        elif self._phase is Phase.PROVING:
            self._prove()
        if self._node is not None:
            self._node.reconnected()

    def on_session_lost(self) -> None:
        """The znode is gone with its session. Queue again, unless the lock was held."""
        if self._phase is Phase.LOCAL_QUEUE:
            return
        self._replies.new_generation()
        if self._node is not None:
            self._predecessors.forget()
            self._node.forget()
        if self._grant is not None:
            self._grant.lose("the ZooKeeper session is over")
        elif self._phase is not Phase.GONE:
            self._await_session()

    def on_closed(self) -> None:
        """The session was closed, so a waiter would never be granted."""
        if self._grant is None:
            self._fail(ZooKeeperUnavailable("The ZooKeeper session of this process was closed."))

    def on_suspect(self, reason: str) -> None:
        """No quorum confirms the session at the moment."""
        if self._grant is not None:
            self._grant.suspect(reason)

    def on_confirmed(self) -> None:
        """A quorum has confirmed the session."""
        if self._grant is not None:
            self._grant.confirmed()

    def on_lease_over(self) -> None:
        """The lock may have another holder by now."""
        if self._grant is not None:
            self._grant.lose("the lease is over: no quorum has confirmed the session in time")

    # --- small parts --------------------------------------------------------------------------------------------

    def _ordered(self, names: NamesReply) -> order.Queue | None:
        """Return the queue, or fail: after an error, or if the queue cannot be read."""
        if isinstance(names, ZkError):
            self._fail(names)
            return None
        try:
            return self._shared.read(names)
        except UnreadableQueue as error:
            self._fail(error)
            return None

    @property
    def _shared(self) -> Directory:
        """What the contenders of this process for the same key share."""
        assert self._directory is not None
        return self._directory

    def _cancel_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
