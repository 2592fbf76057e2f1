"""Jute, the encoding of ZooKeeper's protocol: numbers, flags, buffers, strings, lists. It knows no records."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from django_zklock.testing.server.codes import MAX_FRAME

INT: Final = struct.Struct("!i")
LONG: Final = struct.Struct("!q")


class Malformed(ValueError):
    """The bytes are not what the record should be made of: too few, or a length that cannot be."""


class Reader:
    """Takes one value after the other from a frame. All methods raise Malformed at the end of it."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    @property
    def left(self) -> int:
        """How many bytes are still to be read."""
        return len(self.data) - self.at

    def take(self, count: int) -> bytes:
        """Return the next bytes as they are."""
        end = self.at + count
        if count < 0 or end > len(self.data):
            raise Malformed(f"{count} bytes wanted, {self.left} left")
        found = self.data[self.at : end]
        self.at = end
        return found

    def int32(self) -> int:
        """Return a signed number of four bytes."""
        value: int = INT.unpack(self.take(4))[0]
        return value

    def int64(self) -> int:
        """Return a signed number of eight bytes."""
        value: int = LONG.unpack(self.take(8))[0]
        return value

    def flag(self) -> bool:
        """Return a boolean; any byte but zero is true."""
        return self.take(1) != b"\0"

    def blob(self) -> bytes | None:
        """Return a buffer; None is not the same as an empty one."""
        length = self.int32()
        if length == -1:
            return None
        if length > MAX_FRAME:
            raise Malformed(f"a length of {length}")
        return self.take(length)

    def text(self) -> str | None:
        """Return a string. What is no UTF-8 becomes U+FFFD, as in Java."""
        found = self.blob()
        return None if found is None else found.decode("utf-8", "replace")

    def vector(self, read: Callable[[Reader], Any]) -> list[Any] | None:
        """Return a list, whose values `read` takes."""
        count = self.int32()
        if count == -1:
            return None
        if count < 0 or count > self.left:  # each value takes a byte or more: a false count must not cost memory
            raise Malformed(f"a list of {count}")
        return [read(self) for _ in range(count)]


class Writer:
    """Puts one value after the other into a frame."""

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
        """Put a list, whose values `write` puts."""
        self.int32(-1 if values is None else len(values))
        for value in values or ():
            write(self, value)
