"""
Markers: the children of a lock's directory that are no contenders, but information about them.

One listing of the directory returns the contenders and the markers together. The rules of the queue need only
the name of a marker. Its data are for people.
"""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from django_zklock.core.queue.escaping import MAX_BY, MAX_REASON, printable
from django_zklock.core.queue.nodes import unknown_fields, with_unknown
from django_zklock.core.queue.untrusted import integer, json_object, moment, texts

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
class LimitRecord:
    """The data of one change of a limit. Its marker and the directory of the lock both have them."""

    by: str
    reason: str
    before: int = 0
    """The highest limit that was set earlier, by which a contender may still hold a permit; 0 if there was none."""
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    """The id of the change, by which its author recognizes it after a lost reply."""
    unknown: bytes = b""
    """The fields of later releases. The record of the next change keeps them."""

    def encode(self) -> bytes:
        """Return JSON."""
        texts = {"by": printable(self.by, MAX_BY), "reason": printable(self.reason, MAX_REASON)}
        fields = {"version": 1, **texts, "before": self.before, "id": self.id}
        return with_unknown(json.dumps(fields, separators=(",", ":")).encode(), self.unknown)

    @classmethod
    def decode(cls, data: bytes) -> LimitRecord:
        """Return the record in `data`. A value that is missing or invalid is empty or 0. Never raises."""
        fields = json_object(data)
        return cls(
            **texts(fields, {"by": MAX_BY, "reason": MAX_REASON, "id": MAX_BY}, default=""),
            before=integer(fields.get("before"), 0, MOST_PERMITS, default=0),
            unknown=unknown_fields(fields, ("version", "by", "reason", "before", "id")),
        )


def set_limit(name: str, data: bytes, ctime: float) -> SetLimit | None:
    """Return the limit that a marker sets, and what its data say about it; None if it sets none. Never raises."""
    limit = limit_in(name)
    if not limit:
        return None
    record = LimitRecord.decode(data)
    try:
        when = moment(ctime)
    except ValueError:
        when = None
    return SetLimit(limit=limit, by=record.by, reason=record.reason, when=when)
