"""The guids of our znodes: unique ids with a mark, which tells our znodes from those of other clients."""

from __future__ import annotations

import enum
import uuid
from typing import Final

_VERSION: Final = "8"  # of the UUID: "custom" by RFC 9562, which no client generates by chance
_INDEX: Final = 12  # the index of the version among the hexadecimal digits


class Mark(enum.Enum):
    """The first characters of a guid. The version alone is not enough: another program may use it, too."""

    OWN = "0c1a"
    """A contender of this package."""
    REPLACEABLE = "0e57"
    """A contender of this package. At its release, an operator hold with its sequence number may replace its znode."""
    OPERATOR = "0be7"
    """An operator hold."""


_MARKS: Final = {mark.value: mark for mark in Mark}


def new(mark: Mark) -> str:
    """Return a new guid with this mark, as a UUID of 36 characters."""
    digits = uuid.uuid4().hex
    return f"{mark.value}{digits[4:8]}-{digits[8:12]}-{_VERSION}{digits[13:16]}-{digits[16:20]}-{digits[20:]}"


def mark_of(guid: str) -> Mark | None:
    """Return the mark of a guid, with or without dashes; None if it is a guid of another client."""
    index = _INDEX + 2 if len(guid) > 32 else _INDEX
    return _MARKS.get(guid[:4]) if guid[index : index + 1] == _VERSION else None
