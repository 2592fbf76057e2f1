"""
The contender: a state machine that enters the queue of a lock, waits for its turn, holds the lock and leaves.

The contender waits for a session first. If it may wait for the lock, it creates its znode, perhaps after a wait in the
local queue of its process. Otherwise it peeks whether the lock is free, so a try that fails writes nothing. The rule
(`queue.order`) knows the kind of lock, and says for whom it waits. `ContenderNode` creates and deletes the znode.

It never blocks. The caller (a thread, greenlet or coroutine) waits for the outcome elsewhere (`execution.waiters`). So
an exception in the caller never interrupts the protocol: the caller calls `abandon`, and the contender cleans up.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from django_zklock.core import clock
from django_zklock.core.errors import UnreadableQueue, ZkLockError, ZooKeeperUnavailable
from django_zklock.core.protocol import interventions
from django_zklock.core.protocol.grant import Grant
from django_zklock.core.protocol.local_queue import LocalQueue
from django_zklock.core.protocol.node import ContenderNode, ReplyGuard
from django_zklock.core.protocol.operator_holds import CheckedHolds, HoldCheck, replacement
from django_zklock.core.protocol.peek import Holder, Peek, PeekReply
from django_zklock.core.protocol.predecessors import Predecessors
from django_zklock.core.protocol.registry import ListingReply, Registry
from django_zklock.core.protocol.spec import Caller, QueueSpec
from django_zklock.core.queue import holders, nodes, operator_hold, order
from django_zklock.core.queue.nodes import Payload
from django_zklock.core.queue.operator_hold import OperatorHold
from django_zklock.core.zk import troubles
from django_zklock.core.zk.errors import NodeMissing, OutcomeUnknown, SessionGone, ZkError
from django_zklock.core.zk.gateway import Node
from django_zklock.core.zk.loop import Timer
from django_zklock.core.zk.session import BEAT_SHARE, Session, SessionObserver

WATCH_SELF_AFTER = 0.25  # seconds of holding; a shorter hold of a contender that did not wait costs no watch
DESCRIBE_GRANT_AFTER = 0.75  # seconds after that watch; a shorter hold does not write the time of its grant


class Phase(enum.Enum):
    """The present activity of a contender."""

    NEW = "has not begun"
    AWAITING = "waits for a session"
    PEEKING = "lists the directory, to see whether the lock is free"
    LOCAL_QUEUE = "waits in the local queue of its process"
    CREATING = "creates its znode"
    LISTING = "is in the queue, and lists it"
    QUEUED = "is in the queue, and watches its predecessors"
    PROVING = "is first, and waits for a quorum to confirm its session and its znode"
    HOLDING = "holds the lock"
    RELEASING = "deletes its znode"
    GONE = "has no znode any more"


@dataclass(frozen=True, slots=True)
class Busy:
    """The lock is not free, and this contender does not wait; or too many others wait."""

    waiters: int | None = None
    """How many others wait, if `max_waiters` is the reason."""


Outcome: TypeAlias = Grant | Busy | ZkLockError


class Contender(SessionObserver):
    """One contender for one lock, from the first request until it has left the queue."""

    def __init__(
        self,
        session: Session,
        spec: QueueSpec,
        caller: Caller,
        on_outcome: Callable[[Outcome], object],
        *,
        waits: bool,
        deadline: float | None = None,
    ) -> None:
        self.session = session
        # The caller reads these five.
        self.waits = waits  # False: peek first, and write nothing if the lock is not free
        self.placed = False  # ZooKeeper, or the local queue, has given it a position; may be set before the start
        self.ahead: Payload | None = None  # of the contender just ahead, if it was read
        self.operator: OperatorHold | None = None  # an operator hold ahead, if one is known
        self.in_local_queue = False  # it waits in the local queue of this process
        self.on_queued: Callable[[], object] | None = None  # called once if it has to wait
        self.spec = spec
        self.caller = caller
        self.deadline = deadline  # when the caller gives up, on clock.now()
        self.since: float | None = None  # when the caller began to wait, on clock.now(); None: it serves other callers
        self._on_outcome: Callable[[Outcome], object] | None = on_outcome
        self._done: tuple[Callable[[bool], object], ...] = ()
        self._phase = Phase.NEW
        self._replies = ReplyGuard(spec.key, self.on_failure, caller.about)
        self._grant: Grant | None = None
        self._timer: Timer | None = None
        self._local_queue: LocalQueue | None = None  # while it waits, here or in ZooKeeper
        self._is_queued = False  # it was accepted as a waiter, so `max_waiters` no longer refuses it
        self._predecessors: Predecessors | None = None  # once it has waited for some
        self._is_described = False  # its znode says when the lock was granted
        # Set when it begins. Python needs 1 kB more for an object if attributes are added late to many objects at once.
        self._registry: Registry = None  # type: ignore[assignment]
        self._node: ContenderNode = None  # type: ignore[assignment]

    @property
    def guid(self) -> str:
        """The guid of its znode; empty if it has none."""
        return self._node.guid if self._node else ""

    @property
    def is_waited_for(self) -> bool:
        """Whether a caller waits for its outcome; from any thread."""
        return self.waits and self.since is not None and self._on_outcome is not None

    def __repr__(self) -> str:
        return f"<contender for {self.spec.key!r}: {self._phase.value}>"

    # --- from any thread ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to enter the queue; return at once."""
        self.session.post(self._replies.run, self._begin)

    def abandon(self, done: Callable[[bool], object] | None = None) -> None:
        """
        Leave the queue, in any phase. Nothing of this contender stays in ZooKeeper.

        `done` is called once on the protocol's thread: with True when the znode is gone, or with False as soon as the
        delete takes longer than one request.
        """
        self.session.post(self._abandon, done)

    def downgrade(self, *, asked: bool = False) -> None:
        """
        Turn the write lock that is held into a read lock; no other writer comes in between.

        The call is idempotent. Other readers are admitted after the end of `min_hold`, or at once if the holder
        has `asked` for it.
        """
        grant = self._grant
        remaining = 0.0 if asked or grant is None else grant.since + self.spec.min_hold - clock.now()
        self.session.post(self._downgrade, remaining)
        if grant is not None and remaining <= 0:
            grant.kind = nodes.Kind.READ  # last, so that an interrupted caller can call this again

    def set_process(self, pid: int) -> None:
        """Show the others in the queue which process of this host does the work. From any thread."""
        self.session.post(self.describe, {"pid": pid})

    def waited(self, granted_at: float) -> int:
        """Return the milliseconds from the create of its znode to a grant at `granted_at`, on `clock.now()`."""
        return max(1, round((granted_at - self._node.sent_at) * 1000))

    # --- into the queue -----------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._phase is not Phase.NEW:
            return  # it was abandoned before
        if self.session.closing:
            self.on_closed()  # the other contenders were notified before this one began
            return
        self._registry = self.session.attached(Registry)
        self._is_queued = self.placed
        self._node = ContenderNode(self._registry, self.spec, self.caller, self)
        self.session.observers[self] = None
        if self.session.connected:
            self._create_or_peek()
        else:
            self._await_session()

    def _await_session(self) -> None:
        self._phase = Phase.AWAITING
        if not self.placed and self._timer is None:
            self._call_later(self.session.options.connect_timeout, self._on_no_session)

    def _on_no_session(self) -> None:
        if self._phase is Phase.AWAITING and not self.placed:
            self.on_refused(ZooKeeperUnavailable(self.session.explain(self.session.options.connect_timeout)))

    def _create_or_peek(self) -> None:
        if not self.waits:
            self._phase = Phase.PEEKING
            Peek(self._registry, self.spec, self._replies, self._on_peeked).start()
            return
        queue = self._registry.local_queue(self.spec.parent)
        if queue.admit(self):
            self._local_queue = queue
            self._create()
            return
        permits = sys.maxsize if self.spec.kind is nodes.Kind.READ else self.spec.limit or 1
        waiters = queue.waiting - permits
        if self._are_too_many(waiters):
            self._conclude_busy(waiters)
            return
        self._local_queue = queue
        queue.append(self)
        self._phase = Phase.LOCAL_QUEUE
        self.placed = self.in_local_queue = True
        self._report_queued()

    def on_admitted(self) -> None:
        """Enter ZooKeeper's queue: the local queue has admitted this contender."""
        self.in_local_queue = False
        self._replies.run(self._create if self.session.connected else self._await_session)

    def _are_too_many(self, waiters: int) -> bool:
        return not self._is_queued and self.spec.max_waiters is not None and waiters >= self.spec.max_waiters

    def _on_peeked(self, reply: PeekReply) -> None:
        if reply is None:
            self._create()
        elif isinstance(reply, NodeMissing):
            self._phase = Phase.CREATING
            self._node.create_with_parent()
        elif isinstance(reply, Holder):
            self.ahead, self.operator = reply.payload, reply.operator
            self._conclude_busy()
        elif isinstance(reply, (OutcomeUnknown, SessionGone)):
            self._await_session()
        else:
            self.on_refused(reply)

    def _conclude_busy(self, waiters: int | None = None) -> None:
        """Leave instead of waiting. `waiters` is their number if they are too many."""
        self.placed = True
        self._conclude(Busy(waiters))
        self._abandon()

    def _create(self) -> None:
        self._phase = Phase.CREATING
        self._node.create()

    def _report_queued(self) -> None:
        on_queued, self.on_queued = self.on_queued, None
        if on_queued is not None:
            on_queued()

    def on_created(self, listed: ListingReply | None) -> None:
        """The znode is in the queue."""
        if listed is None:
            self._list()
        else:
            self._phase = Phase.LISTING
            self._on_listed(listed)

    # --- through the queue --------------------------------------------------------------------------------------

    def _list(self, *, after_sync: bool = False) -> None:
        self._phase = Phase.LISTING
        on_listed = self._replies.wrap(self._on_listed)
        self._registry.listing(self.spec.parent).names(on_listed, after_sync=after_sync)

    def _on_listed(self, reply: ListingReply) -> None:
        """Apply the rule to the queue: hold the lock, wait, or leave."""
        if isinstance(reply, (OutcomeUnknown, SessionGone)):
            return  # it lists again when it is connected
        if isinstance(reply, NodeMissing):
            self._on_absent()
            return
        if isinstance(reply, ZkError):
            self.on_refused(reply)
            return
        try:
            queue = reply.queue
        except UnreadableQueue as error:
            self.on_refused(error)
            return
        name = self._node.name
        verdict = order.rule_for(self.spec.kind, self.spec.limit or 1)(queue, name)
        if isinstance(verdict, order.Absent):
            self._on_absent()
            return
        self.placed = True
        self._node.creates = 0
        if queue.stale_marker:
            self._registry.gateway.delete(f"{self.spec.parent}/{queue.stale_marker}", lambda reply: None)
        if isinstance(verdict, order.Granted):
            self._grant_if_proven()
            return
        holds = operator_hold.holds_ahead(queue, name)
        if holds:
            check = HoldCheck(self._registry.gateway, self.spec.key, self.spec.parent, self._replies.wrap)
            check.run(holds, partial(self._on_holds_checked, queue, verdict))
            return
        self.operator = None
        self._wait_or_conclude_busy(queue, verdict)

    def _wait_or_conclude_busy(self, queue: order.Queue, verdict: order.WaitFor) -> None:
        waiters = holders.waiters_ahead(queue, self._node.name, self.spec.limit or 1)
        if not self.waits:
            self._conclude_busy()
        elif self._are_too_many(waiters):
            self._conclude_busy(waiters)
        else:
            self._is_queued = True
            self._phase = Phase.QUEUED
            if self._predecessors is None:
                self._predecessors = Predecessors(self._registry.gateway, self.spec.parent, self._replies, self)
            # Before its predecessors: then an event about them proves that the znode was there. It costs no round trip.
            if not self._node.watched:
                self._node.watch(self.on_refused)
            self._predecessors.wait_for(verdict)

    def _on_holds_checked(self, queue: order.Queue, verdict: order.WaitFor, checked: CheckedHolds | None) -> None:
        if checked is None:
            return  # it lists again when it is connected
        if checked.ended:
            self._list()
            return
        self.operator = checked.first
        self._wait_or_conclude_busy(queue, verdict)
        seconds = checked.next_check(operator_hold.holds_to_end(queue, self._node.name, verdict.children))
        if seconds is not None and self._phase is Phase.QUEUED:
            self._call_later(seconds, self.on_ahead_changed)

    def _on_absent(self) -> None:
        self._forget_replies()
        self._phase = Phase.CREATING
        self._node.search()

    def on_ahead_read(self, node: Node) -> None:
        """The data of a predecessor were read."""
        self.ahead = Payload.decode(node.data)
        self._report_queued()

    def on_ahead_gone(self, *, was_last: bool) -> None:
        """A predecessor is gone. With `was_last`, the lock is granted without another listing."""
        if self._phase is not Phase.QUEUED:
            return
        if was_last and self._node.exists:
            self._grant_if_proven()
        else:
            self._list()  # others may still be ahead, or the znode may be gone

    def on_ahead_changed(self) -> None:
        """List the queue again: a marker, a limit or the end of an operator hold may have changed the verdict."""
        if self._phase is Phase.QUEUED:
            self._list()

    def _grant_if_proven(self) -> None:
        """
        Hold the lock at once if no heartbeat is due. Else have a quorum confirm the session and the znode first.

        A waiter sends no heartbeats. After a long wait its lease is over, or would be soon after the grant.
        """
        if self._predecessors is not None:
            self._predecessors.forget()
        self._cancel_timer()
        if not self.session.suspect and self._registry.heartbeat.due_in > 0:
            self._hold()
        else:
            self._phase = Phase.PROVING
            self._prove()

    def _prove(self) -> None:
        """Ask a quorum, and ask again after a pause: a late reply may not extend the lease."""
        if self._phase is Phase.PROVING:
            self._call_later(self.session.timeout * BEAT_SHARE, self._prove)
            self._node.prove()

    def on_proven(self) -> None:
        """A quorum has confirmed that the session lives and the znode exists."""
        if self._phase is Phase.PROVING and not self.session.suspect and self.session.lease.valid:
            self._cancel_timer()
            self._hold()

    # --- while it holds the lock ----------------------------------------------------------------------------------

    def _hold(self) -> None:
        node = self._node.node
        if node is None:
            return
        self._phase = Phase.HOLDING
        grant = self._grant = Grant(self.session, self.spec.key, node.path, node.czxid, self.spec.kind)
        grant.what, grant.about = self.caller.what, self.caller.about
        grant.template = self.spec.template
        self._node.keep(WATCH_SELF_AFTER)
        self._conclude(grant)
        queue, self._local_queue = self._local_queue, None
        if queue is not None:
            queue.remove(self, granted=True)

    def describe(self, fields: Mapping[str, Any], done: Callable[[], object] | None = None) -> None:
        """Show the others in the queue these fields of the payload; see `ContenderNode.describe`."""
        if self._phase is Phase.HOLDING:
            self._node.describe(fields, done)

    def on_node_gone(self) -> None:
        """Another session has deleted the znode."""
        if self._grant is not None:
            interventions.lose(self._registry.gateway, self._grant)
        else:
            self._forget_replies()
            self._create()

    def on_own_read(self, node: Node) -> None:
        """The znode was read while its lock is held."""
        if self._grant is not None and self._node.node is not None:
            interventions.read_request(self._registry.gateway, self._grant, node, self._node.node.data)
            if not self._is_described and self._timer is None:
                self._call_later(DESCRIBE_GRANT_AFTER, self._describe_grant)

    def _describe_grant(self) -> None:
        """Write the time of the grant, for people who look at the queue. ZooKeeper only knows that of the create."""
        self._cancel_timer()
        if self._grant is not None:
            self.describe({"waited": self.waited(self._grant.since)}, self._on_described)

    def _on_described(self) -> None:
        self._is_described = True

    def _downgrade(self, seconds: float) -> None:
        if self._phase is not Phase.HOLDING:
            return
        if seconds > 0:
            self.session.loop.call_later(seconds, self.downgrade)
        else:
            self._replies.run(self._node.downgrade)

    # --- out of the queue ---------------------------------------------------------------------------------------

    def on_refused(self, error: ZkLockError) -> None:
        """Give up with this error: ZooKeeper has refused something, or cannot be reached."""
        if not error.lock:
            error.lock = self.spec.key
        if self._grant is not None:
            self._grant.lose(str(error))  # before its znode is deleted
        self._conclude(error)
        self._abandon()

    def on_failure(self, error: Exception) -> None:
        """Give up after a failure of this code. A contender that stays in the queue would block it."""
        self.on_refused(ZkLockError(f"The lock protocol failed: {error!r}."))

    def _conclude(self, outcome: Outcome) -> None:
        on_outcome, self._on_outcome = self._on_outcome, None
        self.on_queued = None  # it refers to the caller's waiter
        if on_outcome is not None:
            on_outcome(outcome)

    def _abandon(self, done: Callable[[bool], object] | None = None) -> None:
        if done is not None:
            self._done = (*self._done, done)
        if self._grant is not None:
            self._grant.release()
        if self._phase is Phase.RELEASING:
            return
        self._on_outcome = None
        self._forget_replies()
        self._cancel_timer()
        if self._phase in (Phase.NEW, Phase.GONE):
            self._on_gone(not self._node or self._node.gone)
        else:
            self._phase = Phase.RELEASING
            hold = replacement(self.spec, self.caller, self._grant, self._node.node) if self.spec.min_hold else None
            self._node.delete(self._on_gone, hold)

    def _on_gone(self, gone: bool) -> None:
        self._phase = Phase.GONE
        self.session.observers.pop(self, None)
        queue, self._local_queue = self._local_queue, None
        if queue is not None:
            queue.remove(self)
        callbacks, self._done = self._done, ()
        for done in callbacks:
            done(gone)

    def _forget_replies(self) -> None:
        """Ignore the replies that are outstanding, and watch no predecessor."""
        self._replies.new_generation()
        if self._predecessors is not None:
            self._predecessors.forget()

    def _call_later(self, seconds: float, call: Callable[[], object]) -> None:
        """Set the one timer of this contender."""
        self._cancel_timer()
        self._timer = self.session.loop.call_later(seconds, lambda: self._replies.run(call))

    def _cancel_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    # --- events of the session -------------------------------------------------------------------------------------

    def on_connected(self, *, resumed: bool) -> None:
        """Continue what the lost connection has interrupted."""
        if self._phase is Phase.AWAITING:
            self._cancel_timer()
            self._create_or_peek()
            return
        if self._phase in (Phase.LISTING, Phase.QUEUED):
            self._forget_replies()  # the watches ended with the connection
            self._list(after_sync=True)
        elif self._phase is Phase.PROVING:
            self._prove()
        self._node.reconnected()

    def on_session_lost(self) -> None:
        """Queue again, unless the lock was held: the znode is gone with its session."""
        if self._phase is Phase.LOCAL_QUEUE:
            return
        self._forget_replies()
        self._node.forget()
        if self._grant is not None:
            self._grant.lose(troubles.SESSION_OVER)
        elif self._phase is not Phase.GONE:
            self._await_session()

    def on_closed(self) -> None:
        """The session was closed, so a waiter would never be granted."""
        if self._grant is None:
            self.on_refused(ZooKeeperUnavailable("The ZooKeeper session of this process was closed."))

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
            self._grant.lose(troubles.LEASE_OVER)
