"""ZooKeeper's encoding, written a second time: it shares nothing with kazoo or the dev server, nor their mistakes."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

# ZooDefs.OpCode
OPS: Final = {
    "create": 1,
    "delete": 2,
    "exists": 3,
    "getData": 4,
    "setData": 5,
    "getACL": 6,
    "setACL": 7,
    "getChildren": 8,
    "sync": 9,
    "ping": 11,
    "getChildren2": 12,
    "check": 13,
    "multi": 14,
    "create2": 15,
    "createContainer": 19,
    "multiRead": 22,
    "auth": 100,
    "setWatches": 101,
    "getEphemerals": 103,
    "createSession": -10,
    "closeSession": -11,
}
NAMES: Final = {code: name for name, code in OPS.items()}
XID_EVENT, XID_PING, XID_AUTH, XID_SET_WATCHES = -1, -2, -4, -8

# CreateMode's flags
PERSISTENT, EPHEMERAL, SEQUENTIAL, EPHEMERAL_SEQUENTIAL, CONTAINER = range(5)

JANITOR: Final = "janitor:secret"  # may do anything to what a script protects, or it stays for ever
JANITOR_ACL: Final = (31, "digest", "janitor:PVirkz9oZ11HdNi7M4VeDYjA5N4=")

ALL: Final = 31
READ, WRITE, CREATE, DELETE, ADMIN = 1, 2, 4, 8, 16
Acl = tuple[int, str, str]
OPEN: Final[Sequence[Acl]] = ((ALL, "world", "anyone"),)
CREATOR: Final[Sequence[Acl]] = ((ALL, "auth", ""),)


def integer(value: int) -> bytes:
    return struct.pack(">i", value)


def long(value: int) -> bytes:
    return struct.pack(">q", value)


def boolean(value: bool) -> bytes:
    return struct.pack(">?", value)


def buffer(value: bytes | str | None) -> bytes:
    if value is None:
        return integer(-1)
    value = value.encode() if isinstance(value, str) else value
    return integer(len(value)) + value


def vector(values: Iterable[bytes] | None) -> bytes:
    if values is None:
        return integer(-1)
    values = list(values)
    return integer(len(values)) + b"".join(values)


def acl(entries: Iterable[Acl] | None) -> bytes:
    if entries is None:
        return integer(-1)
    return vector(integer(perms) + buffer(scheme) + buffer(who) for perms, scheme, who in entries)


Request = tuple[str, bytes]


def create(
    path: str | None,
    data: bytes | None = b"",
    mode: int = PERSISTENT,
    *,
    entries: Iterable[Acl] | None = OPEN,
    op: str = "create",
) -> Request:
    return op, buffer(path) + buffer(data) + acl(entries) + integer(mode)


def create2(path: str | None, data: bytes | None = b"", mode: int = PERSISTENT) -> Request:
    return create(path, data, mode, op="create2")


def container(path: str | None, data: bytes | None = b"", mode: int = CONTAINER) -> Request:
    return create(path, data, mode, op="createContainer")


def delete(path: str | None, version: int = -1, *, op: str = "delete") -> Request:
    return op, buffer(path) + integer(version)


check = functools.partial(delete, op="check")


def exists(path: str | None, watch: bool = False, *, op: str = "exists") -> Request:
    return op, buffer(path) + boolean(watch)


get = functools.partial(exists, op="getData")
children = functools.partial(exists, op="getChildren")
children2 = functools.partial(exists, op="getChildren2")


def put(path: str | None, data: bytes | None, version: int = -1) -> Request:
    return "setData", buffer(path) + buffer(data) + integer(version)


def set_acl(path: str | None, entries: Iterable[Acl] | None, version: int = -1) -> Request:
    return "setACL", buffer(path) + acl(entries) + integer(version)


def about(op: str, path: str | None) -> Request:
    return op, buffer(path)


get_acl = functools.partial(about, "getACL")
sync = functools.partial(about, "sync")
ephemerals = functools.partial(about, "getEphemerals")


def multi(*parts: Request, op: str = "multi") -> Request:
    return op, b"".join(part(OPS[name]) + body for name, body in parts) + part(-1, done=True)


def part(code: int, *, done: bool = False) -> bytes:
    return integer(code) + boolean(done) + integer(-1)


def set_watches(zxid: int, *kinds: Iterable[str]) -> Request:
    """`kinds`: the paths of data, exist and child watches."""
    return "setWatches", long(zxid) + b"".join(vector(buffer(path) for path in paths) for paths in kinds)


def auth(credentials: str | None, scheme: str | None = "digest") -> Request:
    return "auth", integer(0) + buffer(scheme) + buffer(credentials)


class Jute:
    def __init__(self, data: bytes) -> None:
        self.rest = data

    def read(self, count: int) -> bytes:
        assert 0 <= count <= len(self.rest), f"{count} bytes wanted, {self.rest!r} is all there is"
        data, self.rest = self.rest[:count], self.rest[count:]
        return data

    def int32(self) -> int:
        return int.from_bytes(self.read(4), "big", signed=True)

    def int64(self) -> int:
        return int.from_bytes(self.read(8), "big", signed=True)

    def flag(self) -> bool:
        return self.read(1) != b"\0"

    def buffer(self) -> bytes | None:
        length = self.int32()
        return None if length == -1 else self.read(length)

    def text(self) -> str | None:
        value = self.buffer()
        return None if value is None else value.decode(errors="backslashreplace")

    def vector(self, item: Callable[[], Any]) -> list[Any] | None:
        count = self.int32()
        return None if count == -1 else [item() for _ in range(count)]

    def texts(self) -> list[str]:
        """A vector of strings, sorted: ZooKeeper promises no order."""
        return sorted(self.vector(self.text) or [])


#: The fields of successful replies, in their order.
BODIES: Final[dict[str, tuple[str, ...]]] = {
    "create": ("path",),
    "create2": ("path", "stat"),
    "createContainer": ("path", "stat"),
    "exists": ("stat",),
    "getData": ("data", "stat"),
    "setData": ("stat",),
    "getACL": ("acl", "stat"),
    "setACL": ("stat",),
    "getChildren": ("children",),
    "getChildren2": ("children", "stat"),
    "sync": ("path",),
    "check": ("stat",),
    "multi": ("results",),
    "multiRead": ("results",),
    "getEphemerals": ("children",),
}
