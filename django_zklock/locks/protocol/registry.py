"""
Every znode that this process has in a queue, from before its create is sent until its delete is confirmed.

Runs on the protocol's thread. Nothing in this module deletes a znode of another session.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from django_zklock.exceptions import UnreadableQueue
from django_zklock.execution import work
from django_zklock.locks.protocol import faultpoints
from django_zklock.locks.protocol.directory import Directory
from django_zklock.locks.protocol.replacement import Replacement
from django_zklock.queue import markers, nodes
from django_zklock.zk.errors import NodeMissing, OutcomeUnknown, SessionGone, ZkError
from django_zklock.zk.gateway import Gateway, NamesReply, WriteReply
from django_zklock.zk.heartbeat import Heartbeat
from django_zklock.zk.loop import Timer
from django_zklock.zk.session import Session, SessionObserver

logger = logging.getLogger("django_zklock.locks")

AUDIT_INTERVAL = 30.0  # seconds between two audits while locks are in use
RETRY_DELETE = 1.0  # seconds before a refused delete is tried again


class SessionListener(SessionObserver):
    """A contender, as the registry sees it."""

    __slots__ = ()

    def on_failure(self, error: Exception) -> None:
        """A method of this contender has failed on an event of the session."""


class Registry(SessionObserver):
    """The contenders of one session, the deletes under way, and the audit that finds forgotten znodes."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.gateway = Gateway(session)
        self.heartbeat = Heartbeat(self.gateway)
        self.listeners: dict[SessionListener, None] = {}
        self.guids: set[str] = set()  # of every znode that is, or may be, in ZooKeeper; and the names of markers
        self._directories: dict[str, Directory] = {}  # by path; those in use
        self._deletes: dict[PendingDelete, None] = {}
        self._audit_timer: Timer | None = None
        self._used = False
        session.observers[self] = None

    def add(self, listener: SessionListener) -> None:
        """Pass the events of the session on to this listener."""
        self.listeners[listener] = None
        self._used = True
        if self._audit_timer is None:
            self._audit_timer = self.session.loop.call_later(AUDIT_INTERVAL, self._on_audit_timer)

    def remove(self, listener: SessionListener) -> None:
        """Stop passing events on to this listener."""
        self.listeners.pop(listener, None)

    def directory(self, parent: str) -> Directory:
        """Return the directory that the contenders for one key share."""
        found = self._directories.get(parent)
        if found is None:
            found = self._directories[parent] = Directory(self.gateway, parent, self._forget)
        return found

    def _forget(self, directory: Directory) -> None:
        if self._directories.get(directory.parent) is directory:
            del self._directories[directory.parent]

    def delete(
        self,
        parent: str,
        guid: str,
        path: str | None,
        done: Callable[[bool], object] | None = None,
        about: Mapping[str, str] | None = None,
        replacement: Replacement | None = None,
    ) -> None:
        """
        Delete a znode, and try again until it is gone.

        `path` is None if it is unknown whether the znode was created. Then it is searched by its guid. `done` is called
        once: with True when the znode is gone, or with False when it is clear that this takes more than one request.
        `about` is the work that the lock was for. The `replacement` is created in the same transaction.
        """
        pending = PendingDelete(self, parent, guid, path, done, about or {}, replacement)
        self._deletes[pending] = None
        pending.proceed()

    def deleted(self, pending: PendingDelete) -> None:
        """Forget a znode that is gone."""
        self._deletes.pop(pending, None)
        self.guids.discard(pending.guid)

    # --- events of the session -------------------------------------------------------------------------------------

    def on_connected(self, *, resumed: bool) -> None:
        for pending in list(self._deletes):
            pending.proceed()
        self._tell(lambda listener: listener.on_connected(resumed=resumed))
        self.heartbeat.beat()
        self.audit()

    def on_session_lost(self) -> None:
        for pending in list(self._deletes):
            pending.finish()
        self._tell(lambda listener: listener.on_session_lost())

    def on_closed(self) -> None:
        self._tell(lambda listener: listener.on_closed())

    def on_suspect(self, reason: str) -> None:
        self._tell(lambda listener: listener.on_suspect(reason))

    def on_confirmed(self) -> None:
        self._tell(lambda listener: listener.on_confirmed())

    def on_lease_over(self) -> None:
        self._tell(lambda listener: listener.on_lease_over())

    def _tell(self, call: Callable[[SessionListener], None]) -> None:
        for listener in list(self.listeners):
            try:
                call(listener)
            except Exception as error:
                # The failure of one lock must not keep an event, and the abort of its work, from another one.
                logger.exception("%r failed on a change of the session", listener)
                self.session.post(listener.on_failure, error)

    # --- the audit ----------------------------------------------------------------------------------------------

    def _on_audit_timer(self) -> None:
        self._audit_timer = None
        if self._used:
            self._used = bool(self.listeners)
            self.audit()
            self._audit_timer = self.session.loop.call_later(AUDIT_INTERVAL, self._on_audit_timer)

    def audit(self) -> None:
        """Delete znodes of this session that are not registered here. A server before 3.6 cannot list them."""
        self.gateway.own_ephemerals(self.session.options.base, self._on_own_nodes)

    def _on_own_nodes(self, answer: NamesReply) -> None:
        if isinstance(answer, ZkError):
            return
        for path in answer:
            parent, _, name = path.rpartition("/")
            try:
                child = nodes.parse(name)
            except UnreadableQueue:
                continue
            known_by = name if markers.reader_of(name) else child.guid if child is not None else ""
            if known_by and known_by not in self.guids:
                logger.error("a znode of this session that belongs to no lock here is deleted: %s", path)
                self.delete(parent, known_by, path)


