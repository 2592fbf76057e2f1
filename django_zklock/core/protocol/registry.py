"""
Know every znode that this process has in a queue, from before its create until its delete is confirmed.

Nothing in this module deletes a znode of another session.

`SharedListing` lists the directory of one key once for all contenders of this process that ask at the same time. With n
contenders in one directory, n listings of n names would keep the server and this process busy with little else. So at
most one listing is under way. The next one serves all requests that are made meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TypeAlias

from django_zklock.core.errors import TooManyLocks, UnreadableQueue
from django_zklock.core.execution import work
from django_zklock.core.log import Logger
from django_zklock.core.protocol.local_queue import LocalQueue
from django_zklock.core.protocol.operator_holds import Replacement
from django_zklock.core.queue import markers, nodes
from django_zklock.core.queue.order import Queue, ordered
from django_zklock.core.zk.errors import NodeMissing, OutcomeUnknown, SessionGone, ZkError
from django_zklock.core.zk.gateway import Callback, Gateway, NamesReply, NodeReply, WriteReply
from django_zklock.core.zk.heartbeat import Heartbeat
from django_zklock.core.zk.loop import Timer
from django_zklock.core.zk.session import Session, SessionObserver

logger = Logger("django_zklock.locks")

AUDIT_INTERVAL = 30.0  # seconds between two audits while locks are in use
PATH_EXTRA = 14  # bytes of a path in the transaction that ends a session: its length, and the sequence number
NEARLY_FULL = 0.75  # of the bytes for paths: above that, locks that linger are given up
RETRY_DELETE = 1.0  # seconds before a refused delete is tried again


class ListedNames:
    """The names in a directory. The queue is computed once, for all contenders that get this listing."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    @cached_property
    def queue(self) -> Queue:
        """The contenders in their order. Raises `UnreadableQueue`."""
        return ordered(self.names)


ListingReply: TypeAlias = ListedNames | ZkError


class SharedListing:
    """The listings of one directory: one under way, and the next one if it is wanted. Without any, it is dropped."""

    __slots__ = ("_callbacks", "_drop", "_gateway", "_next", "_next_synced", "_parent", "_synced")

    def __init__(self, gateway: Gateway, parent: str, drop: Callable[[str], object]) -> None:
        self._parent = parent
        self._gateway = gateway
        self._drop = drop  # called with the parent when nothing is under way any more
        self._callbacks: list[Callback[ListingReply]] | None = None  # of the listing under way, if there is one
        self._synced = False  # whether that listing comes after a sync, and no create was sent since
        self._next: list[Callback[ListingReply]] = []  # for the next listing
        self._next_synced = False

    @property
    def waiting(self) -> int:
        """How many callbacks wait for a listing."""
        return len(self._callbacks or ()) + len(self._next)

    def create_and_list(
        self, prefix: str, data: bytes, on_created: Callback[NodeReply], on_listed: Callback[ListingReply]
    ) -> None:
        """Create a znode and list the directory, together if no listing is under way."""
        if self._callbacks is not None:
            self._gateway.create_and_list(self._parent, prefix, data, on_created, None)
            self._next.append(on_listed)  # the one under way was sent before the create
            self._synced = False  # so it does not show the outcome of this create either
            return
        self._callbacks, self._synced = [on_listed], False
        self._gateway.create_and_list(self._parent, prefix, data, on_created, self._on_listed)

    def names(self, callback: Callback[ListingReply], *, after_sync: bool = False) -> None:
        """
        List the directory as it is after this call.

        With `after_sync`, the server syncs with the leader of the ensemble first. Then the listing shows the outcome of
        requests whose replies were lost with an earlier connection. One such listing serves all contenders that need
        it.
        """
        if self._callbacks is None:
            self._send([callback], synced=after_sync)
        elif after_sync and self._synced:
            self._callbacks.append(callback)
        else:
            self._next.append(callback)
            self._next_synced = self._next_synced or after_sync

    def _send(self, callbacks: list[Callback[ListingReply]], *, synced: bool) -> None:
        self._callbacks, self._synced = callbacks, synced
        if synced:
            self._gateway.children_after_sync(self._parent, self._on_listed)
        else:
            self._gateway.children(self._parent, self._on_listed)

    def _on_listed(self, reply: NamesReply) -> None:
        callbacks, self._callbacks = self._callbacks or [], None
        if self._next:
            waiting, self._next = self._next, []
            synced, self._next_synced = self._next_synced, False
            self._send(waiting, synced=synced)
        else:
            self._drop(self._parent)
        listed = reply if isinstance(reply, ZkError) else ListedNames(reply)
        for callback in callbacks:
            try:
                callback(listed)
            except Exception:
                # The failure of one contender must not keep the reply from the others.
                logger.exception("%r failed on a listing", callback)


