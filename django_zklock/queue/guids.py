"""The guids of nodes: unique as any, and marked, so that our nodes are told from other clients' by their names."""

from __future__ import annotations

import enum
import uuid
from typing import Final

_VERSION: Final = "8"  # of a UUID, "custom" by RFC 9562: no client draws one by chance
_PLACE: Final = 12  # of the version among the digits


class Mark(enum.Enum):
    """What a guid says, in its first characters; another program may use that version of UUIDs, too."""

    OWN = "0c1a"
    """A contender of this package."""
    REPLACEABLE = "0e57"
    """The same. When it releases, an operator hold with the same sequence number may replace its node."""
    OPERATOR = "0be7"
    """An operator's hold."""


_MARKS: Final = {mark.value: mark for mark in Mark}


def new(mark: Mark) -> str:
    """Return a new guid with this mark, in the 36 characters of a UUID."""
    drawn = uuid.uuid4().hex
    return f"{mark.value}{drawn[4:8]}-{drawn[8:12]}-{_VERSION}{drawn[13:16]}-{drawn[16:20]}-{drawn[20:]}"


def mark_of(guid: str) -> Mark | None:
    """Return the mark of a guid, with its dashes or without, or None: then it is another client's."""
    place = _PLACE + 2 if len(guid) > 32 else _PLACE
    return _MARKS.get(guid[:4]) if guid[place : place + 1] == _VERSION else None
