"""
Several operations in one request.

A transaction carries out all of its operations or none; they are named as ZooKeeper names them. The parts of a
`MultiRead` are independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeAlias

from kazoo.protocol import serialization as wire


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """Create a znode. Fails with `NodeExists`, or with `NodeMissing` if it has no parent."""

    path: str
    data: bytes = b""
    ephemeral: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SetData:
    """Replace the data of a znode that has this version (-1: any). Fails with `Outdated` if it has another one."""

    path: str
    data: bytes
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Delete a znode that has this version (-1: any). Fails with `NotEmpty` if it has children."""

    path: str
    version: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Fail with `NodeMissing` unless the znode exists, with `Outdated` unless it has this version (-1: any)."""

    path: str
    version: int = -1


Operation: TypeAlias = Create | SetData | Delete | Check


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
