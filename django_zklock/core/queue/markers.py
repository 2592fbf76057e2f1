"""
Markers: the children of a lock's directory that are no contenders, but information about them.

One listing of the directory returns the contenders and the markers together. The rules of the queue need only
the name of a marker. Its data are for people.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django_zklock.core.queue.escaping import MAX_BY, MAX_REASON
from django_zklock.core.queue.record import Record, line, whole
from django_zklock.core.queue.untrusted import moment

START: Final = "!"
"""The first character of the names of markers. No segment of a key begins with it: there it is percent-encoded."""

MOST_PERMITS: Final = 10_000
"""The highest limit of a semaphore."""

_LIMIT: Final = "!limit:"
_LIMIT_NAME: Final = re.compile(r"!limit:(?P<value>[0-9]{1,5}):")


def is_marker(name: str) -> bool:
    """Return whether the name of a child is that of a marker, or reserved for one."""
    return name.startswith(START)


# --- a limit for all processes --------------------------------------------------------------------------------------


def limit_marker(limit: int) -> str:
    """Return the name of the marker that sets the limit of a semaphore; 0 says that the limit was cleared."""
    return f"{_LIMIT}{limit}:"


def limit_in(name: str) -> int | None:
    """Return the limit that a marker sets, 0 if it was cleared; None for any other name."""
    match = _LIMIT_NAME.fullmatch(name)
    return int(match["value"]) if match else None


def is_limit_marker(name: str) -> bool:
    """Return whether a marker is about the limit, even if this release cannot read it."""
    return name.startswith(_LIMIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetLimit:
    """The limit of a semaphore that a person has set for all processes."""

    limit: int
    by: str
    reason: str
    when: datetime | None = None
    """The time of the change, by ZooKeeper's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRecord(Record):
    """The data of one change of a limit. Its marker and the directory of the lock both have them."""

    by: str = line(MAX_BY)
    reason: str = line(MAX_REASON)
    before: int = whole(MOST_PERMITS)
    """The highest limit that was set earlier, by which a contender may still hold a permit; 0 if there was none."""
    id: str = line(MAX_BY, lambda: str(uuid.uuid4()))
    """The id of the change, by which its author recognizes it after a lost reply."""


def set_limit(name: str, data: bytes, ctime: float) -> SetLimit | None:
    """Return the limit that a marker sets, and what its data say about it; None if it sets none. Never raises."""
    limit = limit_in(name)
    if not limit:
        return None
    record = LimitRecord.read(data)
    try:
        when = moment(ctime)
    except ValueError:
        when = None
    return SetLimit(limit=limit, by=record.by, reason=record.reason, when=when)
