"""The guids of contenders, by which a node says what kind of contender it is of, without a read."""

from __future__ import annotations

import enum
import uuid
from typing import Final

_VERSION: Final = "8"  # of a UUID, "custom" by RFC 9562: no client draws one by chance


class Mark(enum.Enum):
    """What the first characters of a guid say; a mark of its own each, as others may use that version, too."""

    OPERATOR = "0be7"
    """Its node is an operator's hold: persistent, and over at a time that the node tells."""
    RESTS = "0e57"
    """Its node may be replaced by an operator's hold in the same place as its owner lets go."""


def new(mark: Mark) -> str:
    """Return a guid with this mark, as unique as any."""
    drawn = uuid.uuid4().hex
    return str(uuid.UUID(f"{mark.value}{drawn[4:12]}{_VERSION}{drawn[13:]}"))


def mark_of(guid: str) -> Mark | None:
    """Return the mark of a guid, None if it has none; never raises."""
    if guid[14:15] != _VERSION:
        return None
    return next((mark for mark in Mark if guid.startswith(mark.value)), None)
