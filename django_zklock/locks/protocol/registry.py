"""
Knows every node that this process has in any queue, from before it is created until its deletion is confirmed.

Runs on the loop's thread of the session it belongs to. Nothing in this module deletes another session's node.
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


class Member(SessionObserver):
    """Who has a node in a queue, or is about to."""

    def on_failure(self, error: Exception) -> None:
        """It failed on the session's news."""


class Registry(SessionObserver):
    """The members of one session's queues, the nodes on their way out, and the audit that finds any other."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.gateway = Gateway(session)
        self.heartbeat = Heartbeat(self.gateway)
        self.members: dict[Member, None] = {}
        self.guids: set[str] = set()  # of every node that is, or may be, in ZooKeeper; and the names of markers
        self._directories: dict[str, Directory] = {}  # by path; those in use
        self._departures: dict[Departure, None] = {}
        self._audit_timer: Timer | None = None
        self._used = False
        session.observers[self] = None

    def admit(self, member: Member) -> None:
        """Pass the session's news on to this member."""
        self.members[member] = None
        self._used = True
        if self._audit_timer is None:
            self._audit_timer = self.session.loop.call_later(AUDIT_INTERVAL, self._on_audit_timer)

    def dismiss(self, member: Member) -> None:
        """Pass on no more."""
        self.members.pop(member, None)

    def directory(self, parent: str) -> Directory:
        """Return what the contenders for one key share."""
        found = self._directories.get(parent)
        if found is None:
            found = self._directories[parent] = Directory(self.gateway, parent, self._forget)
        return found

    def _forget(self, directory: Directory) -> None:
        if self._directories.get(directory.parent) is directory:
            del self._directories[directory.parent]

    def depart(
        self,
        parent: str,
        guid: str,
        path: str | None,
        done: Callable[[bool], object] | None = None,
        about: Mapping[str, str] | None = None,
        replacement: Replacement | None = None,
    ) -> None:
        """
        See to it that a node goes, however long it takes.

        `path` is None when it is unknown whether the node was created; it is then looked for by its guid. `done` is
        called once: with True when the node is gone, or with False as soon as it is clear that this will take
        longer than one request. `about` is the work it was for, `replacement` what is to stay in its place.
        """
        departure = Departure(self, parent, guid, path, done, about or {}, replacement)
        self._departures[departure] = None
        departure.proceed()

    def departed(self, departure: Departure) -> None:
        """Take note that a node is gone."""
        self._departures.pop(departure, None)
        self.guids.discard(departure.guid)

    # --- the session's news -------------------------------------------------------------------------------------

    def on_connected(self, *, resumed: bool) -> None:
        for departure in list(self._departures):
            departure.proceed()
        self._tell(lambda member: member.on_connected(resumed=resumed))
        self.heartbeat.beat()
        self.audit()

    def on_session_lost(self) -> None:
        for departure in list(self._departures):
            departure.finish()
        self._tell(lambda member: member.on_session_lost())

    def on_closed(self) -> None:
        self._tell(lambda member: member.on_closed())

    def on_suspect(self, reason: str) -> None:
        self._tell(lambda member: member.on_suspect(reason))

    def on_confirmed(self) -> None:
        self._tell(lambda member: member.on_confirmed())

    def on_lease_over(self) -> None:
        self._tell(lambda member: member.on_lease_over())

    def _tell(self, call: Callable[[Member], None]) -> None:
        for member in list(self.members):
            try:
                call(member)
            except Exception as error:
                # Trouble with one lock must not keep the news, and the abort of its work, from another.
                logger.exception("%r failed on a change of the session", member)
                self.session.post(member.on_failure, error)

    # --- the audit ----------------------------------------------------------------------------------------------

    def _on_audit_timer(self) -> None:
        self._audit_timer = None
        if self._used:
            self._used = bool(self.members)
            self.audit()
            self._audit_timer = self.session.loop.call_later(AUDIT_INTERVAL, self._on_audit_timer)

    def audit(self) -> None:
        """Delete the nodes of this session that nobody here knows of; a server before 3.6 can't list them."""
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
                logger.error("a node of this session that no lock here knows of is deleted: %s", path)
                self.depart(parent, known_by, path)


class Departure:
    """One node that has to go; tries until it is gone or its session is."""

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

    def proceed(self) -> None:
        """Do the next request, if there is a connection and none is under way, and the node is not gone by now."""
        if self._busy or self not in self._registry._departures:
            return
        if not self._registry.session.connected:
            self._report(False)
            return
        self._busy = True
        try:
            self._ask()
        except Exception:
            # No answer may come, and nobody else would see to this node.
            logger.exception(
                "deleting the lock node %s failed, trying again%s",
                self._path or self.guid,
                work.noted(self._about),
                extra=work.logged(self._about),
            )
            self._busy = False
            self._report(False)
            self._registry.session.loop.call_later(RETRY_DELETE, self.proceed)

    def _ask(self) -> None:
        if self._path is None:
            self._registry.directory(self._parent).names_after_barrier(self._on_listed)
        else:
            faultpoints.reach("before_delete")
            changes = self._replacement.changes() if self._replacement is not None else ()
            if changes:
                self._registry.gateway.commit(changes, self._on_replaced)
            else:
                self._registry.gateway.delete(self._path, self._on_deleted)
            faultpoints.reach("after_delete_sent")

    def finish(self) -> None:
        """The node is gone."""
        self._registry.departed(self)
        if self._replacement is not None:
            self._replacement.end_in_time(self._registry.session)
        self._report(True)

    def _on_listed(self, answer: NamesReply) -> None:
        self._busy = False
        if isinstance(answer, NodeMissing):
            self.finish()
        elif isinstance(answer, ZkError):
            self._again(answer)
        else:
            found = [name for name in answer if nodes.bears(name, self.guid)]
            if found:
                self._path = f"{self._parent}/{found[0]}"
                self.proceed()
            else:
                self.finish()

    def _on_deleted(self, answer: WriteReply) -> None:
        self._busy = False
        if isinstance(answer, ZkError):
            self._again(answer)
        else:
            self._registry.gateway.delete_if_empty(self._parent)
            self.finish()

    def _on_replaced(self, answer: WriteReply) -> None:
        """The node is gone, and another in its place; or it was gone by then, perhaps by an own try before."""
        self._busy = False
        if isinstance(answer, ZkError) and not isinstance(answer, NodeMissing):
            self._again(answer)
            return
        self.finish()

    def _again(self, error: ZkError) -> None:
        self._report(False)
        if not isinstance(error, (OutcomeUnknown, SessionGone)):  # those two are followed by news of the session
            logger.error(
                "deleting the lock node %s failed, trying again: %s%s",
                self._path or self.guid,
                error,
                work.noted(self._about),
                extra=work.logged(self._about),
            )
            self._registry.session.loop.call_later(RETRY_DELETE, self.proceed)

    def _report(self, gone: bool) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(gone)
