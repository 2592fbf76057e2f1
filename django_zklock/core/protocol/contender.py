"""
The contender: a state machine that enters the queue of a lock, waits for its turn, holds the lock and leaves.

The story runs from top to bottom. The contender waits for a session first. If it may wait for the lock, it creates its
znode and lists the queue, perhaps after a wait in the local queue of its process. Otherwise it peeks whether the lock
is free, so a try that fails writes nothing. The rule (`queue.order`) knows the kind of lock, and says for whom it
waits. The contender watches these, is granted the lock, and deletes its znode.

It never blocks. The caller (a thread, greenlet or coroutine) waits for the outcome elsewhere (`execution.waiters`). So
an exception in the caller never interrupts the protocol: the caller calls `abandon`, and the contender cleans up.
"""

from __future__ import annotations

import enum
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeAlias, TypeVar

from django_zklock.core import clock
from django_zklock.core.errors import TooManyLocks, UnreadableQueue, ZkLockError, ZooKeeperUnavailable
from django_zklock.core.log import Logger
from django_zklock.core.protocol import interventions
from django_zklock.core.protocol.contender_info import ContenderInfo
from django_zklock.core.protocol.deadlock import DeadlockSearch
from django_zklock.core.protocol.errors import LockDeadlock
from django_zklock.core.protocol.grant import Grant
from django_zklock.core.protocol.local_queue import LocalQueue
from django_zklock.core.protocol.operator_holds import HoldCheck, successor
from django_zklock.core.protocol.registry import Deletion, ListedNames, ListingReply, Registry
from django_zklock.core.protocol.spec import Caller, QueueSpec
from django_zklock.core.protocol.story import CLOSED, Story, drive
from django_zklock.core.queue import nodes, operator_hold, order
from django_zklock.core.queue.nodes import Payload
from django_zklock.core.zk import troubles
from django_zklock.core.zk.client import Watch
from django_zklock.core.zk.errors import (
    INTERRUPTED,
    NodeMissing,
    Outdated,
    RequestRefused,
    ZkError,
)
from django_zklock.core.zk.gateway import Node, NodeReply, WriteReply
from django_zklock.core.zk.lease import BEAT_SHARE
from django_zklock.core.zk.loop import NEVER, Timer
from django_zklock.core.zk.multi import Check, Create, Delete
from django_zklock.core.zk.session import Session, SessionObserver

logger = Logger("django_zklock.locks")

_Reply = TypeVar("_Reply")

NEWCOMER = "me"  # stands for the name of the znode that a contender that peeks does not have yet
MAX_CREATES = 50  # in a row; if the queue has shown none of these znodes, the contender gives up
WATCH_SELF_AFTER = 0.25  # seconds of holding; a shorter hold of a contender that did not wait costs no watch
DESCRIBE_GRANT_AFTER = 0.75  # seconds after that watch; a shorter hold does not write the time of its grant


class Phase(enum.Enum):
    """The present activity of a contender."""

    AWAITING = "waits for a session"
    PREPARING = "looks whether it may enter the queue, or creates the directory"
    LOCAL_QUEUE = "waits in the local queue of its process"
    CREATING = "creates its znode"
    SEARCHING = "does not know whether its znode exists, and searches it"
    LISTING = "is in the queue, and lists it, or leaves it if it is still part of a deadlock"
    QUEUED = "is in the queue, and watches its predecessors"
    PROVING = "is first, and waits for a quorum to confirm its session and its znode"
    HOLDING = "holds the lock, or has lost it"
    DELETING = "deletes its znode"
    GONE = "has no znode any more"


@dataclass(frozen=True, slots=True)
class Busy:
    """The lock is not free, and this contender does not wait; or too many others wait."""

    waiters: int | None = None
    """How many others wait, if `max_waiters` is the reason."""


Outcome: TypeAlias = Grant | Busy | ZkLockError


@dataclass(slots=True, eq=False)
class CallerWait:
    """The wait of a caller for the outcome of its contender."""

    on_outcome: Callable[[Outcome], object] | None
    _: KW_ONLY
    since: float | None = None  # when it began, on clock.now(); None: the contender serves other callers
    deadline: float | None = None  # when the caller gives up, on clock.now()
    on_queued: Callable[[], object] | None = None  # called once if it has to wait
    # Returns the locks of its owner, and whether another thread may end each; None: it has none.
    held: Callable[[], Mapping[Grant, bool]] | None = None
    is_accepted: bool = False  # `max_waiters` no longer refuses it
    search: DeadlockSearch | None = None  # while it waits, and its owner may hold other locks

    def report_queued(self) -> None:
        """Tell the caller, once, that it has to wait."""
        on_queued, self.on_queued = self.on_queued, None
        if on_queued is not None:
            on_queued()

    def end(self) -> None:
        """Forget the caller, and look for no deadlock."""
        self.on_outcome = self.on_queued = None
        if self.held is not None:
            self.end_search()

    def end_search(self) -> None:
        """Look for no deadlock any more."""
        search, self.search, self.held = self.search, None, None
        if search is not None:
            search.stop()


