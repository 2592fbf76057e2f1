"""
Know every znode that this process has in a queue, from before its create until its delete is confirmed.

Nothing in this module deletes a znode of another session.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeAlias

from django_zklock.core import clock, hooks
from django_zklock.core.errors import TooManyLocks, UnreadableQueue
from django_zklock.core.log import Logger
from django_zklock.core.protocol import releases
from django_zklock.core.protocol.grant import Grant
from django_zklock.core.protocol.local_queue import MAX_WAITING, LocalQueue
from django_zklock.core.queue import nodes
from django_zklock.core.queue.escaping import show_tails
from django_zklock.core.queue.order import Queue, ordered
from django_zklock.core.zk.errors import INTERRUPTED, NodeMissing, RequestRefused, ZkError
from django_zklock.core.zk.gateway import Callback, NamesReply, Node, NodeReply, WriteReply
from django_zklock.core.zk.heartbeat import Heartbeat
from django_zklock.core.zk.loop import NEVER
from django_zklock.core.zk.multi import Create, Delete
from django_zklock.core.zk.session import Session, SessionObserver

logger = Logger("django_zklock.locks")

AUDIT_INTERVAL = 30.0  # seconds between two audits while locks are in use
PATH_EXTRA = 14  # bytes of a path in the transaction that ends a session: its length, and the sequence number
NEARLY_FULL = 0.75  # of the bytes for paths: above that, locks that linger are given up
RETRY_DELETE = 1.0  # seconds before a refused delete is tried again


class ListedNames(list[str]):
    """The names in a directory. The queue is computed once, for all contenders that get this listing."""

    _queue: Queue | None = None

    @property
    def queue(self) -> Queue:
        """The contenders in their order. Raises `UnreadableQueue`."""
        if self._queue is None:
            self._queue = ordered(self)
        return self._queue

    def path_of(self, parent: str, guid: str) -> str | None:
        """Return the path of the contender with this guid; None if the listing of `parent` does not show it."""
        name = next((name for name in self if nodes.has_guid(name, guid)), None)
        return None if name is None else f"{parent}/{name}"


ListingReply: TypeAlias = ListedNames | ZkError


@dataclass(slots=True)
class _Listing:
    """A listing of one directory that is under way, and the requests for the next one."""

    callbacks: list[Callback[ListingReply]]
    synced: bool  # it comes after a sync, and no create was sent since
    next: list[Callback[ListingReply]] = field(default_factory=list)
    next_synced: bool = False


class Registry(SessionObserver):
    """
    The znodes of one session, what its contenders share, and the audit that finds forgotten znodes.

    All contenders of this process that list a directory at the same time share one listing. With n contenders in one
    directory, n listings of n names would keep the server and this process busy with little else. So at most one
    listing of a directory is under way. The next one serves all requests that are made meanwhile.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.heartbeat = Heartbeat(session)
        self.guids: dict[str, int] = {}  # bytes of the paths of all znodes that may be there
        self.path_bytes = 0  # of all of them
        self.on_nearly_full: Callable[[], object] = lambda: None  # gives up a lock that has no owner
        self.deleting: dict[Deletion, None] = {}  # those that are not confirmed yet
        self._listings: dict[str, _Listing] = {}  # those under way, by the path of the directory
        self._local_queues: dict[str, LocalQueue] = {}  # those in use, by the path of the directory
        self.most_waiting = MAX_WAITING  # contenders that wait in one directory; a Celery worker lets more wait
        self._audit_timer = NEVER
        self._used = False

    # --- znodes and listings ------------------------------------------------------------------------------------

    def add(self, guid: str, path: str) -> None:
        """Register a znode before its create is sent. Raises `TooManyLocks` if it would make the session too large."""
        size = len(path.encode()) + PATH_EXTRA
        total = self.path_bytes + size - self.guids.get(guid, 0)
        limit = self.session.options.jute_maxbuffer
        if total > limit * NEARLY_FULL:
            self.on_nearly_full()
        excess = total - limit
        if total > limit:  # a delete that was sent is carried out before this create
            excess -= sum(self.guids.get(deletion.guid, 0) for deletion in self.deleting if deletion.is_sent)
        if excess > 0:
            raise TooManyLocks(
                f"This process has {len(self.guids):,} locks and waiters. Their paths take {self.path_bytes:,} of "
                f"{limit:,} bytes, so {size:,} more do not fit: servers may not survive the end of a larger session. "
                "Use shorter keys or more processes. If the servers have another jute.maxbuffer, set JUTE_MAXBUFFER."
            )
        self.guids[guid], self.path_bytes = size, total
        listing = self._listings.get(path.rpartition("/")[0])
        if listing is not None:
            listing.synced = False  # it does not show the outcome of the create that follows
        self._used = True
        self.session.observers[self] = None  # not in `__init__`, which may run on any thread
        if not self._audit_timer.pending:
            self._audit_timer = self.session.loop.call_later(AUDIT_INTERVAL, self._on_audit_timer)

    def discard(self, guid: str) -> None:
        """Forget a znode that is gone, or was not created."""
        self.path_bytes -= self.guids.pop(guid, 0)

    def local_queue(self, parent: str) -> LocalQueue:
        """Return the local queue of the contenders for the same key."""
        queue = self._local_queues.get(parent)
        if queue is None:
            queue = self._local_queues[parent] = LocalQueue(partial(self._local_queues.pop, parent), self.most_waiting)
        return queue

    def create_and_list(
        self,
        parent: str,
        prefix: str,
        guid: str,
        data: bytes,
        on_node: Callback[Node],
        callback: Callback[tuple[Node, ListingReply] | ZkError],
    ) -> None:
        """
        Create a registered znode and list its directory, together if no listing is under way.

        `on_node` gets the znode at once, `callback` the znode and the listing, or the error of the create. If that is
        a refusal, the znode is no longer registered.
        """
        created: list[NodeReply] = []

        def on_created(reply: NodeReply) -> None:
            created.append(reply)
            if isinstance(reply, ZkError):
                if not isinstance(reply, INTERRUPTED):
                    self.discard(guid)
                callback(reply)
            else:
                on_node(reply)

        def on_listed(reply: ListingReply) -> None:
            node = created[0] if created else None
            if isinstance(node, Node):
                callback((node, reply))
            # Else the create has failed, or the connection was lost: its reply comes later, if at all.

        listing = self._listings.get(parent)
        if listing is not None:
            self.session.gateway.create_and_list(parent, prefix, data, on_created, None)
            listing.next.append(on_listed)  # the one under way was sent before the create
            return
        self._listings[parent] = _Listing([on_listed], synced=False)
        try:
            self.session.gateway.create_and_list(parent, prefix, data, on_created, partial(self._on_listed, parent))
        except Exception:
            del self._listings[parent]  # no reply follows, and all later contenders would wait for it
            raise

    def list_names(self, parent: str, callback: Callback[ListingReply], *, after_sync: bool = False) -> None:
        """
        List a directory as it is after this call.

        With `after_sync`, the server syncs with the leader of the ensemble first. Then the listing shows the outcome of
        requests whose replies were lost with an earlier connection. One such listing serves all contenders that need
        it.
        """
        listing = self._listings.get(parent)
        if listing is None:
            self._send_listing(parent, [callback], synced=after_sync)
        elif after_sync and listing.synced:
            listing.callbacks.append(callback)
        else:
            listing.next.append(callback)
            listing.next_synced = listing.next_synced or after_sync

    def _send_listing(self, parent: str, callbacks: list[Callback[ListingReply]], *, synced: bool) -> None:
        self._listings[parent] = _Listing(callbacks, synced)
        gateway = self.session.gateway
        send = gateway.children_after_sync if synced else gateway.children
        try:
            send(parent, partial(self._on_listed, parent))
        except Exception as error:
            logger.exception("the directory %s cannot be listed", parent)
            self._on_listed(parent, ZkError(f"The directory {parent} cannot be listed: {error!r}."))

    def _on_listed(self, parent: str, reply: NamesReply) -> None:
        listing = self._listings.pop(parent)
        if listing.next:
            self._send_listing(parent, listing.next, synced=listing.next_synced)
        listed = reply if isinstance(reply, ZkError) else ListedNames(reply)
        for callback in listing.callbacks:
            try:
                callback(listed)
            except Exception:
                # The failure of one contender must not keep the reply from the others.
                logger.exception("%r failed on a listing", callback)

    # --- events of the session -------------------------------------------------------------------------------------

    @property
    def needs_connection(self) -> bool:
        """Whether a znode is to be deleted."""
        return bool(self.deleting)

    def on_connected(self, *, resumed: bool) -> None:
        for deletion in list(self.deleting):
            deletion.send()
        self.heartbeat.beat()
        self.audit()

    def on_session_lost(self) -> None:
        for deletion in list(self.deleting):
            deletion.on_gone()
        self.guids.clear()
        self.path_bytes = 0

    # --- the audit ----------------------------------------------------------------------------------------------

    def _on_audit_timer(self) -> None:
        if self._used:
            self._used = bool(self.guids)
            self.audit()
            self._audit_timer = self.session.loop.call_later(AUDIT_INTERVAL, self._on_audit_timer)

    def audit(self) -> None:
        """Delete znodes of this session that are not registered here."""
        self.session.gateway.own_ephemerals(self.session.options.base, self._on_own_nodes)

    def _on_own_nodes(self, reply: NamesReply) -> None:
        if isinstance(reply, ZkError):
            return
        for guid, path in self.unknown(reply).items():
            logger.error("a znode of this session that belongs to no lock here is deleted: %s", path)
            self.delete(guid, path)

    def unknown(self, paths: Iterable[str]) -> dict[str, str]:
        """Return those of these znodes of locks that are not registered here: the paths, by guid."""
        unknown = {}
        for path in paths:
            name = path.rpartition("/")[2]
            try:
                child = nodes.parse(name)
            except UnreadableQueue:
                continue
            guid = "" if child is None else child.guid
            if guid and guid not in self.guids and not any(deletion.guid == guid for deletion in self.deleting):
                unknown[guid] = path
        return unknown

    def delete(self, guid: str, path: str) -> None:
        """Delete a znode of this session that belongs to no lock here."""
        parent = path.rpartition("/")[0]
        Deletion(self, show_tails(parent[len(self.session.options.base) + 1 :]), parent, guid, path).send()


