"""
Knows the handful of requests that locks make of ZooKeeper, and sends them so that the server does the ordering.

A session's requests are carried out in the order they are sent, so `enter` sends its create and its list back to
back and both take one round trip. Every method runs on the loop's thread, returns at once, and answers through its
callback, there too: with the value described, or with a `ZkError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kazoo.exceptions import NoNodeError
from kazoo.protocol.serialization import (
    CheckVersion,
    Create,
    Create2,
    Delete,
    GetChildren,
    GetData,
    SetData,
    Sync,
    Transaction,
    int_struct,
    read_string,
    write_string,
)
from kazoo.protocol.states import EventType

from django_zklock.zk import clock
from django_zklock.zk.changes import Change, Make, Put, Remove
from django_zklock.zk.errors import NodeExists, NodeMissing, Unsupported, ZkError, failure, translate
from django_zklock.zk.server_clock import ServerClock
from django_zklock.zk.session import Session

_EPHEMERAL = 1
_SEQUENTIAL = 2
_EPHEMERAL_SEQUENTIAL = 3
_CONTAINER = 4
_PERSISTENT = 0
_ANY_VERSION = -1

Callback = Callable[[Any], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node as the server described it."""

    path: str
    data: bytes
    czxid: int  # the transaction that created it: 64 bits, rising through the whole ensemble
    owner: int  # id of the session that an ephemeral node belongs to, else 0
    ctime: float = 0.0  # when it was created, and
    mtime: float = 0.0  # when its data was last written; seconds since 1970, by the clock of the server
    version: int = 0  # of its data

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]


