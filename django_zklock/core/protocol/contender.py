"""
The contender: it enters the queue of a lock, waits for its turn, holds the lock and leaves.

Its way to the grant is one story (`protocol.story`): `Contender.new_story`. If it may wait for the lock, it creates its
znode and lists the queue, perhaps after a wait in the local queue of its process. Otherwise it peeks whether the lock
is free, so a try that fails writes nothing. The rule (`queue.order`) knows the kind of lock, and says for whom it
waits. The contender watches these, is granted the lock, and deletes its znode.

After each loss of the connection, or of its znode, the story begins again. It first finds what is there: so it needs no
branches for where it was.

It never blocks. The caller (a thread, greenlet or coroutine) waits for the outcome elsewhere (`execution.waiters`). So
an exception in the caller never interrupts the protocol: the caller calls `abandon`, and the contender cleans up.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

from django_zklock.core import clock
from django_zklock.core.errors import ZkLockError, ZooKeeperUnavailable
from django_zklock.core.log import Logger
from django_zklock.core.protocol.contender_info import ContenderInfo
from django_zklock.core.protocol.grant import Grant
from django_zklock.core.protocol.local_queue import LocalQueue
from django_zklock.core.protocol.operator_holds import HoldCheck, successor
from django_zklock.core.protocol.registry import Deletion, ListedNames, Registry, Successor
from django_zklock.core.protocol.spec import Caller, QueueSpec
from django_zklock.core.protocol.story import CLOSED, Story, StoryObserver
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
from django_zklock.core.zk.gateway import Callback, Node, NodeReply, WriteReply
from django_zklock.core.zk.loop import NEVER, Timer
from django_zklock.core.zk.multi import Check, Delete
from django_zklock.core.zk.session import Session

logger = Logger("django_zklock.locks")

NEWCOMER = "me"  # stands for the name of the znode that a contender that peeks does not have yet
MAX_CREATES = 50  # in a row; if the queue has shown none of these znodes, the contender gives up
WATCH_SELF_AFTER = 0.25  # seconds of holding; a shorter hold of a contender that did not wait costs no watch
DESCRIBE_GRANT_AFTER = 0.75  # seconds after that watch; a shorter hold does not write the time of its grant


@dataclass(frozen=True, slots=True)
class Busy:
    """The lock is not free, and this contender does not wait; or too many others wait."""

    waiters: int | None = None
    """How many others wait, if `max_waiters` is the reason."""


Outcome: TypeAlias = Grant | Busy | ZkLockError
HeldGrants: TypeAlias = Callable[[], Mapping[Grant, bool]]
"""Returns the locks of an owner, and whether another thread may end each."""


class WaitWatcher(Protocol):
    """Watches the wait of one contender whose owner may hold other locks; on the protocol's thread."""

    def stop(self) -> None:
        """The wait is over."""


wait_watchers: Final[list[Callable[[Contender, HeldGrants, float], WaitWatcher]]] = []
"""Called with a contender that begins to wait, the locks of its owner, and since when it waits."""


@dataclass(slots=True, eq=False)
class CallerWait:
    """The wait of a caller for the outcome of its contender."""

    on_outcome: Callable[[Outcome], object] | None
    _: KW_ONLY
    since: float | None = None  # when it began, on clock.now(); None: the contender serves other callers
    deadline: float | None = None  # when the caller gives up, on clock.now()
    on_queued: Callable[[], object] | None = None  # called once if it has to wait
    held: HeldGrants | None = None  # the locks of its owner; None: it has none
    is_accepted: bool = False  # `max_waiters` no longer refuses it
    watching: tuple[WaitWatcher, ...] = ()  # while it waits, and its owner may hold other locks

    def report_queued(self) -> None:
        """Tell the caller, once, that it has to wait."""
        on_queued, self.on_queued = self.on_queued, None
        if on_queued is not None:
            on_queued()

    def end(self) -> None:
        """Forget the caller, and have nobody watch its wait."""
        self.on_outcome = self.on_queued = None
        if self.held is not None:
            self.end_watch()

    def end_watch(self) -> None:
        """Have nobody watch the wait any more."""
        watching, self.watching, self.held = self.watching, (), None
        for watcher in watching:
            watcher.stop()


