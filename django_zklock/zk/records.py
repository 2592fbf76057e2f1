"""
Knows small records: persistent nodes that are compared and set, and written only while a node of this session exists.

That node is a fence. The leader of the ensemble checks it in the same transaction that writes, so no write can come
from a process that has lost what the node stands for, however long it was paused. Every method runs on the loop's
thread, returns at once, and answers through its callback, there too: with the value described, or with a `ZkError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError
from kazoo.protocol.serialization import CheckVersion, Create, Delete, GetChildren, GetData, SetData, Transaction

from django_zklock.zk import clock
from django_zklock.zk.errors import NodeMissing, ZkError, failure, translate
from django_zklock.zk.gateway import Callback, Gateway

_ANY_VERSION = -1
_PERSISTENT = 0
_BATCH = 100  # records in one transaction, far from the most that a server takes in one request


class FenceGone(ZkError):
    """The node that entitles to write is gone; nothing was written."""


class RecordChanged(ZkError):
    """A record is not what the writer took it for; nothing was written."""


@dataclass(frozen=True, slots=True)
class Record:
    """What is written, and how often it was written before."""

    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Write:
    """A change of one record: what is to be there, over which version; None where there is none yet."""

    path: str
    data: bytes
    over: int | None


class Records:
    """The requests that read and write records, on one session."""

    def __init__(self, gateway: Gateway) -> None:
        self._session = gateway.session
        self._make_parents = gateway.make_parents
        self._acl = gateway.session.options.acls()

    def read_below(self, parent: str, callback: Callback) -> None:
        """Read all children of a node: names to `Record`s; none if there is no such node."""

        def on_listed(answer: Any) -> None:
            if isinstance(answer, NodeMissing):
                callback({})
            elif isinstance(answer, ZkError):
                callback(answer)
            else:
                self.read([f"{parent}/{name}" for name in answer], on_read)

        def on_read(answer: Any) -> None:
            if isinstance(answer, Mapping):
                answer = {path.rpartition("/")[2]: record for path, record in answer.items()}
            callback(answer)

        self._session.send(GetChildren(parent, None), on_listed)

    def read(self, paths: Sequence[str], callback: Callback) -> None:
        """Read these nodes, in one round trip: paths to `Record`s; those that are missing are left out."""
        found: dict[str, Record] = {}
        failures: list[ZkError] = []
        left = len(paths)

        def receiver(path: str) -> Callable[[Any], None]:
            def on_read(answer: Any) -> None:
                nonlocal left
                left -= 1
                if isinstance(answer, ZkError):
                    failures.extend([answer] if not isinstance(answer, NodeMissing) else [])
                else:
                    data, stat = answer
                    found[path] = Record(data or b"", stat.version)
                if not left:
                    callback(failures[0] if failures else found)

            return on_read

        if not paths:
            callback(found)
            return
        self._session.send_together([(GetData(path, None), receiver(path)) for path in paths])

    def write(self, fence: str, writes: Sequence[Write], callback: Callback) -> None:
        """
        Write these records if the node `fence` exists; `callback` gets None.

        `FenceGone` if it does not, `RecordChanged` if a record is not of the version that its write names. A hundred
        of them are one transaction, all or nothing; more are written a hundred at a time.
        """
        if not writes:
            callback(None)
            return
        now, later = writes[:_BATCH], writes[_BATCH:]
        sent_at = clock.now()
        parent = now[0].path.rpartition("/")[0]

        def on_written(answer: Any) -> None:
            error = answer if isinstance(answer, ZkError) else _error_of(answer)
            if isinstance(error, _ParentMissing):
                self._make_parents(parent, on_parents)
            elif error is not None:
                callback(error)
            else:
                self._session.extend_lease(sent_at)
                self.write(fence, later, callback)

        def on_parents(answer: Any) -> None:
            if isinstance(answer, ZkError):
                callback(answer)
            else:
                self.write(fence, writes, callback)

        operations = [CheckVersion(fence, _ANY_VERSION), *map(self._operation, now)]
        self._session.send(Transaction(operations), on_written)

    def delete(self, fence: str, path: str, version: int, callback: Callback) -> None:
        """Delete a record of this version if the node `fence` exists; `callback` gets None, or why not."""

        def on_deleted(answer: Any) -> None:
            callback(answer if isinstance(answer, ZkError) else _error_of(answer))

        self._session.send(Transaction([CheckVersion(fence, _ANY_VERSION), Delete(path, version)]), on_deleted)

    def _operation(self, write: Write) -> Any:
        if write.over is None:
            return Create(write.path, write.data, self._acl, _PERSISTENT)
        return SetData(write.path, write.data, write.over)


class _ParentMissing(ZkError):
    """The node above a new record has to be made first."""


def _error_of(results: Sequence[Any]) -> ZkError | None:
    """Return what became of a transaction that begins with the check of its fence; None if it was carried out."""
    failed = failure(results)
    if failed is None:
        return None
    if isinstance(failed, NoNodeError):
        return FenceGone() if failed is results[0] else _ParentMissing()
    if isinstance(failed, (BadVersionError, NodeExistsError)):
        return RecordChanged()
    return translate(failed)