class PendingDelete:
    """The delete of one znode; it is tried until the znode or its session is gone."""

    def __init__(
        self,
        registry: Registry,
        parent: str,
        guid: str,
        path: str | None,
        done: Callable[[bool], object] | None,
        about: Mapping[str, str],
        replacement: Replacement | None = None,
    ) -> None:
        self.guid = guid
        self._registry = registry
        self._parent = parent
        self._path = path
        self._done = done
        self._about = about
        self._replacement = replacement
        self._busy = False
        self._over = False

    def proceed(self) -> None:
        """Send the next request, unless the znode is gone, a request is under way, or there is no connection."""
        if self._busy or self._over:
            return
        if not self._registry.session.connected:
            self._report(False)
            return
        self._busy = True
        try:
            self._send_request()
        except Exception:
            # There may be no reply, and nothing else would delete this znode.
            logger.exception(
                "deleting the znode %s failed, trying again%s",
                self._path or self.guid,
                work.log_suffix(self._about),
                extra=work.log_fields(self._about),
            )
            self._busy = False
            self._report(False)
            self._registry.session.loop.call_later(RETRY_DELETE, self.proceed)

    def _send_request(self) -> None:
        if self._path is None:
            self._registry.directory(self._parent).names_after_sync(self._on_listed)
        else:
            faultpoints.reach("before_delete")
            changes = self._replacement.changes() if self._replacement is not None else ()
            if changes:
                self._registry.gateway.commit(changes, self._on_replaced)
            else:
                self._registry.gateway.delete(self._path, self._on_deleted)
            faultpoints.reach("after_delete_sent")

    def finish(self) -> None:
        """Forget this delete, because the znode is gone."""
        self._over = True
        self._registry.deleted(self)
        if self._replacement is not None:
            self._replacement.end_in_time(self._registry.session)
        self._report(True)

    def _on_listed(self, answer: NamesReply) -> None:
        self._busy = False
        if isinstance(answer, NodeMissing):
            self.finish()
        elif isinstance(answer, ZkError):
            self._retry(answer)
        else:
            found = [name for name in answer if nodes.has_guid(name, self.guid)]
            if found:
                self._path = f"{self._parent}/{found[0]}"
                self.proceed()
            else:
                self.finish()

    def _on_deleted(self, answer: WriteReply) -> None:
        self._busy = False
        if isinstance(answer, ZkError):
            self._retry(answer)
        else:
            self._registry.gateway.delete_if_empty(self._parent)
            self.finish()

    def _on_replaced(self, answer: WriteReply) -> None:
        """Handle the reply: the znode was replaced, or was gone already, perhaps by an earlier try."""
        self._busy = False
        if isinstance(answer, ZkError) and not isinstance(answer, NodeMissing):
            self._retry(answer)
            return
        self.finish()

    def _retry(self, error: ZkError) -> None:
        self._report(False)
        if not isinstance(error, (OutcomeUnknown, SessionGone)):  # an event of the session follows these two
            logger.error(
                "deleting the znode %s failed, trying again: %s%s",
                self._path or self.guid,
                error,
                work.log_suffix(self._about),
                extra=work.log_fields(self._about),
            )
            self._registry.session.loop.call_later(RETRY_DELETE, self.proceed)

    def _report(self, gone: bool) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(gone)
