"""
Records in znodes, as JSON: one codec for all of them.

A record is a frozen dataclass, whose fields say their types and bounds by `line`, `whole` and `lines`. Any program may
have written the data. So what is read has its type and its bound, and prints: a text that is too long is cut, and ends
in an ellipsis. A value that is missing or wrong is empty or 0.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from django_zklock.core.queue.escaping import printable
from django_zklock.core.queue.untrusted import integer, json_object

if TYPE_CHECKING:
    from typing import Self

_Reader: TypeAlias = Callable[[object], Any]

_NAME: Final = 32  # characters of the name of one of several lines
_MOST_UNKNOWN: Final = 1024  # bytes of the fields of later releases that are kept

to_json: Final = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode


def line(most: int, new: Callable[[], str] = str) -> Any:
    """Return a field with one line of text, of at most so many characters. It is `new()` if nobody gives one."""
    return field(default_factory=new, metadata={"read": functools.partial(_read_line, most)})


def whole(most: int = 2**31 - 1, default: int = 0) -> Any:
    """Return a field with a whole number from 0 to `most`."""
    return field(default=default, metadata={"read": lambda value: integer(value, 0, most, default=0)})


def lines(items: int, most: int) -> Any:
    """Return a field with so many lines at most, by name."""

    def read(value: object) -> dict[str, str]:
        given = [*value.items()] if isinstance(value, Mapping) else []
        texts = [(name, text) for name, text in given if isinstance(text, str)]
        return {printable(name, _NAME): printable(text, most) for name, text in texts[:items]}

    return field(default_factory=dict, hash=False, metadata={"read": read})


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The base of all records."""

    version: int = whole(default=1)
    unknown: Mapping[str, Any] = field(default_factory=dict, hash=False, repr=False)
    """The fields of later releases, see `unknown_fields`."""

    def encode(self) -> bytes:
        """Return JSON, without the fields that are empty."""
        stored: dict[str, Any] = {}
        for name, read in _readers(type(self)).items():
            value = getattr(self, name)
            if value:
                stored[name] = read(value)
        return to_json({**stored, **self.unknown}).encode()

    @classmethod
    def read(cls, data: bytes | None) -> Self:
        """Return the record in `data`. Never raises."""
        return cls.of(json_object(data))

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Return the record with these fields. Never raises."""
        readers = _readers(cls)
        values = {name: read(given[name]) for name, read in readers.items() if name in given}
        return cls(**values, unknown=unknown_fields(given, readers))


_READERS: Final[dict[type[Record], Mapping[str, _Reader]]] = {}


def _readers(cls: type[Record]) -> Mapping[str, _Reader]:
    if cls not in _READERS:
        _READERS[cls] = {field.name: field.metadata["read"] for field in fields(cls) if field.metadata}
    return _READERS[cls]


def _read_line(most: int, value: object) -> str:
    return printable(value, most) if isinstance(value, str) else ""


def unknown_fields(given: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """
    Return the fields that this release does not know; none if they are too large. Never raises.

    A process that writes a znode again keeps them, because a process of a later release may rely on them.
    """
    unknown = {name: value for name, value in given.items() if name not in known}
    try:
        fits = not unknown or len(to_json(unknown).encode()) <= _MOST_UNKNOWN
    except (ValueError, RecursionError):  # such as a lone surrogate; no release writes it
        fits = False
    return unknown if fits else {}
