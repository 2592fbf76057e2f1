"""
The wire format: Jute's encoding of values, and the replies of ZooKeeper.

Jute encodes numbers, flags, buffers, strings and lists.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple

from django_zklock.testing.server.codes import MAX_FRAME

INT: Final = struct.Struct("!i")
STAT: Final = struct.Struct("!qqqqiiiqiiq")
MULTI: Final = struct.Struct("!i?i")
"""The header of a part of a multi: the operation, whether it is the end, and the error."""


class Malformed(ValueError):
    """The bytes are not a valid record: they end too early, or a length is impossible."""


class Reader:
    """Read the values of a frame in order. All methods raise Malformed if the frame ends too early."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

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
        return int.from_bytes(self.read(4), "big", signed=True)

    def int64(self) -> int:
        """Return a signed number of eight bytes."""
        return int.from_bytes(self.read(8), "big", signed=True)

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

    def acls(self) -> list[Acl] | None:
        """Return an access control list."""
        return self.vector(lambda entry: Acl(entry.int32(), entry.text() or "", entry.text() or ""))


class Acl(NamedTuple):
    """One entry of a node's access control list."""

    perms: int
    scheme: str
    id: str


_HEADER: Final = struct.Struct("!iqi")
_EVENT: Final = struct.Struct("!iqiii")
_CONNECT: Final = struct.Struct("!iiq")


def acl_bytes(acl: Acl) -> bytes:
    """Return an entry of an access control list as it is on the wire."""
    return INT.pack(acl.perms) + text_bytes(acl.scheme) + text_bytes(acl.id)


def text_bytes(value: str) -> bytes:
    """Return a string as it is on the wire."""
    return frame(value.encode("utf-8", "replace"))


def blob_bytes(value: bytes | None) -> bytes:
    """Return a buffer as it is on the wire."""
    return b"\xff\xff\xff\xff" if value is None else frame(value)


def list_bytes(values: Collection[bytes]) -> bytes:
    """Return a list of values that are as on the wire."""
    return INT.pack(len(values)) + b"".join(values)


def connect_reply(timeout: int, session_id: int, password: bytes) -> bytes:
    """Return the reply to the handshake, without its length. A timeout of 0 (ms) means that the session has expired."""
    return _CONNECT.pack(0, timeout, session_id) + blob_bytes(password)


def frame(body: bytes) -> bytes:
    """Return a body with its length before it."""
    return INT.pack(len(body)) + body


def reply(xid: int, zxid: int, err: int, body: bytes = b"") -> bytes:
    """Return a reply as a frame."""
    return frame(_HEADER.pack(xid, zxid, err) + body)


def event(kind: int, path: str) -> bytes:
    """Return a watch event as a frame; its state is always 3, connected."""
    return frame(_EVENT.pack(-1, -1, 0, kind, 3) + text_bytes(path))
