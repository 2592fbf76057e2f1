"""The guids of our znodes: unique ids with a mark, which tells our znodes from those of other clients."""

from __future__ import annotations

import enum
import uuid
from typing import Final

_VERSION: Final = "8"  # of the UUID: "custom" by RFC 9562, which no client draws by chance
_INDEX: Final = 12  # of the version among the hexadecimal digits


class Mark(enum.Enum):
    """The first characters of a guid. The version alone is not enough: another program may use it, too."""

    OWN = "0c1a"
    """A contender of this package."""
    REPLACEABLE = "0e57"
    """Such a contender, too. When it releases, an operator hold with its sequence number may replace its node."""
    OPERATOR = "0be7"
    """An operator hold."""


_MARKS: Final = {mark.value: mark for mark in Mark}


def new(mark: Mark) -> str:
    """Return a new guid with this mark, as a UUID of 36 characters."""
    drawn = uuid.uuid4().hex
    return f"{mark.value}{drawn[4:8]}-{drawn[8:12]}-{_VERSION}{drawn[13:16]}-{drawn[16:20]}-{drawn[20:]}"


def mark_of(guid: str) -> Mark | None:
    """Return the mark of a guid, with or without dashes; None if it is a guid of another client."""
    index = _INDEX + 2 if len(guid) > 32 else _INDEX
    return _MARKS.get(guid[:4]) if guid[index : index + 1] == _VERSION else None
