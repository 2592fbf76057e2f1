"""
The wire format: Jute's encoding of values, and the records of ZooKeeper's requests and replies.

Jute encodes numbers, flags, buffers, strings and lists.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Final, NamedTuple, TypeVar, get_type_hints

from django_zklock.testing.server.codes import MAX_FRAME

INT: Final = struct.Struct("!i")
LONG: Final = struct.Struct("!q")


class Malformed(ValueError):
    """The bytes are not a valid record: they end too early, or a length is impossible."""


class Reader:
    """Read the values of a frame in order. All methods raise Malformed if the frame ends too early."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    @property
    def left(self) -> int:
        """The number of bytes that are not read yet."""
        return len(self.data) - self.at

    def read(self, count: int) -> bytes:
        """Return the next bytes unchanged."""
        end = self.at + count
        if count < 0 or end > len(self.data):
            raise Malformed(f"expected {count} bytes, {self.left} are left")
        data = self.data[self.at : end]
        self.at = end
        return data

    def int32(self) -> int:
        """Return a signed number of four bytes."""
        value: int = INT.unpack(self.read(4))[0]
        return value

    def int64(self) -> int:
        """Return a signed number of eight bytes."""
        value: int = LONG.unpack(self.read(8))[0]
        return value

    def flag(self) -> bool:
        """Return a boolean. Any byte but zero is true."""
        return self.read(1) != b"\0"

    def blob(self) -> bytes | None:
        """Return a buffer. None and an empty buffer are different values."""
        length = self.int32()
        if length == -1:
            return None
        if length > MAX_FRAME:
            raise Malformed(f"a length of {length}")
        return self.read(length)

    def text(self) -> str | None:
        """Return a string. Invalid UTF-8 becomes U+FFFD, as in Java."""
        data = self.blob()
        return None if data is None else data.decode("utf-8", "replace")

    def vector(self, read: Callable[[Reader], Any]) -> list[Any] | None:
        """Return a list; `read` reads one value."""
        count = self.int32()
        if count == -1:
            return None
        if count < 0 or count > self.left:  # a value needs at least one byte: a wrong count must not use up memory
            raise Malformed(f"a list of {count}")
        return [read(self) for _ in range(count)]


class Writer:
    """Write values into a frame."""

    __slots__ = ("data",)

    def __init__(self) -> None:
        self.data = bytearray()

    def int32(self, value: int) -> None:
        """Put a signed number of four bytes."""
        self.data += INT.pack(value)

    def int64(self, value: int) -> None:
        """Put a signed number of eight bytes."""
        self.data += LONG.pack(value)

    def flag(self, value: bool) -> None:
        """Put a boolean."""
        self.data += b"\1" if value else b"\0"

    def blob(self, value: bytes | None) -> None:
        """Put a buffer, or None."""
        if value is None:
            self.data += b"\xff\xff\xff\xff"
        else:
            self.data += INT.pack(len(value))
            self.data += value

    def text(self, value: str | None) -> None:
        """Put a string, or None."""
        self.blob(None if value is None else value.encode("utf-8", "replace"))

    def vector(self, values: list[Any] | tuple[Any, ...] | None, write: Callable[[Writer, Any], None]) -> None:
        """Put a list; `write` puts one value."""
        self.int32(-1 if values is None else len(values))
        for value in values or ():
            write(self, value)


_HEADER: Final = struct.Struct("!iqi")
_EVENT: Final = struct.Struct("!iqiii")
_MULTI: Final = struct.Struct("!i?i")
_STAT: Final = struct.Struct("!qqqqiiiqiiq")


class _Kind(NamedTuple):
    """How a field is read and written."""

    read: Callable[[Reader], Any]
    write: Callable[[Writer, Any], None]


def _read_acls(reader: Reader) -> list[Acl] | None:
    return reader.vector(lambda entry: Acl(entry.int32(), entry.text() or "", entry.text() or ""))


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
        lambda reader: reader.vector(lambda item: item.text() or ""),
        lambda writer, value: writer.vector(value, Writer.text),
    ),
]
Acls = Annotated[
    "list[Acl] | tuple[Acl, ...] | None", _Kind(_read_acls, lambda writer, value: writer.vector(value, _write_acl))
]


class Acl(NamedTuple):
    """One entry of a node's access control list."""

    perms: Int
    scheme: Text
    id: Text


class Stat(NamedTuple):
    """A node's metadata. Times are milliseconds."""

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
    """The reply to the handshake. A timeout of 0 means that the session has expired."""

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
    """The header of each part of a multi, in requests and in replies. The one after the last part has `done` set."""

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