@dataclass(slots=True, eq=False)
class OwnNode:
    """The znode of one create: what its contender knows of it."""

    guid: str = ""  # empty before the first create
    sent_at: float = 0.0  # when the create was sent, on clock.now()
    creates: int = 0  # since the queue last showed a znode of the contender
    node: Node | None = None  # as last read or written, once it is known to exist; not while it is being deleted
    lists_again: bool = False  # the listing after the create was lost with a connection
    watch: Watch | None = None

    def unwatch(self) -> None:
        """Cancel the watch, if there is one."""
        watch, self.watch = self.watch, None
        if watch is not None:
            watch.cancel()


@dataclass(slots=True, eq=False, repr=False)  # slots: thousands may wait in a process, and each saves 1 kB
class Contender(SessionObserver):
    """
    One contender for one lock, from the first request until it has left the queue.

    Its znode may exist in ZooKeeper as long as its guid is in the registry.
    """

    sends_release = True
    lingers = False

    session: Session
    spec: QueueSpec
    caller: Caller
    wait: CallerWait
    _: KW_ONLY
    waits: bool  # False: peek first, and write nothing if the lock is not free
    has_position: bool = False  # ZooKeeper, or the local queue, has given it a position; may be set before the start
    # The caller reads these, and `ahead`.
    busy: Busy | None = None  # its outcome, as soon as the holder is read
    refusal: ZkError | None = None  # of a request that it tries again: its delete, or that of a hold ahead

    _ahead: Node | None = None  # the contender just ahead, or the holder if it is busy; None if it was not read
    _operator_hold: Node | None = None  # an operator hold ahead, if there is one
    _own: OwnNode = field(default_factory=OwnNode)
    _phase: Phase = Phase.AWAITING
    _registry: Registry = field(init=False)  # set when it begins
    _generation: int = 0  # a reply to a request of an earlier one is dropped
    _timer: Timer = NEVER
    _local_queue: LocalQueue | None = None  # while it waits, here or in ZooKeeper
    _predecessors: Predecessors | None = None  # once it has waited for some
    _grant: Grant | None = None
    _done: tuple[Callable[[bool], object], ...] = ()  # called when its release is confirmed

    @property
    def is_waited_for(self) -> bool:
        """Whether a caller waits for its outcome; from any thread."""
        return self.waits and self.wait.since is not None and self.wait.on_outcome is not None

    @property
    def guid(self) -> str:
        """The guid of its last znode; empty before the first create."""
        return self._own.guid

    @property
    def deadline(self) -> float | None:
        """When the caller gives up, on `clock.now()`."""
        return self.wait.deadline

    @property
    def in_local_queue(self) -> bool:
        """Whether it waits in the local queue of this process."""
        return self._phase is Phase.LOCAL_QUEUE

    @property
    def ahead(self) -> ContenderInfo | None:
        """An operator hold ahead, or else the contender just ahead; None if that is not known. From any thread."""
        return self._describe(self._operator_hold or self._ahead)

    def info(self, grant: Grant, **fields: Any) -> ContenderInfo | None:
        """Describe itself as the holder since this grant, with these fields of its payload. From any thread."""
        node = self._own.node
        payload = Payload.decode(node.data) if node is not None else None
        if node is None or payload is None:
            return None
        waited = self.waited(grant.since)
        data = replace(payload, **{**fields, "waited": waited}).encode()
        return self._describe(replace(node, data=data, mtime=node.ctime + waited / 1000))

    def _describe(self, node: Node | None) -> ContenderInfo | None:
        if node is None or (child := nodes.parse(node.name)) is None:
            return None
        return ContenderInfo.from_node(self.spec.key, child, node)

    def __repr__(self) -> str:
        return f"<contender for {self.spec.key!r}: {self._phase.value}>"

    # --- from any thread ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to enter the queue; return at once."""
        self.session.post(self._run, self._begin)

    def abandon(self) -> None:
        """Leave the queue, in any phase. Nothing of this contender stays in ZooKeeper."""
        self.session.post(self._abandon)

    def when_released(self, done: Callable[[bool], object], *, confirmed: bool) -> None:
        """
        Call `done(True)` once on the protocol's thread, after `abandon`, when the release is on its way.
        Call `done(False)` instead if ZooKeeper has refused it.

        That means: its bytes are in the socket; or the registry has it, and sends it when ZooKeeper is back. If
        `confirmed`: when ZooKeeper has confirmed it, or as soon as that takes longer than one request.
        """
        if confirmed:
            self.session.post(self._when_confirmed, done)
        else:
            self.session.post(done, True)

    def set_process(self, pid: int) -> None:
        """Show the others in the queue which process of this host does the work. From any thread."""
        self.session.post(self.describe, {"pid": pid})

    def waited(self, granted_at: float) -> int:
        """Return the milliseconds from the create of its znode to a grant at `granted_at`, on `clock.now()`."""
        return max(1, round((granted_at - self._own.sent_at) * 1000))

    # --- wait for a session, and for a place in the queue ---------------------------------------------------------

    def _begin(self) -> None:
        if self._phase is Phase.GONE:
            return  # it was abandoned before
        if self.session.closing:
            self.on_closed()  # the other contenders were notified before this one began
            return
        self._registry = self.session.attached(Registry)
        self.wait.is_accepted = self.has_position
        self.session.observers[self._registry] = None  # first: a delete ends before its contender hears of an event
        self.session.observers[self] = None
        if self.session.connected:
            self._join_queue()
        else:
            self._await_session()

    def _await_session(self) -> None:
        self._phase = Phase.AWAITING
        if not self.has_position and not self._timer.pending:
            self._call_later(self.session.options.connect_timeout, self._on_no_session)

    def _on_no_session(self) -> None:
        if self._phase is Phase.AWAITING:
            self.on_refused(ZooKeeperUnavailable(self.session.explain(self.session.options.connect_timeout)))

    def _join_queue(self) -> None:
        """Enter ZooKeeper's queue or the local one, or look first whether the lock is free."""
        if not self.waits:
            self._begin_peek()
            return
        queue = self._registry.local_queue(self.spec.parent)
        if queue.admit(self):
            self._local_queue = queue
            self._create()
            return
        permits = sys.maxsize if self.spec.kind is nodes.Kind.READ else self.spec.limit or 1
        waiters = queue.waiting - permits
        if self._are_too_many(waiters):
            self._conclude_busy(Busy(waiters))
            return
        self._local_queue = queue
        queue.append(self)
        self._phase = Phase.LOCAL_QUEUE
        self.has_position = True
        self.wait.report_queued()
        self._search_deadlock()

    def on_admitted(self) -> None:
        """Enter ZooKeeper's queue: the local queue has admitted this contender."""
        self._run(self._create if self.session.connected else self._await_session)

    def _are_too_many(self, waiters: int) -> bool:
        return not self.wait.is_accepted and self.spec.max_waiters is not None and waiters >= self.spec.max_waiters

    # --- peek, if it does not wait --------------------------------------------------------------------------------

    def _begin_peek(self) -> None:
        self._phase = Phase.PREPARING
        self._forget_replies()  # it may peek again, after a loss of the connection
        drive(self._peek(), self._on_peeked, self.guard)

    def _peek(self) -> Story[order.Queue | None]:
        """Return the queue, with a newcomer at its end; None if there is none."""
        try:
            listed: ListedNames = yield partial(self._registry.list_names, self.spec.parent)
        except NodeMissing:
            return None
        queue = listed.queue.with_newcomer(NEWCOMER, self.spec.kind)
        holds = operator_hold.holds_ahead(queue, NEWCOMER)
        if holds and not self.waits and not self._is_free(queue):
            checked = yield from HoldCheck(self.session.gateway, self.spec.key, self.spec.parent).run(holds)
            queue = queue.without(checked.ended)
            if not self._is_free(queue):
                self._operator_hold, self.refusal = checked.first, checked.refusal
        return queue

    def _is_free(self, queue: order.Queue) -> bool:
        return isinstance(order.verdict(queue, NEWCOMER, self.spec.kind, self.spec.limit or 1), order.Granted)

    def _on_peeked(self, queue: order.Queue | ZkLockError | None) -> None:
        """Create the znode if the lock is free. Otherwise read the holder, for the message of the error."""
        if isinstance(queue, ZkLockError):
            self._on_error(queue)
        elif queue is None:
            self._create_directory()
        elif self._is_free(queue):
            self._create()
        else:
            self._give_up(queue, Busy())

    def _give_up(self, queue: order.Queue, busy: Busy) -> None:
        """Leave the queue instead of waiting, and read the holder for the error, unless an operator hold is known."""
        if self._operator_hold is not None:
            self._conclude_busy(busy)
            return
        self.busy = busy
        if self._own.node is not None:
            self._delete()  # first, so that no contender waits for it meanwhile

        def on_read(reply: NodeReply) -> None:
            self._ahead = reply if isinstance(reply, Node) else None
            self._conclude_busy(busy)

        self.session.gateway.read(f"{self.spec.parent}/{queue[0].name}", on_read)  # no guard: any reply ends the wait

    def _conclude_busy(self, busy: Busy) -> None:
        self.has_position = True
        self._conclude(busy)
        self._abandon()

    # --- create the znode -----------------------------------------------------------------------------------------

    def _create(self) -> None:
        """Create the znode and list the queue."""
        if self._own.creates >= MAX_CREATES:
            why = f"The queue of {self.spec.key!r} never showed the znode after {MAX_CREATES} creates."
            self.on_refused(ZooKeeperUnavailable(f"{why} Does another program delete it?"))
            return
        self._forget_replies()
        prefix, data = self._begin_create()
        on_created = self.guard(self._on_created)
        on_listed = self.guard(self._on_listed)
        try:
            self._registry.create_and_list(self.spec.parent, prefix, self._own.guid, data, on_created, on_listed)
        except TooManyLocks as error:
            self.on_refused(error)

    def _begin_create(self) -> tuple[str, bytes]:
        """Return the name of the new znode, without its sequence number, and its data."""
        # A new guid for each create: a znode with this guid was created in this session, by this create.
        guid = nodes.new_guid(nodes.Mark.REPLACEABLE if self.spec.min_hold else nodes.Mark.OWN)
        guid = guid.replace("-", "") if self.spec.compat == "kazoo" else guid
        self._own = OwnNode(guid, clock.now(), self._own.creates + 1)
        self._phase = Phase.CREATING
        return nodes.prefix(guid, self.spec.kind, self.spec.compat), self._payload().encode()

    def _payload(self) -> Payload:
        spec, caller = self.spec, self.caller
        return Payload(
            guid=self._own.guid,
            host=socket.gethostname(),
            pid=os.getpid(),
            thread=caller.thread,
            what=caller.what,
            since=datetime.now(UTC).isoformat(timespec="milliseconds"),
            template=spec.template,
            about=caller.about,
            limit=spec.limit or 0,
            owner=caller.owner,
            max_hold=round((spec.max_hold or 0.0) * 1000),
            warn_after=round((spec.warn_after or 0.0) * 1000),
            session_timeout=round(self.session.timeout * 1000),
            lasts=spec.lasts,
        )

    def _on_created(self, reply: NodeReply) -> None:
        if isinstance(reply, Node):
            self._own.node = reply
            self._phase = Phase.LISTING
            if self._own.lists_again:
                self._list()
            return
        if isinstance(reply, INTERRUPTED):  # a session that is being closed lives on if its leader dies
            self._phase = Phase.SEARCHING
            return
        self._registry.discard(self._own.guid)  # the create was refused, so there is no znode
        if isinstance(reply, NodeMissing):
            self._create_directory()
        else:
            self.on_refused(reply)

    def _create_directory(self) -> None:
        """Create the directory, then the znode."""
        self._phase = Phase.PREPARING
        gateway, lasting = self.session.gateway, self.spec.compat == "kazoo"
        guarded = self.guard(self._on_prepared)

        def on_prepared(reply: WriteReply) -> None:
            if self._phase is Phase.GONE and not lasting:  # servers keep a container that never had a child
                gateway.delete(self.spec.parent)
            guarded(reply)

        gateway.ensure_path(self.spec.parent, on_prepared, lasting=lasting)

    def _on_prepared(self, reply: WriteReply) -> None:
        if reply is None:
            self._create()  # if the server has deleted the empty directory in between, this creates it again
        else:
            self._on_error(reply)

    def _search(self) -> None:
        """Search the znode by its guid: the create got no reply, or one with a path that the queue does not show."""
        self._phase = Phase.SEARCHING
        self._forget_replies()  # a request of an earlier search may still be answered
        drive(self._find(), self._on_searched, self.guard)

    def _find(self) -> Story[Node | None]:
        parent = self.spec.parent
        try:
            listed: ListedNames = yield partial(self._registry.list_names, parent, after_sync=True)
            path = listed.path_of(parent, self._own.guid)
            node: Node | None = None if path is None else (yield partial(self.session.gateway.read, path))
        except NodeMissing:
            return None
        return node

    def _on_searched(self, node: Node | ZkLockError | None) -> None:
        if isinstance(node, ZkLockError):
            self._on_error(node)
        elif node is not None and node.owner == self.session.session_id:
            self._own.node = node
            self._list()
        else:
            self._registry.discard(self._own.guid)
            self._create()

    # --- list the queue, and watch the predecessors ---------------------------------------------------------------

    def _list(self, *, after_sync: bool = False) -> None:
        self._phase = Phase.LISTING
        self._registry.list_names(self.spec.parent, self.guard(self._on_listed), after_sync=after_sync)

    def _on_listed(self, reply: ListingReply) -> None:
        """Apply the rule to the queue if it is that after the create."""
        if self._phase is Phase.CREATING:
            self._own.lists_again = True  # that of an earlier connection, if the create was sent on the next one
        if self._phase is not Phase.LISTING or self._own.node is None or isinstance(reply, INTERRUPTED):
            return  # the create has failed, or it lists again when it is connected
        if isinstance(reply, NodeMissing):
            self._on_absent()
        elif isinstance(reply, ZkError):
            self.on_refused(reply)
        else:
            self._apply_rule(reply, self._own.node.name)

    def _apply_rule(self, listed: ListedNames, name: str) -> None:
        """Hold the lock, wait, or leave; `name` is that of its znode."""
        try:
            queue = listed.queue
        except UnreadableQueue as error:
            self.on_refused(error)
            return
        verdict = order.verdict(queue, name, self.spec.kind, self.spec.limit or 1)
        if isinstance(verdict, order.Absent):
            self._on_absent()
            return
        self.has_position = True
        self._own.creates = 0
        if queue.stale_marker:
            self.session.gateway.delete(f"{self.spec.parent}/{queue.stale_marker}")
        if isinstance(verdict, order.Granted):
            self._grant_if_proven()
            return
        holds = operator_hold.holds_ahead(queue, name)
        if holds:
            check = HoldCheck(self.session.gateway, self.spec.key, self.spec.parent).run(holds)
            drive(check, partial(self._on_holds_checked, queue, name, verdict), self.guard)
            return
        self._operator_hold = None
        self._wait_or_give_up(queue, name, verdict)

    def _on_absent(self) -> None:
        """Search the znode: the queue does not show it."""
        self._forget_replies()
        self._own.unwatch()
        self._own.node = None
        self._search()

    def _on_holds_checked(
        self, queue: order.Queue, name: str, verdict: order.WaitFor, checked: HoldCheck | ZkLockError
    ) -> None:
        if isinstance(checked, ZkLockError):
            return  # it lists again when it is connected
        if checked.ended:
            self._list()
            return
        self._operator_hold, self.refusal = checked.first, checked.refusal
        self._wait_or_give_up(queue, name, verdict)
        seconds = checked.next_check(operator_hold.holds_to_end(queue, name, verdict.children))
        if seconds is not None and self._phase is Phase.QUEUED:
            self._call_later(seconds, self.on_ahead_changed)

    def _wait_or_give_up(self, queue: order.Queue, name: str, verdict: order.WaitFor) -> None:
        waiters = order.waiters_ahead(queue, name, self.spec.limit or 1)
        if not self.waits or self._are_too_many(waiters):
            self._give_up(queue, Busy(waiters if self.waits else None))
        else:
            self.wait.is_accepted = True
            self._phase = Phase.QUEUED
            if self._predecessors is None:
                self._predecessors = Predecessors(self)
            # Before its predecessors: then an event about them proves that the znode was there. It costs no round trip.
            if self._own.watch is None:
                self._watch()
            self._predecessors.wait_for(verdict)
            self._search_deadlock()

    def on_ahead_read(self, node: Node) -> None:
        """The data of a predecessor were read."""
        self._ahead = node
        self.wait.report_queued()

    def on_ahead_changed(self, *, is_first: bool = False) -> None:
        """
        List the queue again: a predecessor is gone, or a limit or an operator hold has changed.

        With `is_first`, nobody is ahead any more, and the lock is granted without another listing.
        """
        if self._phase is not Phase.QUEUED:
            return
        # The server sends watch events in order. If the znode had been deleted before, its watch would have told so.
        if is_first and self._own.watch is not None and self._own.watch.is_set:
            self._grant_if_proven()
        else:
            self._list()

    # --- deadlocks --------------------------------------------------------------------------------------------------

    def _search_deadlock(self) -> None:
        """Begin to look for a deadlock, unless its owner holds no other lock."""
        wait = self.wait
        if wait.held is not None and wait.since is not None and wait.search is None:
            wait.search = DeadlockSearch(self, wait.held, wait.since)

    @property
    def queued_node(self) -> Node | None:
        """Its znode while it waits in ZooKeeper's queue."""
        return self._own.node if self._phase is Phase.QUEUED else None

    def admit_now(self) -> None:
        """Enter ZooKeeper's queue, where others see that it waits, even if many of this process wait there."""
        if self._phase is Phase.LOCAL_QUEUE and self._local_queue is not None:
            self._local_queue.admit_now(self)

    def end_deadlock(self, checks: Sequence[Check], error: LockDeadlock) -> None:
        """Delete its znode and conclude with this error, in one transaction with these checks. Wait on if one fails."""
        if self._phase is Phase.QUEUED and self._own.node is not None:
            self._phase = Phase.LISTING
            self._own.unwatch()  # or the delete would look like that of another session
            operations = (*checks, Delete(path=self._own.node.path))
            on_deleted = self.guard(partial(self._on_deadlock_ended, error))
            self._run(self.session.gateway.commit, operations, on_deleted)

    def _on_deadlock_ended(self, error: LockDeadlock, reply: WriteReply) -> None:
        if reply is None:
            logger.warning("a deadlock has ended: %s", error, about=self.caller.about, extra={"lock": self.spec.key})
            self._registry.discard(self._own.guid)
            self._own.node = None
            self._conclude(error)
            self._abandon()
        elif not isinstance(reply, INTERRUPTED):
            if not isinstance(reply, (NodeMissing, Outdated)):
                self.wait.end_search()  # ZooKeeper refuses it, and would do so again
            self._list()
        # Else it lists when it is connected. If its znode is gone then, that is no proof of the deadlock.

    # --- watch its znode ------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Read and watch the znode: another session may write a release request to it, or delete it."""
        own = self._own
        own.unwatch()
        if own.node is None:
            return

        def on_read(reply: NodeReply) -> None:
            if isinstance(reply, NodeMissing):
                self._on_missing()
            elif isinstance(reply, Node):
                if own.watch is not None:
                    own.watch.is_set = True
                self._on_own_read(reply)
            elif self._grant is None:
                self._on_error(reply)

        def on_event(deleted: bool) -> None:
            if deleted:
                self._on_missing()
            else:
                self._watch()

        read = self.session.gateway.read
        own.watch = read(own.node.path, self.guard(on_read), self.guard(on_event))

    def _on_missing(self) -> None:
        """Another session has deleted the znode."""
        if self._own.node is None:
            return
        self._forget_node()
        if self._grant is not None:
            self._grant.lose(troubles.ZNODE_DELETED)
        else:
            self._create()

    def _forget_node(self) -> None:
        """Forget the znode: it was deleted, or its session is over."""
        self._forget_replies()
        self._own.unwatch()
        if self._own.node is not None:
            self._registry.heartbeat.remove(self._own.node.path)
        self._own.node = None
        self._registry.discard(self._own.guid)

    # --- grant ----------------------------------------------------------------------------------------------------

    def _grant_if_proven(self) -> None:
        """
        Hold the lock at once if no heartbeat is due. Else have a quorum confirm the session and the znode first.

        A waiter sends no heartbeats. After a long wait its lease is over, or would be soon after the grant.
        """
        if self._predecessors is not None:
            self._predecessors.forget()
        if not self.session.suspect and self._registry.heartbeat.due_in > 0:
            self._hold()
        else:
            self._phase = Phase.PROVING
            self._prove()

    def _prove(self) -> None:
        """Ask a quorum, and ask again after a pause: a late reply may not extend the lease."""
        if self._phase is not Phase.PROVING or self._own.node is None:
            return
        self._call_later(self.session.timeout * BEAT_SHARE, self._prove)
        self.session.gateway.quorum_check([self._own.node.path], self.guard(self._on_proven))

    def _on_proven(self, reply: str | ZkError | None) -> None:
        if isinstance(reply, str):
            self._on_missing()
        elif isinstance(reply, ZkError):
            self._on_error(reply)
        elif self._phase is Phase.PROVING and not self.session.suspect and self.session.lease.valid:
            self._hold()

    def _hold(self) -> None:
        node = self._own.node
        if node is None:
            return
        self._phase = Phase.HOLDING
        grant = self._grant = Grant(self.session, self.spec.key, node.path, node.czxid, self.spec.kind)
        grant.what, grant.about, grant.template = self.caller.what, self.caller.about, self.spec.template
        self._registry.heartbeat.add(node.path, partial(self._run, self._on_missing))
        self._call_later(WATCH_SELF_AFTER, self._watch)  # until then, a watch of the time in the queue stays
        self._conclude(grant)
        queue, self._local_queue = self._local_queue, None
        if queue is not None:
            queue.remove(self, granted=True)

    def _conclude(self, outcome: Outcome) -> None:
        on_outcome = self.wait.on_outcome
        self.wait.end()
        if on_outcome is not None:
            on_outcome(outcome)

    # --- while it holds the lock ----------------------------------------------------------------------------------

    def describe(self, fields: Mapping[str, Any], done: Callable[[], object] | None = None) -> None:
        """
        Write these fields of the payload, for the others in the queue, unless it has a release request.

        `done` is called when they are written. A write that fails is not repeated.
        """
        node = self._own.node
        payload = Payload.decode(node.data) if node is not None and self._phase is Phase.HOLDING else None
        if node is None or payload is None or payload.release_request:
            return

        def on_written(reply: NodeReply) -> None:
            if isinstance(reply, Node):
                self._own.node = reply
                if done is not None:
                    done()

        data = replace(payload, **fields).encode()
        self.session.gateway.write(node.path, data, node.version, self.guard(on_written))

    def _on_own_read(self, node: Node) -> None:
        """Receive a release request, and describe the grant a little later."""
        own, grant = self._own.node, self._grant
        if own is None:
            return
        if node.version > own.version and Payload.decode(node.data) is not None:  # else Curator has written over it
            self._own.node = node
        if grant is not None:
            interventions.read_request(grant, node)
            if not grant.described and not self._timer.pending:
                self._call_later(DESCRIBE_GRANT_AFTER, partial(self._describe_grant, grant))

    def _describe_grant(self, grant: Grant) -> None:
        """Write the time of the grant, for people who look at the queue. ZooKeeper only knows that of the create."""

        def on_written() -> None:
            grant.described = True

        self.describe({"waited": self.waited(grant.since)}, on_written)

    # --- out of the queue ---------------------------------------------------------------------------------------

    def on_refused(self, error: ZkLockError) -> None:
        """Give up with this error: ZooKeeper has refused something, or cannot be reached."""
        if not error.lock:
            error.lock = self.spec.key
        if self._grant is not None:
            self._grant.lose(str(error))  # before its znode is deleted
        self._conclude(error)
        self._abandon()

    def _on_error(self, error: ZkLockError) -> None:
        """Give up, unless the connection was lost: the contender goes on when it is connected."""
        if not isinstance(error, INTERRUPTED):
            self.on_refused(error)
        elif self._phase is Phase.PREPARING:
            self._await_session()

    def on_failure(self, error: Exception) -> None:
        """Give up after a failure of this code. A contender that stays in the queue would block it."""
        self.on_refused(ZkLockError(f"The lock protocol failed: {error!r}."))

    def _when_confirmed(self, done: Callable[[bool], object]) -> None:
        if self._phase is Phase.GONE:
            done(self.refusal is None)
        else:
            self._done = (*self._done, done)

    def _abandon(self) -> None:
        if self._grant is not None:
            self._grant.release()
        else:
            self.wait.end()
        if self._phase is Phase.DELETING:
            return
        self._timer.cancel()
        if self._phase is not Phase.GONE and self._own.guid and self._own.guid in self._registry.guids:
            self._delete()
        else:
            self._forget_replies()
            self._on_gone()

    def _delete(self) -> None:
        """Delete the znode. If its path is unknown, it is searched by its guid."""
        self._phase = Phase.DELETING
        self._forget_replies()
        self._own.unwatch()
        node, self._own.node = self._own.node, None
        path: str | None = None
        hold: Create | None = None
        if node is not None:
            path = node.path
            self._registry.heartbeat.remove(path)
            if self.spec.min_hold and self._grant is not None and self._grant.why_invalid() is None:
                hold = successor(self.session, self.spec, self.caller, self._grant, node)
        Deletion(
            self._registry,
            self.spec.key,
            self.spec.parent,
            self._own.guid,
            path,
            self._on_gone,
            hold,
            self.caller.about,
            self._grant,
        ).send()

    def _on_gone(self, error: Exception | None = None) -> None:
        self._phase = Phase.GONE
        self.refusal = error if isinstance(error, RequestRefused) else None
        self.session.observers.pop(self, None)
        queue, self._local_queue = self._local_queue, None
        if queue is not None:
            queue.remove(self)
        callbacks, self._done = self._done, ()
        for done in callbacks:
            done(self.refusal is None)

    # --- replies --------------------------------------------------------------------------------------------------

    def guard(self, callback: Callable[[_Reply], object]) -> Callable[[_Reply], None]:
        """
        Return a callback that calls `callback`, unless the contender has moved on by then.

        Each request gets one reply or one error, normally before the next connection is reported. But a request that
        was sent just when the connection broke may be answered on the next one. So a contender starts a new generation
        with each create, search and listing that it repeats, and when it leaves or gets a new session. A reply to a
        request of an earlier generation says nothing about the present, so it is ignored.
        """
        return partial(self._run, callback, generation=self._generation)

    def _run(self, callback: Callable[..., object], *args: Any, generation: int | None = None) -> None:
        """
        Call `callback`, unless it belongs to an earlier `generation`.

        If it fails, give up. Otherwise the contender would stay in the queue, do nothing more, and block all others
        behind it.
        """
        if generation is not None and generation != self._generation:
            return
        try:
            callback(*args)
        except Exception as error:
            key = self.spec.key
            logger.exception("the protocol failed for lock %r", key, about=self.caller.about, extra={"lock": key})
            self.on_failure(error)

    def _forget_replies(self) -> None:
        """Start a new generation: ignore the replies that are outstanding, and watch no predecessor."""
        self._generation += 1
        if self._predecessors is not None:
            self._predecessors.forget()

    def _call_later(self, seconds: float, call: Callable[[], object]) -> None:
        """Set the one timer of this contender."""
        self._timer.cancel()
        self._timer = self.session.loop.call_later(seconds, partial(self._run, call))

    # --- events of the session -------------------------------------------------------------------------------------

    def on_connected(self, *, resumed: bool) -> None:
        """Continue what the lost connection has interrupted."""
        if self._phase in (Phase.AWAITING, Phase.PREPARING):
            self._timer.cancel()
            self._join_queue()
        elif self._phase is Phase.SEARCHING:
            self._search()
        elif self._phase in (Phase.LISTING, Phase.QUEUED):
            self._forget_replies()  # the watches ended with the connection
            self._list(after_sync=True)
        elif self._phase is Phase.PROVING:
            self._prove()
        if self._own.watch is not None:
            self._watch()

    def on_session_lost(self) -> None:
        """Queue again, unless the lock was held: the znode is gone with its session."""
        if self._phase is Phase.LOCAL_QUEUE:
            return
        self._forget_node()
        if self._grant is not None:
            self._grant.lose(troubles.SESSION_OVER)
        elif self._phase is not Phase.GONE:
            self._await_session()

    def on_closed(self) -> None:
        """The session was closed, so a waiter would never be granted."""
        if self._grant is None:
            self.on_refused(ZooKeeperUnavailable(CLOSED))

    def on_suspect(self, reason: str) -> None:
        if self._grant is not None:
            self._grant.suspect(reason)

    def on_confirmed(self) -> None:
        if self._grant is not None:
            self._grant.confirmed()

    def on_lease_over(self) -> None:
        if self._grant is not None:
            self._grant.lose(self.session.why_over)


