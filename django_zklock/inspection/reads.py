"""Requests for operators, which no lock sends: many reads in one request, and the access list of a znode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from kazoo.exceptions import EXCEPTIONS, SystemZookeeperError
from kazoo.protocol import serialization as wire

from django_zklock.core.zk.client import PERMISSIONS
from django_zklock.core.zk.errors import ZkError, translate
from django_zklock.core.zk.gateway import Callback, Gateway, Node


class Read(NamedTuple):
    """Read a znode, or list the names of its children."""

    path: str
    lists: bool = False

    @property
    def request(self) -> wire.GetData | wire.GetChildren:
        """The request of kazoo's that reads the same."""
        return wire.GetChildren(self.path, None) if self.lists else wire.GetData(self.path, None)


@dataclass(frozen=True, slots=True)
class MultiRead:
    """Many reads in one request (ZooKeeper 3.6), which kazoo cannot do."""

    reads: Sequence[Read]
    type: ClassVar[int] = 22
    is_read: ClassVar[bool] = True

    def serialize(self) -> bytes:
        read, lists = (wire.MultiHeader(kind.type, False, -1).serialize() for kind in (wire.GetData, wire.GetChildren))
        parts = [(lists if part.lists else read) + wire.write_string(part.path) + b"\0" for part in self.reads]
        return b"".join([*parts, wire.MultiHeader(-1, True, -1).serialize()])

    @classmethod
    def deserialize(cls, buffer: bytes, offset: int) -> list[Any]:
        """Return a reply for each read: data and stat, a list of names, or an error code."""
        replies: list[Any] = []
        header, offset = wire.MultiHeader.deserialize(buffer, offset)
        while not header.done:
            if header.type == wire.GetData.type:
                data, offset = wire.read_buffer(buffer, offset)
                stat = wire.ZnodeStat._make(wire.stat_struct.unpack_from(buffer, offset))
                replies.append((data, stat))
                offset += wire.stat_struct.size
            elif header.type == wire.GetChildren.type:
                names, offset = read_names(buffer, offset)
                replies.append(names)
            else:
                (code,) = wire.int_struct.unpack_from(buffer, offset)
                replies.append(code)
                offset += wire.int_struct.size
            header, offset = wire.MultiHeader.deserialize(buffer, offset)
        return replies


def read_names(buffer: bytes, offset: int) -> tuple[list[str], int]:
    """Return a list of texts in a reply, and the offset behind it."""
    (count,) = wire.int_struct.unpack_from(buffer, offset)
    offset += wire.int_struct.size
    names = []
    for _ in range(count):
        name, offset = wire.read_string(buffer, offset)
        names.append(name)
    return names, offset


def read_many(
    gateway: Gateway, reads: Sequence[Read], callback: Callback[list[Node | list[str] | ZkError] | ZkError]
) -> None:
    """Carry out many reads with one request. Each reply is a znode, the names of its children, or an error."""

    def convert(replies: list[Any]) -> list[Node | list[str] | ZkError]:
        return [_part(read, reply) for read, reply in zip(reads, replies, strict=True)]

    gateway.ask(MultiRead(reads), convert, callback)


def _part(read: Read, reply: Any) -> Node | list[str] | ZkError:
    """Return the reply to one of many reads. An error of one is no error of the others."""
    if isinstance(reply, int):
        if reply in EXCEPTIONS:
            return translate(EXCEPTIONS[reply](), read.request)
        return translate(SystemZookeeperError(), read.request, reply)
    return reply if read.lists else Node.of(read.path, *reply)


def read_acl(gateway: Gateway, path: str, callback: Callback[list[tuple[str, str, str]] | ZkError]) -> None:
    """Read the access list of a znode: (scheme, id, permissions) with letters of `PERMISSIONS`."""

    def entries(reply: tuple[list[Any], object]) -> list[tuple[str, str, str]]:
        return [
            (entry.id.scheme, entry.id.id, "".join(c for i, c in enumerate(PERMISSIONS) if entry.perms & 1 << i))
            for entry in reply[0]
        ]

    gateway.ask(wire.GetACL(path), entries, callback)
