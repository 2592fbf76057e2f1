"""
The znode of one contender: create, watch, mark as a reader's, delete.

The contender reads the queue, and decides when its znode is created and deleted. `ReplyGuard` is here, too: after a
change of the znode or of the connection, it drops the replies to earlier requests.
"""

from __future__ import annotations

import enum
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, Protocol, TypeVar

from django_zklock.core import clock
from django_zklock.core.errors import TooManyLocks, ZkLockError, ZooKeeperUnavailable
from django_zklock.core.execution import work
from django_zklock.core.log import Logger
from django_zklock.core.protocol.operator_holds import Replacement
from django_zklock.core.protocol.registry import ListedNames, ListingReply, OwnNode, Registry
from django_zklock.core.protocol.spec import Caller, QueueSpec
from django_zklock.core.queue import markers, nodes
from django_zklock.core.queue.nodes import Payload
from django_zklock.core.zk.client import Watch
from django_zklock.core.zk.errors import (
    NodeExists,
    NodeMissing,
    OutcomeUnknown,
    Outdated,
    SessionGone,
    ZkError,
)
from django_zklock.core.zk.gateway import Node, NodeReply, WriteReply
from django_zklock.core.zk.loop import Timer
from django_zklock.core.zk.multi import Create, SetData

logger = Logger("django_zklock.locks")

MAX_CREATES = 50  # in a row; if the queue has shown none of these znodes, the contender gives up

_Reply = TypeVar("_Reply")


class ReplyGuard:
    """
    Wraps callbacks so that replies to outdated requests are dropped.

    A contender starts a new generation when it leaves, reconnects or gets a new session. A reply to a request of an
    earlier generation says nothing about the present, so it is ignored. If a callback fails, the failure is logged and
    reported. Otherwise the contender would stay in the queue, do nothing more, and block all others behind it.
    """

    __slots__ = ("_about", "_generation", "_key", "_on_failure")

    def __init__(
        self, key: str, on_failure: Callable[[Exception], None], about: Mapping[str, str] | None = None
    ) -> None:
        self._key = key
        self._on_failure = on_failure
        self._about = about or {}  # the work that the lock is for
        self._generation = 0

    def new_generation(self) -> None:
        """Ignore all replies that are still outstanding."""
        self._generation += 1

    def wrap(self, callback: Callable[[_Reply], object]) -> Callable[[_Reply], None]:
        """Return a callback that calls `callback`, unless a new generation has begun."""
        generation = self._generation

        def guarded(reply: _Reply) -> None:
            if generation == self._generation:
                self.run(callback, reply)

        return guarded

    def run(self, callback: Callable[..., object], *args: Any) -> None:
        """Call `callback` now. If it fails, log the failure and report it to `on_failure`."""
        try:
            callback(*args)
        except Exception as error:
            logger.exception(
                "the protocol failed for lock %r%s",
                self._key,
                work.log_suffix(self._about),
                extra={"lock": self._key, **work.log_fields(self._about)},
            )
            self._on_failure(error)


class NodeListener(Protocol):
    """The contender that the znode belongs to."""

    def on_created(self, listed: ListingReply | None) -> None:
        """The znode exists. `listed` is the reply to the listing that was sent with its create, or None."""

    def on_refused(self, error: ZkLockError) -> None:
        """The znode cannot be created."""

    def on_node_gone(self) -> None:
        """Another session has deleted the znode."""

    def on_own_read(self, node: Node) -> None:
        """The znode was read, and is watched."""

    def on_proven(self) -> None:
        """A quorum has confirmed that the session lives and the znode exists."""


class State(enum.Enum):
    """The state of the znode."""

    NONE = "there is no znode"
    CREATING = "its create was sent"
    PREPARING = "its parent is being created"
    INTERRUPTED = "it is created once there is a connection"
    UNSURE = "its create was sent, and the outcome is unknown"
    THERE = "it exists"
    UNWANTED = "its create was sent, and the reply will start its delete"
    DELETED = "its delete was sent, or no delete is necessary"


