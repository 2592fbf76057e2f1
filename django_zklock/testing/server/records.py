"""
The records of ZooKeeper's requests and replies.

It knows their fields; it does not know what a request means, nor sockets.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Final, NamedTuple, TypeVar, get_type_hints

from django_zklock.testing.server.jute import INT, Reader, Writer

_HEADER: Final = struct.Struct("!iqi")
_EVENT: Final = struct.Struct("!iqiii")
_MULTI: Final = struct.Struct("!i?i")
_STAT: Final = struct.Struct("!qqqqiiiqiiq")


class _Kind(NamedTuple):
    """How a field is read and written."""

    read: Callable[[Reader], Any]
    write: Callable[[Writer, Any], None]


def _read_acls(reader: Reader) -> list[Acl] | None:
    return reader.vector(lambda one: Acl(one.int32(), one.text() or "", one.text() or ""))


def _write_acl(writer: Writer, acl: Acl) -> None:
    writer.int32(acl.perms)
    writer.text(acl.scheme)
    writer.text(acl.id)


Int = Annotated[int, _Kind(Reader.int32, Writer.int32)]
Long = Annotated[int, _Kind(Reader.int64, Writer.int64)]
Bool = Annotated[bool, _Kind(Reader.flag, Writer.flag)]
Blob = Annotated["bytes | None", _Kind(Reader.blob, Writer.blob)]
Text = Annotated["str | None", _Kind(Reader.text, Writer.text)]
Texts = Annotated[
    "list[str] | None",
    _Kind(
        lambda reader: reader.vector(lambda one: one.text() or ""),
        lambda writer, value: writer.vector(value, Writer.text),
    ),
]
Acls = Annotated[
    "list[Acl] | tuple[Acl, ...] | None",
    _Kind(_read_acls, lambda writer, value: writer.vector(value, _write_acl)),
]


class Acl(NamedTuple):
    """Who may do what: one entry of a node's list."""

    perms: Int
    scheme: Text
    id: Text


class Stat(NamedTuple):
    """What is known of a node beside its data; times are milliseconds."""

    czxid: Long
    mzxid: Long
    ctime: Long
    mtime: Long
    version: Int
    cversion: Int
    aversion: Int
    owner: Long
    length: Int
    children: Int
    pzxid: Long


class ConnectRequest(NamedTuple):
    """The handshake, without the byte for read-only servers that newer clients add. `timeout` is milliseconds."""

    protocol: Int
    last_zxid: Long
    timeout: Int
    session_id: Long
    password: Blob


class ConnectReply(NamedTuple):
    """The answer to the handshake; a timeout of 0 says that the session is no more."""

    protocol: Int
    timeout: Int
    session_id: Long
    password: Blob


class CreateRequest(NamedTuple):
    """create, create2 and createContainer."""

    path: Text
    data: Blob
    acl: Acls
    flags: Int


class CreateTtlRequest(NamedTuple):
    """createTTL; `ttl` is milliseconds."""

    path: Text
    data: Blob
    acl: Acls
    flags: Int
    ttl: Long


class PathRequest(NamedTuple):
    """sync, getACL, getEphemerals, getAllChildrenNumber."""

    path: Text


class VersionRequest(NamedTuple):
    """delete and check."""

    path: Text
    version: Int


class WatchRequest(NamedTuple):
    """exists, getData, getChildren and getChildren2."""

    path: Text
    watch: Bool


class SetDataRequest(NamedTuple):
    """setData."""

    path: Text
    data: Blob
    version: Int


class SetAclRequest(NamedTuple):
    """setACL."""

    path: Text
    acl: Acls
    version: Int


class ModeRequest(NamedTuple):
    """addWatch, checkWatches and removeWatches: a path and a number."""

    path: Text
    mode: Int


class AuthRequest(NamedTuple):
    """auth."""

    kind: Int
    scheme: Text
    auth: Blob


class SetWatchesRequest(NamedTuple):
    """setWatches: what a client that was away still waits for."""

    zxid: Long
    data: Texts
    exist: Texts
    child: Texts


class SetWatches2Request(NamedTuple):
    """setWatches2: the same, with the watches of addWatch."""

    zxid: Long
    data: Texts
    exist: Texts
    child: Texts
    persistent: Texts
    recursive: Texts


class MultiHeader(NamedTuple):
    """Before each part of a multi, in requests and in replies; the last has `done` set."""

    type: Int
    done: Bool
    err: Int


R = TypeVar("R", bound=tuple[Any, ...])


@cache
def _shape(record: type) -> tuple[_Kind, ...]:
    return tuple(hint.__metadata__[0] for hint in get_type_hints(record, include_extras=True).values())


def read(record: type[R], reader: Reader) -> R:
    """Read a record. Raises Malformed."""
    return record(*[kind.read(reader) for kind in _shape(record)])


def write(writer: Writer, record: tuple[Any, ...]) -> None:
    """Write a record."""
    for kind, value in zip(_shape(type(record)), record, strict=True):
        kind.write(writer, value)


def stat_bytes(stat: Stat) -> bytes:
    """Return a Stat as it is on the wire; quicker than `write`, and half of all replies carry one."""
    return _STAT.pack(*stat)


def multi_header(kind: int, done: bool, err: int) -> bytes:
    """Return a MultiHeader as it is on the wire."""
    return _MULTI.pack(kind, done, err)


def text_bytes(value: str) -> bytes:
    """Return a string as it is on the wire."""
    encoded = value.encode("utf-8", "replace")
    return INT.pack(len(encoded)) + encoded


def blob_bytes(value: bytes | None) -> bytes:
    """Return a buffer as it is on the wire."""
    return b"\xff\xff\xff\xff" if value is None else INT.pack(len(value)) + value


def frame(body: bytes | bytearray) -> bytes:
    """Return a body with its length before it."""
    return INT.pack(len(body)) + body


def reply(xid: int, zxid: int, err: int, body: bytes = b"") -> bytes:
    """Return a reply as a frame."""
    return INT.pack(16 + len(body)) + _HEADER.pack(xid, zxid, err) + body


def event(kind: int, path: str) -> bytes:
    """Return a watch event as a frame; its state is always 3, connected."""
    return frame(_EVENT.pack(-1, -1, 0, kind, 3) + text_bytes(path))