@dataclass(slots=True, eq=False, repr=False)  # slots: thousands may wait in a process, and each saves 1 kB
class Contender(StoryObserver):
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
    guid: str = ""  # of its last znode; empty before the first create

    _story: Story[Any] | None = None
    _ahead: Node | None = None  # the contender just ahead, or the holder if it is busy; None if it was not read
    _operator_hold: Node | None = None  # an operator hold ahead, if there is one
    _node: Node | None = None  # its znode, as last read or written, once it is known to exist
    _creates: int = 0  # since the queue last showed a znode of the contender
    _sent_at: float = 0.0  # when its create was sent, on clock.now()
    _watch: Watch | None = None  # of its znode
    _registry: Registry = field(init=False)  # set when it begins
    _timer: Timer = NEVER
    _local_queue: LocalQueue | None = None  # while it waits, here or in ZooKeeper
    _predecessors: Predecessors | None = None  # once it has waited for some
    _grant: Grant | None = None
    _has_left: bool = False  # its znode is gone, or is being deleted
    _is_gone: bool = False  # nothing is left of it, as far as is known
    _done: tuple[Callable[[bool], object], ...] = ()  # called when its release is confirmed

    @property
    def is_waited_for(self) -> bool:
        """Whether a caller waits for its outcome; from any thread."""
        return self.waits and self.wait.since is not None and self.wait.on_outcome is not None

    @property
    def deadline(self) -> float | None:
        """When the caller gives up, on `clock.now()`."""
        return self.wait.deadline

    @property
    def in_local_queue(self) -> bool:
        """Whether it waits in the local queue of this process; from any thread."""
        queue = self._local_queue
        return queue is not None and queue.has(self)

    @property
    def ahead(self) -> ContenderInfo | None:
        """An operator hold ahead, or else the contender just ahead; None if that is not known. From any thread."""
        return self._describe(self._operator_hold or self._ahead)

    def info(self, grant: Grant, **fields: Any) -> ContenderInfo | None:
        """Describe itself as the holder since this grant, with these fields of its payload. From any thread."""
        node = self._node
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
        return f"<contender for {self.spec.key!r}>"

    # --- from any thread ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to enter the queue; return at once."""
        self.session.post(self.attempt, self._begin)

    def abandon(self) -> None:
        """Leave the queue, at any moment. Nothing of this contender stays in ZooKeeper."""
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
        return max(1, round((granted_at - self._sent_at) * 1000))

    # --- wait for a session, and for a place in the queue ---------------------------------------------------------

    def _begin(self) -> None:
        if self._has_left:
            return  # it was abandoned before
        if self.session.closing:
            self.on_closed()  # the other contenders were notified before this one began
            return
        self._registry = self.session.attached(Registry)
        self.wait.is_accepted = self.has_position
        self.session.observers[self._registry] = None  # first: a delete ends before its contender hears of an event
        self.session.observers[self] = None
        if self.session.connected:
            self.restart()
        else:
            self.on_interrupted()

    def on_interrupted(self) -> None:
        """Wait for a session; for a short time only if nothing has come of the attempt so far."""
        is_new = not self.has_position and self.guid not in self._registry.guids
        if is_new and not self._has_left and not self._timer.pending:
            self._call_later(self.session.options.connect_timeout, self._on_no_session)

    def _on_no_session(self) -> None:
        if not self.session.connected:
            self.on_refused(ZooKeeperUnavailable(self.session.explain(self.session.options.connect_timeout)))

    def restart(self) -> None:
        """Enter ZooKeeper's queue or the local one, or look first whether the lock is free."""
        self._timer.cancel()
        if not self._has_left and (not self.waits or self._is_admitted()):
            StoryObserver.restart(self)

    def _is_admitted(self) -> bool:
        """Return whether it may enter ZooKeeper's queue. Otherwise it waits in the local queue, or gives up."""
        queue = self._local_queue or self._registry.local_queue(self.spec.parent)
        if queue.admit(self):
            self._local_queue = queue
            return True
        permits = sys.maxsize if self.spec.kind is nodes.Kind.READ else self.spec.limit or 1
        waiters = queue.waiting - permits
        if self._are_too_many(waiters):
            self._conclude_busy(Busy(waiters))
            return False
        self._local_queue = queue
        queue.append(self)
        self.has_position = True
        self.wait.report_queued()
        self._begin_watch()
        return False

    def on_admitted(self) -> None:
        """Enter ZooKeeper's queue: the local queue has admitted this contender."""
        if self.session.connected:
            self.attempt(self.restart)

    def _are_too_many(self, waiters: int) -> bool:
        return not self.wait.is_accepted and self.spec.max_waiters is not None and waiters >= self.spec.max_waiters

    # --- the story ------------------------------------------------------------------------------------------------

    def new_story(self) -> Story[None]:
        """Wait for the lock, until it is granted."""
        if not self.waits and self.guid not in self._registry.guids:
            yield from self._peek()
        while not self._has_left and self._grant is None:
            node, listed = yield from self._queue_up()
            yield from self._finish_wait(node, listed)

    def _finish_wait(self, node: Node, listed: ListedNames) -> Story[None]:
        """Wait for its turn, and hold the lock."""
        if (yield from self._wait_for_turn(node, listed)):
            if (yield from self._is_proven(node)):
                self._hold(node)
            else:
                self._forget_node()

    def _peek(self) -> Story[None]:
        """Give up if the lock is not free, and write nothing."""
        try:
            listed: ListedNames = yield partial(self._registry.list_names, self.spec.parent)
        except NodeMissing:
            yield from self._create_directory()
            return
        queue = listed.queue.with_newcomer(NEWCOMER, self.spec.kind)
        holds = operator_hold.holds_ahead(queue, NEWCOMER)
        if holds and not self._is_free(queue):
            checked = yield from HoldCheck(self.session.gateway, self.spec.key, self.spec.parent).run(holds)
            queue = queue.without(checked.ended)
            self._operator_hold, self.refusal = checked.first, checked.refusal
        if not self._is_free(queue):
            self._give_up(queue, Busy())

    def _is_free(self, queue: order.Queue) -> bool:
        return isinstance(order.verdict(queue, NEWCOMER, self.spec.kind, self.spec.limit or 1), order.Granted)

    def _queue_up(self) -> Story[tuple[Node, ListedNames]]:
        """
        Return its znode, and the queue that shows it.

        A create without a reply, or one that the queue does not show, is searched by its guid first. A new guid for
        each create: a znode with this guid was created in this session, by this create.
        """
        parent, registry = self.spec.parent, self._registry
        while self._creates < MAX_CREATES:
            try:
                if self.guid in registry.guids:
                    node_and_queue = yield from self._find()
                    if node_and_queue is not None:
                        return node_and_queue
                    self._forget_node()
                prefix, data = self._begin_create()
                registry.add(self.guid, f"{parent}/{prefix}")
                on_created = partial(self._on_created, self.guid)
                node, listed = yield partial(registry.create_and_list, parent, prefix, self.guid, data, on_created)
                if isinstance(listed, ListedNames) and node.name in listed:
                    return node, listed
                if isinstance(listed, ZkError) and not isinstance(listed, NodeMissing):
                    raise listed
            except NodeMissing:
                self._forget_node()
                yield from self._create_directory()
        why = f"The queue of {self.spec.key!r} never showed the znode after {MAX_CREATES} creates."
        raise ZooKeeperUnavailable(f"{why} Does another program delete it?")

    def _find(self) -> Story[tuple[Node, ListedNames] | None]:
        """Search its znode by the guid. A sync makes the listing final for a create without a reply."""
        parent, node = self.spec.parent, self._node
        listed: ListedNames = yield partial(self._registry.list_names, parent, after_sync=True)
        path = listed.path_of(parent, self.guid)
        if path is None:
            return None
        if node is None or node.path != path:
            node = yield partial(self.session.gateway.read, path)
        if node is None or node.owner != self.session.session_id:
            return None
        self._node = node
        return node, listed

    def _begin_create(self) -> tuple[str, bytes]:
        """Return the name of the new znode, without its sequence number, and its data."""
        guid = nodes.new_guid(nodes.Mark.REPLACEABLE if self.spec.min_hold else nodes.Mark.OWN)
        self.guid = guid.replace("-", "") if self.spec.compat == "kazoo" else guid
        self._creates += 1
        self._sent_at = clock.now()
        return nodes.prefix(self.guid, self.spec.kind, self.spec.compat), self._payload().encode()

    def _on_created(self, guid: str, node: Node) -> None:
        """Know the path of its znode at once: if its caller gives up now, it need not be searched."""
        if guid == self.guid and not self._has_left:
            self._node = node

    def _payload(self) -> Payload:
        spec, caller = self.spec, self.caller
        return Payload(
            guid=self.guid,
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

    def _create_directory(self) -> Story[None]:
        gateway, lasting, parent = self.session.gateway, self.spec.compat == "kazoo", self.spec.parent

        def ensure(done: Callback[WriteReply]) -> None:
            def on_created(reply: WriteReply) -> None:
                if self._has_left and not lasting:  # servers keep a container that never had a child
                    gateway.delete(parent)
                done(reply)

            gateway.ensure_path(parent, on_created, lasting=lasting)

        yield ensure

    def _wait_for_turn(self, node: Node, listed: ListedNames) -> Story[bool]:
        """Wait for its turn. Return False if the queue does not show its znode, or if it has given up."""
        while True:
            queue = listed.queue
            verdict = order.verdict(queue, node.name, self.spec.kind, self.spec.limit or 1)
            if isinstance(verdict, order.Absent):
                return False
            self.has_position = True
            self._creates = 0
            if queue.stale_marker:
                self.session.gateway.delete(f"{self.spec.parent}/{queue.stale_marker}")
            if isinstance(verdict, order.Granted):
                return True
            have_ended, pause = yield from self._check_holds(queue, node.name, verdict)
            if not have_ended:
                if self._gives_up(queue, node.name):
                    return False
                if (yield partial(self._watch_queue, verdict, pause)):
                    return True
            try:
                listed = yield partial(self._registry.list_names, self.spec.parent)
            except NodeMissing:
                return False

    def _gives_up(self, queue: order.Queue, name: str) -> bool:
        """Give up if the caller does not wait, or if too many others do. Else it may wait from now on."""
        waiters = order.waiters_ahead(queue, name, self.spec.limit or 1)
        if not self.waits or self._are_too_many(waiters):
            self._give_up(queue, Busy(waiters if self.waits else None))
        self.wait.is_accepted = True
        return self._has_left

    def _check_holds(
        self, queue: order.Queue, name: str, verdict: order.WaitFor
    ) -> Story[tuple[Collection[str], float | None]]:
        """End the operator holds ahead that are over. Return these, and the seconds until the next check, if any."""
        holds = operator_hold.holds_ahead(queue, name)
        if not holds:
            self._operator_hold = None
            return (), None
        checked = yield from HoldCheck(self.session.gateway, self.spec.key, self.spec.parent).run(holds)
        self._operator_hold, self.refusal = checked.first, checked.refusal
        return checked.ended, checked.next_check(operator_hold.holds_to_end(queue, name, verdict.children))

    def _watch_queue(self, verdict: order.WaitFor, pause: float | None, done: Callback[bool | ZkError]) -> None:
        """Call `done(True)` when it is the turn for certain, `done(False)` when the queue has to be listed again."""
        if self._predecessors is None:
            self._predecessors = Predecessors(self)
        # Before its predecessors: then an event about them proves that the znode was there. It costs no round trip.
        if self._watch is None:
            self._watch_node()
        self._predecessors.wait_for(verdict, pause, done)
        self._begin_watch()

    def _is_proven(self, node: Node) -> Story[bool]:
        """
        Have a quorum confirm the session and the znode, unless no heartbeat is due. Return False if it is gone.

        A waiter sends no heartbeats. After a long wait its lease is over, or would be soon after the grant. A late
        reply may not extend the lease.
        """
        if self._predecessors is not None:
            self._predecessors.forget()
        session = self.session
        is_proven = not session.suspect and self._registry.heartbeat.due_in > 0
        while not is_proven:
            missing = yield partial(session.gateway.quorum_check, [node.path])
            if missing is not None:
                return False
            is_proven = not session.suspect and session.lease.valid
        return True

    def _hold(self, node: Node) -> None:
        grant = self._grant = Grant(self.session, self.spec.key, node.path, node.czxid, self.spec.kind)
        grant.what, grant.about, grant.template = self.caller.what, self.caller.about, self.spec.template
        self._registry.heartbeat.add(node.path, partial(self.attempt, self._on_missing))
        self._call_later(WATCH_SELF_AFTER, self._watch_node)  # until then, a watch of the time in the queue stays
        self._conclude(grant)
        queue, self._local_queue = self._local_queue, None
        if queue is not None:
            queue.remove(self, granted=True)

    def conclude(self, outcome: Any) -> None:
        """Give up if the story has ended with an error."""
        if isinstance(outcome, ZkLockError):
            self.on_refused(outcome)

    def on_ahead_read(self, node: Node) -> None:
        """The data of a predecessor were read."""
        self._ahead = node
        self.wait.report_queued()

    @property
    def is_watched(self) -> bool:
        """Whether its znode was there when its watch was set, and the watch has told nothing since."""
        return self._watch is not None and self._watch.is_set

    # --- watchers of the wait ---------------------------------------------------------------------------------------

    def _begin_watch(self) -> None:
        """Have its wait watched, unless its owner holds no other lock."""
        wait = self.wait
        if wait.held is not None and wait.since is not None and not wait.watching:
            wait.watching = tuple(watcher(self, wait.held, wait.since) for watcher in wait_watchers)

    @property
    def queued_node(self) -> Node | None:
        """Its znode while it waits in ZooKeeper's queue."""
        is_queued = self._predecessors is not None and self._predecessors.are_waited_for
        return self._node if is_queued else None

    def admit_now(self) -> None:
        """Enter ZooKeeper's queue, where others see that it waits, even if many of this process wait there."""
        queue = self._local_queue
        if queue is not None and queue.has(self):
            queue.admit_now(self)

    def give_way(self, checks: Sequence[Check], error: ZkLockError, done: Callable[[], object]) -> None:
        """
        Delete its znode and conclude with this error, in one transaction with these checks. Wait on if one fails.

        `done` is called if it is carried out.
        """
        node = self.queued_node
        if node is not None:
            self.run(self._give_way(node, checks, error, done))

    def _give_way(
        self, node: Node, checks: Sequence[Check], error: ZkLockError, done: Callable[[], object]
    ) -> Story[None]:
        self._unwatch()  # or the delete would look like that of another session
        if self._predecessors is not None:
            self._predecessors.forget()
        try:
            yield partial(self.session.gateway.commit, (*checks, Delete(path=node.path)))
        except (NodeMissing, Outdated):
            pass
        except ZkError:
            self.wait.end_watch()  # ZooKeeper refuses it, and would do so again
        else:
            done()
            self._registry.discard(self.guid)
            raise error
        # If the connection is lost meanwhile and its znode is gone then, that is no proof that the checks were true.
        with suppress(NodeMissing):
            listed: ListedNames = yield partial(self._registry.list_names, self.spec.parent)
            yield from self._finish_wait(node, listed)
        yield from self.new_story()

    # --- its znode ------------------------------------------------------------------------------------------------

    def _watch_node(self) -> None:
        """Read and watch the znode: another session may write a release request to it, or delete it."""
        self._unwatch()
        node = self._node
        if node is None:
            return
        path = node.path

        def on_read(reply: NodeReply) -> None:
            if self._node is None or self._node.path != path:
                return
            if isinstance(reply, NodeMissing):
                self._on_missing()
            elif isinstance(reply, Node):
                if self._watch is not None:
                    self._watch.is_set = True
                self._on_own_read(reply)
            elif self._grant is None and not isinstance(reply, INTERRUPTED):
                self.on_refused(reply)

        def on_event(deleted: bool) -> None:
            if deleted:
                self._on_missing()
            else:
                self._watch_node()

        read = self.session.gateway.read
        self._watch = read(path, partial(self.attempt, on_read), partial(self.attempt, on_event))

    def _unwatch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()

    def _on_missing(self) -> None:
        """Another session has deleted the znode."""
        if self._node is None:
            return
        self._forget_node()
        if self._grant is not None:
            self._grant.lose(troubles.ZNODE_DELETED)
        else:
            self.restart()

    def _forget_node(self) -> None:
        """Forget the znode: it was deleted, or its session is over, or there was none."""
        self._unwatch()
        if self._node is not None:
            self._registry.heartbeat.remove(self._node.path)
        self._node = None
        self._registry.discard(self.guid)

    # --- while it holds the lock ----------------------------------------------------------------------------------

    def describe(self, fields: Mapping[str, Any], done: Callable[[], object] | None = None) -> None:
        """
        Write these fields of the payload, for the others in the queue, unless it has a release request.

        `done` is called when they are written. A write that fails is not repeated.
        """
        node = self._node
        payload = Payload.decode(node.data) if node is not None and self._grant is not None else None
        if node is None or payload is None or payload.release_request:
            return

        def on_written(reply: NodeReply) -> None:
            if isinstance(reply, Node) and self._node is not None:
                self._node = reply
                if done is not None:
                    done()

        data = replace(payload, **fields).encode()
        self.session.gateway.write(node.path, data, node.version, partial(self.attempt, on_written))

    def _on_own_read(self, node: Node) -> None:
        """Receive a release request, and describe the grant a little later."""
        own, grant = self._node, self._grant
        if own is None:
            return
        if node.version > own.version and Payload.decode(node.data) is not None:  # else Curator has written over it
            self._node = node
        if grant is not None:
            grant.read_request(node.data)
            if not grant.described and not self._timer.pending:
                self._call_later(DESCRIBE_GRANT_AFTER, partial(self._describe_grant, grant))

    def _describe_grant(self, grant: Grant) -> None:
        """Write the time of the grant, for people who look at the queue. ZooKeeper only knows that of the create."""

        def on_written() -> None:
            grant.described = True

        self.describe({"waited": self.waited(grant.since)}, on_written)

    # --- out of the queue ---------------------------------------------------------------------------------------

    def _give_up(self, queue: order.Queue, busy: Busy) -> None:
        """Leave the queue instead of waiting, and read the holder for the error, unless an operator hold is known."""
        if self._operator_hold is not None:
            self._conclude_busy(busy)
            return
        self.busy = busy
        self._withdraw()  # first, so that no contender waits for it meanwhile

        def on_read(reply: NodeReply) -> None:
            self._ahead = reply if isinstance(reply, Node) else None
            self._conclude_busy(busy)  # any reply ends the wait

        self.session.gateway.read(f"{self.spec.parent}/{queue[0].name}", partial(self.attempt, on_read))

    def _conclude_busy(self, busy: Busy) -> None:
        self.has_position = True
        self._conclude(busy)
        self._abandon()

    def _conclude(self, outcome: Outcome) -> None:
        on_outcome = self.wait.on_outcome
        self.wait.end()
        if on_outcome is not None:
            on_outcome(outcome)

    def on_refused(self, error: ZkLockError) -> None:
        """Give up with this error: ZooKeeper has refused something, or cannot be reached."""
        if not error.lock:
            error.lock = self.spec.key
        if self._grant is not None:
            self._grant.lose(str(error))  # before its znode is deleted
        self._conclude(error)
        self._abandon()

    def _when_confirmed(self, done: Callable[[bool], object]) -> None:
        if self._is_gone:
            done(self.refusal is None)
        else:
            self._done = (*self._done, done)

    def _abandon(self) -> None:
        if self._grant is not None:
            self._grant.release()
        else:
            self.wait.end()
        self._withdraw()

    def _withdraw(self) -> None:
        """Delete the znode, if there may be one. The call is idempotent."""
        if self._has_left:
            return
        self._has_left = True
        self.end()
        self._timer.cancel()
        if self._predecessors is not None:
            self._predecessors.forget()
        self._unwatch()
        node, self._node = self._node, None
        if not self.guid or self.guid not in self._registry.guids:
            self._on_gone()
            return
        path: str | None = None  # unknown: it is searched by its guid
        hold: Successor | None = None
        if node is not None:
            path = node.path
            self._registry.heartbeat.remove(path)
            if self.spec.min_hold and self._grant is not None and self._grant.why_invalid() is None:
                hold = successor(self.session, self.spec, self.caller, self._grant, node)
        Deletion(
            self._registry,
            self.spec.key,
            self.spec.parent,
            self.guid,
            path,
            self._on_gone,
            hold,
            self.caller.about,
            self._grant,
        ).send()

    def _on_gone(self, error: Exception | None = None) -> None:
        self._is_gone = True
        self.refusal = error if isinstance(error, RequestRefused) else None
        queue, self._local_queue = self._local_queue, None
        if queue is not None:
            queue.remove(self)
        callbacks, self._done = self._done, ()
        for done in callbacks:
            done(self.refusal is None)

    def _call_later(self, seconds: float, call: Callable[[], object]) -> None:
        """Set the one timer of this contender."""
        self._timer.cancel()
        self._timer = self.session.loop.call_later(seconds, partial(self.attempt, call))

    def attempt(self, call: Callable[..., object], *args: Any) -> None:
        """
        Make a call. If it fails, give up.

        Otherwise the contender would stay in the queue, do nothing more, and block all others behind it.
        """
        try:
            call(*args)
        except Exception as error:
            key = self.spec.key
            logger.exception("the protocol failed for lock %r", key, about=self.caller.about, extra={"lock": key})
            self.on_failure(error)

    # --- events of the session -------------------------------------------------------------------------------------

    def on_connected(self, *, resumed: bool) -> None:
        """Begin again. A holder watches its znode again: the watches ended with the connection."""
        if self._grant is not None:
            if self._watch is not None:
                self._watch_node()
        elif not self.in_local_queue:
            self._unwatch()
            if self._predecessors is not None:
                self._predecessors.forget()
            self.restart()

    def on_session_lost(self) -> None:
        """Queue again, unless the lock was held: the znode is gone with its session."""
        if self.in_local_queue:
            return
        self._forget_node()
        if self._grant is not None:
            self._grant.lose(troubles.SESSION_OVER)
        else:
            self.on_interrupted()

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
    """The watches of one waiter on those that it waits for. They stay while it lists the queue again."""

    __slots__ = ("_contender", "_done", "_gateway", "_is_last", "_limit", "_parent", "_timer", "_watches")

    def __init__(self, contender: Contender) -> None:
        self._gateway = contender.session.gateway
        self._parent = contender.spec.parent
        self._contender = contender
        self._watches: dict[str, Watch] = {}  # by name
        self._limit: Watch | None = None  # of the directory, whose data are written with the limit
        self._is_last = False  # of the verdict, see `order.WaitFor`
        self._done: Callback[bool | ZkError] | None = None  # of the present wait
        self._timer = NEVER  # for its end

    @property
    def are_waited_for(self) -> bool:
        """Whether the waiter waits for them now."""
        return self._done is not None

    def wait_for(self, verdict: order.WaitFor, pause: float | None, done: Callback[bool | ZkError]) -> None:
        """
        Watch these predecessors, and no others.

        Call `done(True)` when it is the turn of the waiter for certain, `done(False)` when it has to list the queue
        again: they have changed, or the limit has, or `pause` seconds are over.
        """
        self._done, self._is_last = done, verdict.is_last
        for name in self._watches.keys() - set(verdict.children):
            self._forget(name)
        if verdict.depends_on_limit and self._limit is None:
            self._watch_limit()
            self._end(value=False)  # the limit may have changed since the last listing
            return
        for name in verdict.children:
            if name not in self._watches:
                self._watch(name)
        if pause is not None and self._done is not None:
            self._timer = self._contender.session.loop.call_later(pause, partial(self._end, value=False))

    def forget(self) -> None:
        """Watch nothing."""
        self._done = None
        self._timer.cancel()
        for name in list(self._watches):
            self._forget(name)
        watch, self._limit = self._limit, None
        if watch is not None:
            watch.cancel()

    def _end(self, *, value: bool | ZkError) -> None:
        done, self._done = self._done, None
        self._timer.cancel()
        if done is not None:
            done(value)

    def _watch(self, name: str) -> None:
        def on_read(reply: NodeReply) -> None:
            if isinstance(reply, Node):
                self._contender.on_ahead_read(reply)
            elif isinstance(reply, NodeMissing):
                # Another znode may have its position since the listing: that of a minimum hold.
                self._forget(name)
                self._end(value=False)
            elif not isinstance(reply, INTERRUPTED):  # else the story begins again when connected
                self._forget(name)
                self._end(value=reply)

        def on_event(deleted: bool) -> None:
            self._forget(name)
            if deleted:
                # The server sends events in order. If its own znode had been deleted before, its watch would have told.
                self._end(value=self._is_last and self._contender.is_watched)
            else:
                self._watch(name)  # for its new data, and because a watch is sent once

        attempt = self._contender.attempt
        watch = self._gateway.read(f"{self._parent}/{name}", partial(attempt, on_read), partial(attempt, on_event))
        if watch is not None:
            self._watches[name] = watch

    def _watch_limit(self) -> None:
        """Watch the directory, whose data are written with each change of the limit."""

        def on_read(reply: NodeReply) -> None:
            if isinstance(reply, ZkError) and not isinstance(reply, (NodeMissing, *INTERRUPTED)):
                self._contender.on_refused(reply)  # without a watch, no change would be noticed

        def on_event(deleted: bool) -> None:
            self._limit = None
            self._end(value=False)

        attempt = self._contender.attempt
        self._limit = self._gateway.read(self._parent, partial(attempt, on_read), partial(attempt, on_event))

    def _forget(self, name: str) -> None:
        watch = self._watches.pop(name, None)
        if watch is not None:
            watch.cancel()