class ReaderMarker(OwnNode):
    """The marker of a writer that became a reader. The name of its znode cannot change, and still says "write"."""

    def __init__(self, registry: Registry, parent: str, owner_guid: str, key: str, replies: ReplyGuard) -> None:
        name = markers.reader_marker(owner_guid)
        super().__init__(registry, parent, name, f"{parent}/{name}")
        self._key = key
        self._replies = replies
        self._exists = False

    def put(self, znode: Node) -> None:
        """Create the marker, and write the `znode` of the writer, so that its watchers list the queue again."""
        if self._exists or self.path is None:
            return
        try:
            self._registry.add(self.guid, self.path)
        except TooManyLocks as error:
            self._on_put(znode.path, error)
            return
        marker = Create(path=self.path, ephemeral=True)
        touch = SetData(path=znode.path, data=znode.data, version=znode.version)
        self._registry.gateway.commit(
            (marker, touch), self._replies.wrap(lambda reply: self._on_put(znode.path, reply))
        )

    def _on_put(self, znode: str, reply: ZkLockError | None) -> None:
        self._exists = reply is None or isinstance(reply, NodeExists)
        if isinstance(reply, Outdated):  # written by a release request
            self._registry.gateway.read(znode, self._replies.wrap(self._on_reread))
        elif isinstance(reply, ZkLockError) and not isinstance(reply, (NodeExists, OutcomeUnknown, SessionGone)):
            logger.warning("no other readers can share lock %r with its holder: %s", self._key, reply)

    def _on_reread(self, reply: NodeReply) -> None:
        if isinstance(reply, Node):
            self.put(reply)


