"""
The phases of a contender until the create of its znode. `Contender` has the later ones.

The contender waits for a session first. If it may wait for the lock, it creates its znode, perhaps after a wait in the
local queue of its process. Otherwise it peeks whether the lock is free, so a try that fails writes nothing.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from django_zklock.exceptions import ZkLockError, ZooKeeperUnavailable
from django_zklock.locks.protocol.grant import Grant
from django_zklock.locks.protocol.local_queue import LocalQueue
from django_zklock.locks.protocol.node import ContenderNode
from django_zklock.locks.protocol.peek import Holder, Peek, PeekReply
from django_zklock.locks.protocol.registry import Registry
from django_zklock.locks.protocol.replies import ReplyGuard
from django_zklock.locks.protocol.spec import Caller, QueueSpec
from django_zklock.queue import nodes
from django_zklock.queue.nodes import Payload
from django_zklock.queue.operator_hold import OperatorHold
from django_zklock.zk.errors import NodeMissing, OutcomeUnknown, SessionGone
from django_zklock.zk.loop import Timer
from django_zklock.zk.session import Session, SessionObserver


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


class Newcomer(SessionObserver):
    """The part of `Contender` that runs until the create of its znode, and the attributes of all phases."""

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

    def _abandon(self, done: Callable[[bool], object] | None = None) -> None:
        """Leave, in any phase."""
        raise NotImplementedError

    # --- before the znode ---------------------------------------------------------------------------------------

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

    # --- the end ------------------------------------------------------------------------------------------------

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

    def _call_later(self, seconds: float, call: Callable[[], object]) -> None:
        """Set the one timer of this contender."""
        self._cancel_timer()
        self._timer = self.session.loop.call_later(seconds, lambda: self._replies.run(call))

    def _cancel_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