def _node(path: str, data: bytes | None, stat: Any) -> Node:
    return Node(
        path=path,
        data=data or b"",
        czxid=stat.czxid,
        owner=stat.ephemeralOwner,
        ctime=stat.ctime / 1000,
        mtime=stat.mtime / 1000,
        version=stat.version,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A node and the names of its children, as the leader knew them after they were asked for."""

    path: str
    data: bytes
    version: int
    children: tuple[str, ...]
    made: int = 0
    """How many children were ever made, at most as late as the list: the number that the next sequential one has."""


class _CreateContainer(Create):
    """A create of kazoo's with the operation code for a container, which kazoo has no verb for (ZooKeeper 3.5.3)."""

    type = 19

    @classmethod
    def deserialize(cls, buffer: bytes, offset: int) -> object:
        return Create2.deserialize(buffer, offset)


@dataclass(frozen=True, slots=True)
class _GetEphemerals:
    """List the ephemeral nodes of the own session below a path, which kazoo has no verb for (ZooKeeper 3.6)."""

    prefix: str
    type: ClassVar[int] = 103

    def serialize(self) -> bytes:
        return bytes(write_string(self.prefix))

    @classmethod
    def deserialize(cls, buffer: bytes, offset: int) -> list[str]:
        (count,) = int_struct.unpack_from(buffer, offset)
        offset += int_struct.size
        paths = []
        for _ in range(count):
            path, offset = read_string(buffer, offset)
            paths.append(path)
        return paths


class Watch:
    """A watch on one node or its children, told once of the first thing that happens; `cancel()` it in time."""

    __slots__ = ("_callback", "_path", "_session")

    def __init__(self, session: Session, path: str, callback: Callback) -> None:
        self._session = session
        self._path = path
        self._callback: Callback | None = callback

    def __bool__(self) -> bool:
        """
        Tell whether anybody cares. kazoo asks when it sends the request, and once more when the answer is there.

        It would keep, else, what was cancelled in between, until something happens to the node.
        """
        return self._callback is not None

    def __call__(self, event: Any) -> None:
        """Take kazoo's event, on kazoo's thread."""
        if event.type != EventType.NONE:  # NONE: the connection broke; the session's observers are told of that
            self._session.loop.deliver(self._fire, event.type == EventType.DELETED)

    def _fire(self, deleted: bool) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback(deleted)

    def cancel(self) -> None:
        """Stop listening."""
        self._callback = None
        self._session.unwatch(self._path, self)


class Gateway:
    """The requests of the lock core, on one session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._acl = session.options.acls()
        self._clock = session.attached(ServerClock)
        self._containers = True  # until the server says it knows no containers

    def enter(self, parent: str, prefix: str, data: bytes, on_created: Callback, on_listed: Callback | None) -> None:
        """
        Create an ephemeral sequential node below `parent` and list its children, in one round trip.

        `on_created` gets the `Node`, `on_listed` the names; without it nothing is listed. `NodeMissing` in both: the
        parent has to be made first. The acknowledged create is a quorum write, so it extends the session's lease.
        """
        sent_at = clock.now()

        def created(answer: Any) -> None:
            if isinstance(answer, ZkError):
                on_created(answer)
                return
            path, stat = answer
            self.session.extend_lease(sent_at)
            self._clock.note(stat.ctime / 1000)
            on_created(_node(path, data, stat))

        create = Create2(f"{parent}/{prefix}", data, self._acl, _EPHEMERAL_SEQUENTIAL)
        requests: list[tuple[Any, Callback]] = [(create, created)]
        if on_listed is not None:
            requests.append((GetChildren(parent, None), on_listed))
        self.session.send_together(requests)

    def children(self, parent: str, callback: Callback, on_event: Callback | None = None) -> Watch | None:
        """
        List the names of a node's children.

        With `on_event` watch them, too: called once, with False when one comes or goes, with True when the node itself
        is deleted. A node that is missing leaves no watch.
        """
        watch = Watch(self.session, parent, on_event) if on_event is not None else None
        self.session.send(GetChildren(parent, watch), callback)
        return watch

    def children_after_barrier(self, parent: str, callback: Callback) -> None:
        """
        List the names of a node's children as the leader knows them now.

        The sync before the list is what makes the list final for a create whose answer was lost: without it, the
        create may be carried out after a list that did not show it.
        """

        def synced(answer: Any) -> None:
            if isinstance(answer, ZkError):
                failures.append(answer)

        def listed(answer: Any) -> None:
            callback(failures[0] if failures else answer)

        failures: list[ZkError] = []
        self.session.send_together([(Sync(parent), synced), (GetChildren(parent, None), listed)])

    def read(self, path: str, callback: Callback, on_event: Callback | None = None) -> Watch | None:
        """
        Read a node into a `Node`; with `on_event` watch it, too: called once, with True when the node is deleted.

        It is a read, not an "exists", because an "exists" of a missing node leaves a watch behind for ever
        (ZOOKEEPER-442).
        """
        watch = Watch(self.session, path, on_event) if on_event is not None else None

        def got(answer: Any) -> None:
            if isinstance(answer, ZkError):
                callback(answer)
                return
            data, stat = answer
            callback(_node(path, data, stat))

        self.session.send(GetData(path, watch), got)
        return watch

    def write(self, path: str, data: bytes, version: int, callback: Callback) -> None:
        """Replace the data of a node that has this version (-1: any); `callback` gets the `Node` as it is then."""

        def wrote(answer: Any) -> None:
            if not isinstance(answer, ZkError):
                self._clock.note(answer.mtime / 1000)
                answer = _node(path, data, answer)
            callback(answer)

        self.session.send(SetData(path, data, version), wrote)

    def look(self, path: str, callback: Callback) -> None:
        """
        Read a node and list its children, in one round trip; `callback` gets the `Family`, or None if there is none.

        The sync before it makes it no older than the call. Data and children are read one after the other, so a
        change between them may show in one only; whoever acts on it names the version.
        """
        answers: list[Any] = []

        def answered(answer: Any) -> None:
            answers.append(answer)
            if len(answers) < len(requests):
                return
            errors = [each for each in answers if isinstance(each, ZkError)]
            unclear = [each for each in errors if not isinstance(each, NodeMissing)]
            if errors:
                callback(unclear[0] if unclear else None)
            else:
                _, (data, stat), names = answers
                # What the stat tells as cversion is twice the children ever made, less those that are there.
                made = (stat.cversion + stat.numChildren) // 2
                callback(Family(path=path, data=data or b"", version=stat.version, children=tuple(names), made=made))

        requests = (Sync(path), GetData(path, None), GetChildren(path, None))
        self.session.send_together([(request, answered) for request in requests])

    def change(self, changes: Sequence[Change], callback: Callback) -> None:
        """Make all changes or none; `callback` gets None, or the error of the first one that could not be made."""

        def changed(answer: Any) -> None:
            if not isinstance(answer, ZkError):
                failed = failure(answer)
                answer = translate(failed) if failed is not None else None
            callback(answer)

        self.session.send(Transaction([self._request(change) for change in changes]), changed)

    def _request(self, change: Change) -> Any:
        if isinstance(change, Make):
            flags = _EPHEMERAL if change.ephemeral else _SEQUENTIAL if change.sequential else _PERSISTENT
            return Create(change.path, change.data, self._acl, flags)
        if isinstance(change, Put):
            return SetData(change.path, change.data, change.version)
        if isinstance(change, Remove):
            return Delete(change.path, change.version)
        return CheckVersion(change.path, _ANY_VERSION)

    def vouch(self, paths: Sequence[str], callback: Callback) -> None:
        """
        Have a quorum confirm that this session lives and that these nodes of it exist; extends the lease.

        It is a transaction that checks the nodes and changes nothing: ordered by the leader and acknowledged by a
        quorum like any write, and it wakes no watch. `callback` gets None, or the first path that is missing.
        """
        sent_at = clock.now()

        def checked(answer: Any) -> None:
            if isinstance(answer, ZkError):
                callback(answer)
                return
            failed = failure(answer)
            if failed is None:
                self.session.extend_lease(sent_at)
                callback(None)
            elif isinstance(failed, NoNodeError):
                callback(paths[answer.index(failed)])
            else:
                callback(translate(failed))

        self.session.send(Transaction([CheckVersion(path, _ANY_VERSION) for path in paths]), checked, urgent=True)

    def reach(self, callback: Callback) -> None:
        """
        Have a quorum carry out a transaction that changes nothing; `callback` gets its number, or a later one.

        So nobody can have been given a token above that number before this was called.
        """
        last_zxid = self.session.last_zxid()

        def checked(answer: Any) -> None:
            # Also if the node is missing: what fails has been ordered and acknowledged like the rest.
            callback(answer if isinstance(answer, ZkError) else last_zxid())

        self.session.send(Transaction([CheckVersion(self.session.options.base, _ANY_VERSION)]), checked)

    def tell_time(self, path: str, callback: Callback) -> None:
        """
        Have the leader tell the time to this session's `ServerClock`; `callback` gets None.

        No request asks for it, but what is written bears it. So one transaction makes a node at `path`, writes it and
        deletes it: nobody ever sees the node, and none is left behind if the answer is lost.
        """

        def changed(answer: Any) -> None:
            if isinstance(answer, ZkError):
                callback(answer)
                return
            failed = failure(answer)
            if failed is None:
                self._clock.note(answer[1].mtime / 1000)
            callback(translate(failed) if failed is not None else None)

        parts = [Create(path, b"", self._acl, _PERSISTENT), SetData(path, b"", 0), Delete(path, 1)]
        self.session.send(Transaction(parts), changed)

    def delete(self, path: str, callback: Callback) -> None:
        """Delete a node; `callback` gets None, also when there was none."""

        def deleted(answer: Any) -> None:
            callback(answer if isinstance(answer, ZkError) and not isinstance(answer, NodeMissing) else None)

        self.session.send(Delete(path, _ANY_VERSION), deleted)

    def make_parents(self, path: str, callback: Callback, *, lasting: bool = False) -> None:
        """
        Create a node and all above it that is missing; `callback` gets None.

        They are containers, which the server deletes by itself some time after the last child is gone; persistent
        nodes where the server knows no containers. The node itself is one that nobody deletes if it is `lasting`: a
        client that remembers to have seen it would fail without, as kazoo's recipes do.
        """

        def answered(answer: Any) -> None:
            if isinstance(answer, Unsupported) and container:
                self._containers = False
                self.make_parents(path, callback)
            elif isinstance(answer, NodeMissing) and above:
                self.make_parents(above, made_above)
            else:
                callback(answer if isinstance(answer, ZkError) and not isinstance(answer, NodeExists) else None)

        def made_above(answer: Any) -> None:
            if isinstance(answer, ZkError):
                callback(answer)
            else:
                self.make_parents(path, callback, lasting=lasting)

        above = path.rpartition("/")[0]
        # What was asked for: another contender may learn first that there are no containers.
        container = self._containers and not lasting
        if container:
            self.session.send(_CreateContainer(path, b"", self._acl, _CONTAINER), answered)
        else:
            self.session.send(Create(path, b"", self._acl, _PERSISTENT), answered)

    def tidy(self, parent: str) -> None:
        """Delete an empty parent, where the server does not do so by itself; the outcome does not matter."""
        if not self._containers:
            self.session.send(Delete(parent, _ANY_VERSION), lambda answer: None)

    def own_nodes(self, below: str, callback: Callback) -> None:
        """List the paths of all ephemeral nodes of this session below a path."""
        self.session.send(_GetEphemerals(below), callback)