class ContenderNode(OwnNode):
    """The znode of one contender in one queue."""

    def __init__(self, registry: Registry, spec: QueueSpec, caller: Caller, listener: NodeListener) -> None:
        super().__init__(registry, spec.parent, about=caller.about)
        self.node: Node | None = None
        self.sent_at = 0.0  # when its create was sent, on clock.now()
        self._spec = spec
        self._caller = caller
        self._listener = listener
        self._replies = ReplyGuard(spec.key, self._on_failure, caller.about)
        self._state = State.NONE
        self.creates = 0  # since the queue last showed the znode; the contender resets it then
        self._watch: Watch | None = None
        self._watch_timer: Timer | None = None  # reads and watches the znode when it is due
        self._is_confirmed = False  # the watch is known to be set
        self._last_read: Node | None = None  # the znode as it was last read
        self._marker: ReaderMarker | None = None  # set when the writer becomes a reader

    @property
    def name(self) -> str:
        """The name of the znode, which exists."""
        assert self.node is not None
        return self.node.name

    @property
    def gone(self) -> bool:
        """Whether no znode of this contender can be in ZooKeeper."""
        return self.guid not in self._registry.guids

    # --- create -------------------------------------------------------------------------------------------------

    def create(self) -> None:
        """Create the znode, with its parents if they are missing."""
        self.creates += 1
        if self.creates > MAX_CREATES:
            self._listener.on_refused(
                ZooKeeperUnavailable(f"No entry into the queue of {self._spec.key!r} after {MAX_CREATES} tries.")
            )
            return
        self._replies.new_generation()
        self.node = self._last_read = self.path = None
        # A new guid for each create: a znode with this guid was created in this session, by this create.
        guid = nodes.new_guid(nodes.Mark.REPLACEABLE if self._spec.min_hold else nodes.Mark.OWN)
        self.guid = guid.replace("-", "") if self._spec.compat == "kazoo" else guid
        self._state = State.CREATING
        self.sent_at = clock.now()
        prefix = nodes.prefix(self.guid, self._spec.kind, self._spec.compat)
        try:
            self._registry.add(self.guid, f"{self._parent}/{prefix}")
            self._registry.listing(self._parent).create_and_list(
                prefix,
                self._payload(),
                self._replies.wrap(self._on_created),
                self._replies.wrap(self._on_listed),
            )
        except TooManyLocks as error:
            self._on_create_refused(error)
        except Exception:
            self._mark_unsure()
            raise

    def _payload(self) -> bytes:
        spec, caller = self._spec, self._caller
        return Payload(
            guid=self.guid,
            host=socket.gethostname(),
            pid=os.getpid(),
            thread=caller.thread,
            what=caller.what,
            since=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            template=spec.template,
            about=caller.about,
            limit=spec.limit or 0,
            owner=caller.owner,
            max_hold=round((spec.max_hold or 0.0) * 1000),
            session_timeout=round(self._registry.session.timeout * 1000),
        ).encode()

    def _on_created(self, reply: NodeReply) -> None:
        if isinstance(reply, SessionGone):
            return  # the contender calls `forget`
        if isinstance(reply, Node):
            self._mark_there(reply)
        elif isinstance(reply, OutcomeUnknown):
            self._mark_unsure()
        else:  # refused, so there is no znode
            self._on_create_refused(reply)
            return
        if self._state is State.UNWANTED:
            self._delete()

    def _on_create_refused(self, error: ZkLockError) -> None:
        self._registry.discard(self.guid)
        if self._state is State.UNWANTED:
            self._state = State.DELETED
            self._report(True)
        elif isinstance(error, NodeMissing):
            self.create_with_parent()
        else:
            self._state = State.NONE
            self._listener.on_refused(error)

    def _mark_there(self, node: Node) -> None:
        self.node = node
        self.path = node.path
        if self._state is not State.UNWANTED:
            self._state = State.THERE

    def _on_listed(self, reply: ListingReply) -> None:
        if self._state is State.THERE:  # the reply to the create comes first
            self._listener.on_created(reply)

    def create_with_parent(self) -> None:
        """Create the parent of the znode, then the znode."""
        self._replies.new_generation()
        self._state = State.PREPARING
        self._registry.gateway.ensure_path(
            self._parent, self._replies.wrap(self._on_prepared), lasting=self._spec.compat == "kazoo"
        )

    def _on_prepared(self, reply: WriteReply) -> None:
        if isinstance(reply, (OutcomeUnknown, SessionGone)):
            self._state = State.INTERRUPTED
        elif isinstance(reply, ZkError):
            self._state = State.NONE
            self._listener.on_refused(reply)
        else:
            self.create()  # if the server has deleted the empty parent in between, this creates it again

    def reconnected(self) -> None:
        """Continue what the lost connection has interrupted."""
        if self._state is State.INTERRUPTED:
            self.create()
        elif self._state is State.UNSURE:
            self._search()
        else:
            if self._watch is not None:
                self.watch()  # the old one ended with the connection
            self._put_marker()

    def search(self) -> None:
        """Search the znode by its guid, because the queue does not show its path. Create it again if it is gone."""
        guid, self.guid = self.guid, ""  # it stays registered
        self.forget()
        self.guid = guid
        self._state = State.UNSURE
        self._search()

    def _search(self) -> None:
        self._registry.listing(self._parent).names(self._replies.wrap(self._on_names_after_sync), after_sync=True)

    def _on_names_after_sync(self, reply: ListingReply) -> None:
        """Find the znode in the listing: the create got no reply, or one with a path that the queue does not show."""
        path = self._path_in(reply) if isinstance(reply, ListedNames) else None
        if path is not None:
            self._registry.gateway.read(path, self._replies.wrap(self._on_searched_read))
        elif isinstance(reply, (ListedNames, NodeMissing)):
            self._create_again()
        elif not isinstance(reply, (OutcomeUnknown, SessionGone)):  # else there will be another connection
            self._listener.on_refused(reply)

    def _on_searched_read(self, reply: NodeReply) -> None:
        if isinstance(reply, Node) and reply.owner == self._registry.session.session_id:
            self._mark_there(reply)
            self._listener.on_created(None)
        elif isinstance(reply, (Node, NodeMissing)):
            self._create_again()
        elif not isinstance(reply, (OutcomeUnknown, SessionGone)):
            self._listener.on_refused(reply)

    def _create_again(self) -> None:
        self._registry.discard(self.guid)
        self.create()

    # --- while it exists ----------------------------------------------------------------------------------------

    def keep(self, watch_after: float) -> None:
        """
        Check the znode with each heartbeat, because its lock is held now.

        It is read and watched in `watch_after` seconds. A present watch stays until then.
        """
        if self.node is not None:
            self._registry.heartbeat.add(self.node.path, lambda: self._replies.run(self._on_missing))
            self._watch_timer = self._registry.session.loop.call_later(
                watch_after, lambda: self._replies.run(self.watch)
            )

    def prove(self) -> None:
        """Have a quorum confirm that the session lives and the znode exists."""
        if self.node is None:
            return

        def on_checked(reply: str | ZkError | None) -> None:
            if isinstance(reply, str):
                self._on_missing()
            elif reply is None:
                self._listener.on_proven()
            elif not isinstance(reply, (OutcomeUnknown, SessionGone)):  # else it proves again when connected
                self._listener.on_refused(reply)

        self._registry.gateway.quorum_check([self.node.path], self._replies.wrap(on_checked))

    @property
    def watched(self) -> bool:
        """Whether the znode is watched, or the request for that was sent."""
        return self._watch is not None

    @property
    def exists(self) -> bool:
        """
        Whether the znode existed at the last event of the session.

        The server sends watch events in order. If the znode had been deleted before that event, its watch would have
        told so before.
        """
        return self._watch is not None and self._is_confirmed

    def watch(self, on_refused: Callable[[ZkLockError], object] | None = None) -> None:
        """
        Read and watch the znode: another session may write a release request to it, or delete it.

        `on_refused` is called if the server refuses that.
        """
        self._unwatch()
        if self.node is None:
            return
        self._is_confirmed = False

        def on_read(reply: NodeReply) -> None:
            if isinstance(reply, NodeMissing):
                self._on_missing()
            elif isinstance(reply, Node):
                self._is_confirmed = True
                is_own = self.node is not None and reply.version == self.node.version
                self._last_read = self.node if is_own else reply  # one copy of the same data
                self._listener.on_own_read(reply)
            elif on_refused is not None and not isinstance(reply, (OutcomeUnknown, SessionGone)):
                on_refused(reply)

        def on_event(deleted: bool) -> None:
            if deleted:
                self._on_missing()
            else:
                self.watch(on_refused)

        self._watch = self._registry.gateway.read(
            self.node.path, self._replies.wrap(on_read), self._replies.wrap(on_event)
        )

    def describe(self, fields: Mapping[str, Any], done: Callable[[], object] | None = None) -> None:
        """
        Write these fields of the payload, for the others in the queue, unless it has a release request.

        `done` is called when they are written. A write that fails is not repeated.
        """
        node = self._last_read
        if node is None or (self.node is not None and node.version < self.node.version):
            node = self.node
        payload = Payload.decode(node.data) if node is not None else None
        if node is None or payload is None or payload.release_request:
            return

        def on_written(reply: NodeReply) -> None:
            if isinstance(reply, Node):
                self.node = reply
                if done is not None:
                    done()

        data = replace(payload, **fields).encode()
        self._registry.gateway.write(node.path, data, node.version, self._replies.wrap(on_written))

    def downgrade(self) -> None:
        """Create a marker: the writer with this znode only reads from now on."""
        if self._state is State.THERE and self._marker is None:
            self._marker = ReaderMarker(self._registry, self._parent, self.guid, self._spec.key, self._replies)
            self._put_marker()

    def _put_marker(self) -> None:
        znode = self._last_read if self._last_read is not None else self.node
        if self._marker is not None and znode is not None:
            self._marker.put(znode)

    def _remove_marker(self) -> None:
        marker, self._marker = self._marker, None
        if marker is not None:
            marker.delete()

    def _unwatch(self) -> None:
        watch, self._watch = self._watch, None
        timer, self._watch_timer = self._watch_timer, None
        for pending in (watch, timer):
            if pending is not None:
                pending.cancel()

    def _on_missing(self) -> None:
        if self._state is State.THERE:
            self._remove_marker()
            self.forget()
            self._listener.on_node_gone()

    # --- delete -------------------------------------------------------------------------------------------------

    def forget(self) -> None:
        """Reset the state: the znode was deleted, or its session is over."""
        self._replies.new_generation()
        self._unwatch()
        if self.node is not None:
            self._registry.heartbeat.remove(self.node.path)
            self.node = self.path = None
        self._registry.discard(self.guid)
        if self._marker is not None:  # the marker is gone with the session
            self._registry.discard(self._marker.guid)
            self._marker = None
        if self._state in (State.UNWANTED, State.DELETED):
            self._state = State.DELETED
            self._report(True)
        else:
            self._state = State.NONE

    def delete(self, done: Callable[[bool], object] | None = None, replacement: Replacement | None = None) -> None:
        """
        Delete the znode; only the `replacement` stays in ZooKeeper, if there is one. Call this once.

        If the create has no reply yet, the delete is sent after the reply. `done` is called as by `OwnNode.delete`.
        """
        self._done = done
        self._replacement = replacement
        self._unwatch()
        if self._state is State.CREATING:
            self._state = State.UNWANTED
            return
        exists = self._state in (State.THERE, State.UNSURE)
        self._state = State.DELETED
        self._replies.new_generation()
        if exists:
            self._delete()
        else:
            self._report(True)

    def _delete(self) -> None:
        self._state = State.DELETED
        if self.path is not None:
            self._registry.heartbeat.remove(self.path)
        super().delete(self._done, self._replacement)
        self._remove_marker()  # after the znode, which would count as a writer without it

    def _mark_unsure(self) -> None:
        """Treat the create as possibly executed: sending it failed, or its reply was lost."""
        if self._state is State.CREATING:
            self._state = State.UNSURE

    def _on_failure(self, error: Exception) -> None:
        self._mark_unsure()
        if self._state is State.UNWANTED:
            self._delete()
        self._listener.on_refused(ZkLockError(f"The lock protocol failed: {error!r}."))
