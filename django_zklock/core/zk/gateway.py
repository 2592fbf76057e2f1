"""
The requests that locks send to ZooKeeper.

A session's requests are carried out in the order in which they are sent. So `create_and_list` sends its two requests
together, and both take one round trip. Every method runs on the loop's thread and returns at once. The callback gets
the reply there later: the described value, or a `ZkError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from kazoo.protocol import serialization as wire

from django_zklock.core import clock
from django_zklock.core.zk.client import CreateContainer, GetEphemerals, Requests, Watch, acls
from django_zklock.core.zk.errors import (
    INTERRUPTED,
    NodeExists,
    NodeMissing,
    ZkError,
    failure,
    translate,
)
from django_zklock.core.zk.multi import Create, Delete, Operation, SetData

if TYPE_CHECKING:
    from kazoo.protocol.states import ZnodeStat

    from django_zklock.core.zk.options import SessionOptions

CLOCK_NODE: Final = "!clock"
"""The name of the znode by which the leader tells the time. It begins like a marker, so it is part of no key."""

_LATEST: Final = 253402300799.0  # seconds since 1970: the end of the year 9999
_PERSISTENT = 0
_EPHEMERAL = 1
_SEQUENTIAL = 2
_CONTAINER = 4
_ANY_VERSION = -1

_T = TypeVar("_T")
_Results: TypeAlias = "list[Any]"  # of the operations of a transaction, as kazoo returns them

Callback: TypeAlias = Callable[[_T], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A znode, as the server described it."""

    path: str
    data: bytes
    czxid: int  # the transaction that created it: 64 bits, rising through the whole ensemble
    owner: int  # the session id of an ephemeral znode, else 0
    ctime: float = 0.0  # when it was created, in seconds since 1970 by the server's clock
    mtime: float = 0.0  # when its data was last written, likewise
    version: int = 0  # of its data

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @classmethod
    def of(cls, path: str, data: bytes | None, stat: ZnodeStat) -> Node:
        """Return a znode by a reply."""
        return cls(
            path=path,
            data=data or b"",
            czxid=stat.czxid,
            owner=stat.ephemeralOwner,
            ctime=stat.ctime / 1000,
            mtime=stat.mtime / 1000,
            version=stat.version,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryState:
    """A znode with the names of its children. They are read after a `sync`, so they are no older than the request."""

    path: str
    data: bytes
    version: int
    children: tuple[str, ...]


NodeReply: TypeAlias = Node | ZkError
NamesReply: TypeAlias = "list[str] | ZkError"
DirectoryReply: TypeAlias = DirectoryState | ZkError | None
"""None: there is no such znode."""
WriteReply: TypeAlias = ZkError | None
"""None: it was carried out."""


class ServerClock:
    """
    The wall clock of ZooKeeper, for one session; on the loop's thread.

    The leader stamps each write, and some replies contain the stamp. The boot-time clock counts on from there, so the
    two clocks of different machines are never compared. The result is late by the travel time of the reply. It is
    never early, unless the leader's clock jumps or another server becomes the leader. `latest` is never late.
    """

    def __init__(self) -> None:
        self._offset: float | None = None  # of the server's clock from `clock.now()`
        self._round_trip = 0.0  # of the write with the stamp, in seconds

    def record(self, stamp: int, sent_at: float) -> None:
        """Record the stamp of a write (milliseconds since 1970) that was sent at `sent_at` and is now answered."""
        arrived = clock.now()
        self._offset = stamp / 1000 - arrived
        self._round_trip = arrived - sent_at

    def now(self) -> float | None:
        """Return the server's time in seconds since 1970, or None if no reply of this session contained one."""
        return None if self._offset is None else clock.now() + self._offset

    def latest(self) -> float | None:
        """Return the latest that the server's time can be, as if the reply had needed no time; None if unknown."""
        return None if self._offset is None else clock.now() + self._offset + self._round_trip


def to_datetime(seconds: float) -> datetime:
    """Return seconds since 1970 as a time in UTC; the nearest possible if a znode has an impossible time."""
    return datetime.fromtimestamp(min(max(seconds, 0.0), _LATEST), UTC)


def _ignore(reply: object) -> None:
    """The callback of a write whose outcome does not matter."""


class Gateway:
    """The requests of locks, on one session. A create or a check that a quorum acknowledges extends its lease."""

    def __init__(self, requests: Requests, options: SessionOptions, extend_lease: Callable[[float], object]) -> None:
        self.clock = ServerClock()
        self._requests = requests
        self._extend_lease = extend_lease  # gets the time at which the write was sent
        self._base = options.base
        self._acl = acls(options)

    # --- reads --------------------------------------------------------------------------------------------------

    def read(self, path: str, callback: Callback[NodeReply], on_event: Callback[bool] | None = None) -> Watch | None:
        """
        Read a znode. With `on_event`, watch it too: it is called once, with True if the znode is deleted.

        The request is a read and not an "exists", because an "exists" of a missing znode leaves a watch on the server
        for ever (ZOOKEEPER-442).
        """
        watch = self._requests.watch(path, on_event)
        self._requests.send((wire.GetData(path, watch), _converting(lambda reply: Node.of(path, *reply), callback)))
        return watch

    def read_each(self, paths: Sequence[str], callback: Callback[list[NodeReply] | ZkError]) -> None:
        """Read znodes in one round trip. `callback` gets the replies in order; an error if one was lost."""

        def on_all_read(replies: list[NodeReply]) -> None:
            callback(next((reply for reply in replies if isinstance(reply, INTERRUPTED)), replies))

        on_read = _collecting(len(paths), on_all_read)
        for path in paths:
            self.read(path, on_read)
        if not paths:
            callback([])

    def read_all(self, paths: Sequence[str], callback: Callback[dict[str, Node] | ZkError]) -> None:
        """Read znodes as `read_each` does. `callback` gets those that exist and that this client may read, by path."""

        def nodes(replies: list[NodeReply]) -> dict[str, Node]:
            return {reply.path: reply for reply in replies if isinstance(reply, Node)}

        self.read_each(paths, _converting(nodes, callback))

    def children(
        self, parent: str, callback: Callback[NamesReply], on_event: Callback[bool] | None = None
    ) -> Watch | None:
        """
        List the names of a znode's children.

        With `on_event`, watch them too: it is called once, with False when a child comes or goes, with True when the
        znode itself is deleted. A missing znode leaves no watch.
        """
        watch = self._requests.watch(parent, on_event)
        self._requests.send((wire.GetChildren(parent, watch), callback))
        return watch

    def children_after_sync(self, parent: str, callback: Callback[NamesReply]) -> None:
        """
        List the names of a znode's children as the leader knows them now.

        The sync makes the list final for a create whose reply was lost. Without it, the create could still be carried
        out after a list that does not show it.
        """
        self._send_all(
            (wire.Sync(parent), wire.GetChildren(parent, None)),
            lambda replies: callback(replies[0] if isinstance(replies[0], ZkError) else replies[1]),
        )

    def read_directory(self, path: str, callback: Callback[DirectoryReply]) -> None:
        """
        Read a znode and list its children, in one round trip.

        A sync makes the result no older than the call. Data and children are read one after the other, so a change in
        between may show in one only. A write that relies on them must name the version.
        """

        def on_replies(replies: Sequence[Any]) -> None:
            errors = [error for error in replies if isinstance(error, ZkError)]
            unclear = [error for error in errors if not isinstance(error, NodeMissing)]
            if errors:
                callback(unclear[0] if unclear else None)
                return
            _, (data, stat), names = replies
            callback(DirectoryState(path=path, data=data or b"", version=stat.version, children=tuple(names)))

        self._send_all((wire.Sync(path), wire.GetData(path, None), wire.GetChildren(path, None)), on_replies)

    def _send_all(self, requests: Sequence[Any], callback: Callback[Sequence[Any]]) -> None:
        """Send requests in one round trip; `callback` gets all replies, in their order."""
        on_reply = _collecting(len(requests), callback)
        self._requests.send(*((request, on_reply) for request in requests))

    def own_ephemerals(self, below: str, callback: Callback[NamesReply]) -> None:
        """List the paths of all ephemeral znodes of this session below a path."""
        self._requests.send((GetEphemerals(below), callback))

    def ask(self, request: Any, convert: Callable[[Any], _T], callback: Callback[_T | ZkError]) -> None:
        """Send a request of kazoo's that locks do not need. `callback` gets its reply converted, or the error."""
        self._requests.send((request, _converting(convert, callback)))

    # --- writes -------------------------------------------------------------------------------------------------

    def create_and_list(
        self,
        parent: str,
        prefix: str,
        data: bytes,
        on_created: Callback[NodeReply],
        on_listed: Callback[NamesReply] | None,
    ) -> None:
        """
        Create an ephemeral sequential znode below `parent` and list its children, in one round trip.

        Without `on_listed` nothing is listed. If the parent is missing, both callbacks get `NodeMissing`. The create
        is an acknowledged quorum write, so it extends the session's lease.
        """
        sent_at = clock.now()

        def on_reply(reply: tuple[str, ZnodeStat] | ZkError) -> None:
            if isinstance(reply, ZkError):
                on_created(reply)
                return
            path, stat = reply
            self._extend_lease(sent_at)
            self.clock.record(stat.ctime, sent_at)
            on_created(Node.of(path, data, stat))

        create = wire.Create2(f"{parent}/{prefix}", data, self._acl, _EPHEMERAL | _SEQUENTIAL)
        listing = () if on_listed is None else ((wire.GetChildren(parent, None), on_listed),)
        self._requests.send((create, on_reply), *listing)

    def write(self, path: str, data: bytes, version: int, callback: Callback[NodeReply] = _ignore) -> None:
        """Replace the data of a znode that has this version (-1: any). `callback` gets the znode after the write."""
        sent_at = clock.now()

        def written(stat: ZnodeStat) -> Node:
            self.clock.record(stat.mtime, sent_at)
            return Node.of(path, data, stat)

        self._requests.send((wire.SetData(path, data, version), _converting(written, callback)))

    def commit(self, operations: Sequence[Operation], callback: Callback[WriteReply] = _ignore) -> None:
        """Carry out all operations or none. `callback` gets None, or the error of the operation that failed."""
        self._transact([self._request(operation) for operation in operations], callback)

    def _transact(
        self,
        requests: Sequence[Any],
        callback: Callback[WriteReply],
        on_carried_out: Callback[_Results] = _ignore,
        *,
        urgent: bool = False,
    ) -> None:
        """Send a transaction. `callback` gets None, after `on_carried_out`, or the error of the request that failed."""

        def on_results(results: _Results) -> WriteReply:
            failed = failure(results)
            if failed is None:
                on_carried_out(results)
                return None
            request = requests[results.index(failed)]
            error = translate(failed, request)
            error.path = request.path
            return error

        self._requests.send((wire.Transaction(requests), _converting(on_results, callback)), urgent=urgent)

    def _request(self, operation: Operation) -> Any:
        if isinstance(operation, Create):
            flags = _EPHEMERAL if operation.ephemeral else _PERSISTENT
            return wire.Create(operation.path, operation.data, self._acl, flags)
        if isinstance(operation, SetData):
            return wire.SetData(operation.path, operation.data, operation.version)
        if isinstance(operation, Delete):
            return wire.Delete(operation.path, operation.version)
        return wire.CheckVersion(operation.path, operation.version)

    def delete(self, path: str, callback: Callback[WriteReply] = _ignore) -> None:
        """Delete a znode."""
        self._requests.send((wire.Delete(path, _ANY_VERSION), _converting(lambda deleted: None, callback)))

    def ensure_path(self, path: str, callback: Callback[WriteReply], *, lasting: bool = False) -> None:
        """
        Create a znode and its missing parents.

        They are containers: the server deletes them some time after the last child is gone. The chroot and ROOT are
        persistent: the operator may have set their ACL, or closed the znode above. A `lasting` znode is persistent,
        too. kazoo's recipes need that, as they create the directory only once.
        """
        parent = path.rpartition("/")[0]
        lasting = lasting or f"{self._base}/".startswith(f"{path}/")
        create, flags = (wire.Create, _PERSISTENT) if lasting else (CreateContainer, _CONTAINER)

        def on_reply(reply: object) -> None:
            if isinstance(reply, NodeMissing) and parent:
                again = partial(self.ensure_path, path, callback, lasting=lasting)
                self.ensure_path(parent, lambda error: again() if error is None else callback(error))
            else:
                callback(reply if isinstance(reply, ZkError) and not isinstance(reply, NodeExists) else None)

        self._requests.send((create(path, b"", self._acl, flags), on_reply))

    # --- quorum -------------------------------------------------------------------------------------------------

    def quorum_check(self, paths: Sequence[str], callback: Callback[str | ZkError | None]) -> None:
        """
        Let a quorum confirm that this session lives and that these znodes of it exist. Extends the lease.

        The request is a transaction that only checks the znodes. The leader orders it and a quorum acknowledges it like
        any write, but it changes nothing and wakes no watch. `callback` gets None, or the first path that is missing.
        """
        sent_at = clock.now()
        self._transact(
            [wire.CheckVersion(path, _ANY_VERSION) for path in paths],
            lambda error: callback(error.path if isinstance(error, NodeMissing) else error),
            lambda results: self._extend_lease(sent_at),
            urgent=True,
        )

    def sync_clock(self, path: str, callback: Callback[WriteReply]) -> None:
        """
        Set the clock of this gateway from a write.

        No request returns the time, but each write is stamped with it. So one transaction creates a znode at `path`,
        writes it and deletes it. No client ever sees the znode, and none is left if the reply is lost.
        """
        sent_at = clock.now()
        self._transact(
            [wire.Create(path, b"", self._acl, _PERSISTENT), wire.SetData(path, b"", 0), wire.Delete(path, 1)],
            callback,
            lambda results: self.clock.record(results[1].mtime, sent_at),
        )


def _converting(convert: Callable[[Any], _T], callback: Callback[_T | ZkError]) -> Callback[Any]:
    """Return a callback for kazoo's reply: pass on an error as it is, and any other reply converted."""

    def on_reply(reply: Any) -> None:
        callback(reply if isinstance(reply, ZkError) else convert(reply))

    return on_reply


def _collecting(count: int, callback: Callback[list[Any]]) -> Callback[Any]:
    """Return a callback for each of `count` requests, whose replies arrive in order; `callback` gets all of them."""
    replies: list[Any] = []

    def on_reply(reply: Any) -> None:
        replies.append(reply)
        if len(replies) == count:
            callback(replies)

    return on_reply