class Registry(SessionObserver):
    """The znodes of one session, what its contenders share, and the audit that finds forgotten znodes."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.gateway = session.attached(Gateway)
        self.heartbeat = Heartbeat(self.gateway)
        self.guids: dict[str, int] = {}  # bytes of the paths of all znodes that may be there; of a marker, by its name
        self.path_bytes = 0  # of all of them
        self.on_nearly_full: Callable[[], object] = lambda: None  # gives up a lock that has no owner
        self.deleting: dict[OwnNode, None] = {}  # those whose delete is not confirmed yet
        self._listings: dict[str, SharedListing] = {}  # those under way, by the path of the directory
        self._local_queues: dict[str, LocalQueue] = {}  # those in use, by the path of the directory
        self._audit_timer: Timer | None = None
        self._used = False
        session.observers[self] = None

    def add(self, guid: str, *paths: str) -> None:
        """Register a znode before its create is sent. Raises `TooManyLocks` if it would make the session too large."""
        size = len("".join(paths).encode()) + PATH_EXTRA * len(paths)
        total, limit = self.path_bytes + size - self.guids.get(guid, 0), self.session.options.jute_maxbuffer
        if total > limit * NEARLY_FULL:
            self.on_nearly_full()
        if total > limit:
            raise TooManyLocks(
                f"This process has {len(self.guids):,} locks and waiters. Their paths take {self.path_bytes:,} of "
                f"{limit:,} bytes, so {size:,} more do not fit: servers may not survive the end of a larger session. "
                "Use shorter keys or more processes. If the servers have another jute.maxbuffer, set JUTE_MAXBUFFER."
            )
        self.guids[guid], self.path_bytes = size, total
        self._used = True
        if self._audit_timer is None:
            self._audit_timer = self.session.loop.call_later(AUDIT_INTERVAL, self._on_audit_timer)

    def discard(self, guid: str) -> None:
        """Forget a znode that is gone, or was not created."""
        self.path_bytes -= self.guids.pop(guid, 0)

    def listing(self, parent: str) -> SharedListing:
        """Return the listing that all requests for the same directory share."""
        listing = self._listings.get(parent)
        if listing is None:
            listing = self._listings[parent] = SharedListing(self.gateway, parent, self._listings.pop)
        return listing

    def local_queue(self, parent: str) -> LocalQueue:
        """Return the local queue of the contenders for the same key."""
        queue = self._local_queues.get(parent)
        if queue is None:
            queue = self._local_queues[parent] = LocalQueue(parent, self._local_queues.pop)
        return queue

    # --- events of the session -------------------------------------------------------------------------------------

    needs_connection = False

    def on_connected(self, *, resumed: bool) -> None:
        for node in list(self.deleting):
            node.continue_delete()
        self.heartbeat.beat()
        self.audit()

    def on_session_lost(self) -> None:
        for node in list(self.deleting):
            node.on_gone()
        self.guids.clear()
        self.path_bytes = 0

    # --- the audit ----------------------------------------------------------------------------------------------

    def _on_audit_timer(self) -> None:
        self._audit_timer = None
        if self._used:
            self._used = bool(self.guids)
            self.audit()
            self._audit_timer = self.session.loop.call_later(AUDIT_INTERVAL, self._on_audit_timer)

    def audit(self) -> None:
        """Delete znodes of this session that are not registered here."""
        self.gateway.own_ephemerals(self.session.options.base, self._on_own_nodes)

    def _on_own_nodes(self, reply: NamesReply) -> None:
        if isinstance(reply, ZkError):
            return
        for path in reply:
            parent, _, name = path.rpartition("/")
            try:
                child = nodes.parse(name)
            except UnreadableQueue:
                continue
            guid = name if markers.reader_of(name) else child.guid if child is not None else ""
            if guid and guid not in self.guids and not any(node.guid == guid for node in self.deleting):
                logger.error("a znode of this session that belongs to no lock here is deleted: %s", path)
                OwnNode(self, parent, guid, path).delete()


class OwnNode:
    """A znode of this process. Its delete is tried until the znode or its session is gone."""

    def __init__(
        self,
        registry: Registry,
        parent: str,
        guid: str = "",
        path: str | None = None,
        about: Mapping[str, str] | None = None,
    ) -> None:
        self.guid = guid  # of a marker, its name
        self.path = path  # None if it is unknown; then a delete searches the znode by its guid
        self._registry = registry
        self._parent = parent
        self._about = about or {}  # the work that the lock was for
        self._done: Callable[[bool], object] | None = None
        self._replacement: Replacement | None = None
        self._is_busy = False  # a request of the delete has no reply yet

    def delete(self, done: Callable[[bool], object] | None = None, replacement: Replacement | None = None) -> None:
        """
        Delete the znode, and try again until it is gone.

        `done` is called once: with True when the znode is gone, or with False as soon as the delete takes longer than
        one request. The `replacement` is created in the same transaction.
        """
        self._done = done
        self._replacement = replacement
        self._registry.deleting[self] = None
        self.continue_delete()

    def continue_delete(self) -> None:
        """Send the next request, unless the znode is gone, a request is under way, or there is no connection."""
        if self._is_busy or self not in self._registry.deleting:
            return
        if not self._registry.session.connected:
            self._report(False)
            return
        self._is_busy = True
        try:
            self._send_delete()
        except Exception as error:  # noqa: BLE001 - `_delete_later` logs it
            # No reply may follow, and nothing else would delete this znode.
            self._is_busy = False
            self._report(False)
            self._delete_later(error, exc_info=True)

    def _send_delete(self) -> None:
        if self.path is None:
            self._registry.listing(self._parent).names(self._on_searched, after_sync=True)
            return
        changes = self._replacement.changes() if self._replacement is not None else ()
        if changes:
            self._registry.gateway.commit(changes, self._on_deleted)
        else:
            self._registry.gateway.delete(self.path, self._on_deleted)

    def on_gone(self) -> None:
        """Forget the znode, because it is gone."""
        self._registry.deleting.pop(self, None)
        self._registry.discard(self.guid)
        if self._replacement is not None:
            self._replacement.end_in_time(self._registry.session)
        self._report(True)

    def _on_searched(self, reply: ListingReply) -> None:
        self._is_busy = False
        if isinstance(reply, ZkError) and not isinstance(reply, NodeMissing):
            self._retry_delete(reply)
            return
        self.path = None if isinstance(reply, NodeMissing) else self._path_in(reply)
        if self.path is None:
            self.on_gone()
        else:
            self.continue_delete()

    def _on_deleted(self, reply: WriteReply) -> None:
        """Handle the reply. `NodeMissing` means that the znode was gone already, perhaps by an earlier try."""
        self._is_busy = False
        if isinstance(reply, ZkError) and not isinstance(reply, NodeMissing):
            self._retry_delete(reply)
        else:
            self.on_gone()

    def _retry_delete(self, error: ZkError) -> None:
        self._report(False)
        if not isinstance(error, (OutcomeUnknown, SessionGone)):  # an event of the session follows these two
            self._delete_later(error)

    def _delete_later(self, error: Exception, *, exc_info: bool = False) -> None:
        logger.error(
            "deleting the znode %s failed, trying again: %s%s",
            self.path or self.guid,
            error,
            work.log_suffix(self._about),
            extra=work.log_fields(self._about),
            exc_info=exc_info,
        )
        self._registry.session.loop.call_later(RETRY_DELETE, self.continue_delete)

    def _path_in(self, listed: ListedNames) -> str | None:
        """Return the path of this znode, if the listing shows it."""
        name = next((name for name in listed.names if nodes.has_guid(name, self.guid)), None)
        return None if name is None else f"{self._parent}/{name}"

    def _report(self, gone: bool) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(gone)