class Predecessors:
    """
    Watches the predecessors that one contender waits for, and reports their changes to it.

    The rule of the lock says which they are. The contender decides what a change means.
    """

    def __init__(self, successor: Contender) -> None:
        self._gateway = successor.session.gateway
        self._parent = successor.spec.parent
        self._successor = successor
        self._watches: dict[str, Watch] = {}  # by name
        self._limit: Watch | None = None  # of the directory, whose data are written with the limit
        self._is_last = False  # of the verdict, see `order.WaitFor`

    def wait_for(self, verdict: order.WaitFor) -> None:
        """Watch these predecessors, and no others."""
        self._is_last = verdict.is_last
        for name in self._watches.keys() - set(verdict.children):
            self._forget(name)
        if verdict.depends_on_limit and self._limit is None:
            self._watch_limit()
            return
        for name in verdict.children:
            if name not in self._watches:
                self._watch(name)

    def forget(self) -> None:
        """Watch nothing."""
        for name in list(self._watches):
            self._forget(name)
        watch, self._limit = self._limit, None
        if watch is not None:
            watch.cancel()

    def _watch(self, name: str) -> None:
        def on_read(reply: NodeReply) -> None:
            if isinstance(reply, Node):
                self._successor.on_ahead_read(reply)
            elif isinstance(reply, NodeMissing):
                # Another znode may have its position since the listing: that of a minimum hold.
                self._forget(name)
                self._successor.on_ahead_changed()
            elif not isinstance(reply, INTERRUPTED):  # else the queue is listed again when connected
                self._successor.on_refused(reply)

        def on_event(deleted: bool) -> None:
            self._forget(name)
            if deleted:
                self._successor.on_ahead_changed(is_first=self._is_last)
            else:
                self._watch(name)  # for its new data, and because a watch is sent once

        watch = self._gateway.read(
            f"{self._parent}/{name}", self._successor.guard(on_read), self._successor.guard(on_event)
        )
        if watch is not None:
            self._watches[name] = watch

    def _watch_limit(self) -> None:
        """Watch the directory, whose data are written with each change of the limit. Then list the queue again."""

        def on_read(reply: NodeReply) -> None:
            if isinstance(reply, ZkError) and not isinstance(reply, (NodeMissing, *INTERRUPTED)):
                self._successor.on_refused(reply)  # without a watch, no change would be noticed

        def on_event(deleted: bool) -> None:
            self._limit = None
            self._successor.on_ahead_changed()

        self._limit = self._gateway.read(self._parent, self._successor.guard(on_read), self._successor.guard(on_event))
        self._successor.on_ahead_changed()

    def _forget(self, name: str) -> None:
        watch = self._watches.pop(name, None)
        if watch is not None:
            watch.cancel()