class Successor(NamedTuple):
    """A znode that the transaction of a deletion creates, until this time on `clock.now()`; later it is not needed."""

    create: Create
    until: float


@dataclass(slots=True, eq=False)
class Deletion:
    """The delete of one znode of this process. It is tried until the znode or its session is gone."""

    _registry: Registry
    _key: str
    _parent: str
    guid: str
    _path: str | None  # None: it is unknown, so the znode is searched by its guid
    _done: Callable[[Exception | None], object] = bool
    """Called when the znode is gone, and with the error whenever that takes longer than a request."""
    successor: Successor | None = None
    _about: Mapping[str, str] = field(default_factory=dict)  # the work that the lock was for
    _grant: Grant | None = None  # of the holder that releases
    _is_first: bool = True  # no delete has a reply yet
    _is_busy: bool = False  # a request has no reply yet
    refused: str = ""  # why ZooKeeper refuses the delete; any thread reads it

    def __post_init__(self) -> None:
        self._registry.deleting[self] = None
        releases.begin(self)

    @property
    def is_sent(self) -> bool:
        """Whether the delete of the znode has been sent on this connection."""
        return self._is_busy and self._path is not None

    def send(self) -> None:
        """Send the next request, unless the znode is gone or a request is under way."""
        registry = self._registry
        if self._is_busy or self not in registry.deleting:
            return
        self._is_busy = True
        try:
            if self._path is None:
                registry.list_names(self._parent, self._on_searched, after_sync=True)
            elif self.successor is None or clock.now() >= self.successor.until:
                registry.session.gateway.delete(self._path, self._on_deleted)
            else:
                operations = (Delete(path=self._path), self.successor.create)
                registry.session.gateway.commit(operations, self._on_deleted)
        except Exception as error:  # noqa: BLE001 - `_send_later` logs it
            # No reply may follow, and nothing else would delete this znode.
            self._is_busy = False
            self._done(error)
            self._send_later(error, exc_info=True)

    def _on_searched(self, reply: ListingReply) -> None:
        self._is_busy = False
        if isinstance(reply, ZkError) and not isinstance(reply, NodeMissing):
            self._retry(reply)
            return
        self._path = None if isinstance(reply, ZkError) else reply.path_of(self._parent, self.guid)
        if self._path is None:
            self.on_gone()
        else:
            self.send()

    def _on_deleted(self, reply: WriteReply) -> None:
        """Handle the reply. `NodeMissing` means that the znode was gone already, perhaps by an earlier try."""
        self._is_busy = False
        grant, is_first, self._is_first = self._grant, self._is_first, False
        if is_first and isinstance(reply, NodeMissing) and grant is not None and grant.why_invalid() is None:
            grant.report_deleted()
        if isinstance(reply, ZkError) and not isinstance(reply, NodeMissing):
            is_contender = self._path is not None and not self._path.endswith(f"/{self.guid}")
            if isinstance(reply, RequestRefused) and is_contender and not self.refused:
                session = self._registry.session
                hooks.events.release_refused(session, self._key, str(reply), self._about, self._grant)
            self._retry(reply)
        else:
            self.on_gone()

    def on_gone(self) -> None:
        """Forget the znode, because it is gone."""
        self._registry.discard(self.guid)
        releases.end(self)
        self._done(None)
        self._registry.deleting.pop(self, None)  # last, for other threads that wait for this

    def _retry(self, error: ZkError) -> None:
        self._done(error)
        if not isinstance(error, INTERRUPTED):  # an event of the session follows these two
            self._send_later(error)

    def _send_later(self, error: Exception, *, exc_info: bool = False) -> None:
        releases.refuse(self)  # perhaps again and again
        before, self.refused = self.refused, str(error)
        if before != self.refused:
            logger.error(
                "deleting the znode %s failed, trying again: %s Until then, process %d on %s keeps lock %r. If that "
                "lasts, end the process: its locks are free then.",
                self._path or self.guid,
                error,
                os.getpid(),
                socket.gethostname(),
                self._key,
                about=self._about,
                extra={"lock": self._key},
                exc_info=exc_info,
            )
        self._registry.session.loop.call_later(RETRY_DELETE, self.send)
