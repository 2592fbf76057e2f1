"""The record of a limit that was set for all processes: who set it and why, as the node says that bears it."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Final

from django_zklock.queue import signs
from django_zklock.queue.printable import printable

MAX_BY: Final = 40
"""Characters of a name that are kept."""
MAX_REASON: Final = 160
"""Characters of a reason that are kept."""

_READABLE: Final = 4096
_START: Final = "!limit:"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetLimit:
    """How many permits of a semaphore there are, as somebody has set it for all processes."""

    limit: int
    by: str
    reason: str
    when: datetime | None = None
    """By ZooKeeper's clock."""


@dataclass(frozen=True, slots=True)
class Record:
    """What is written about one change of a limit."""

    by: str
    reason: str
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    """Of the change, by which its author finds it again after a lost answer."""

    def encode(self) -> bytes:
        """Return JSON."""
        found = {
            "version": 1,
            "by": printable(self.by, MAX_BY),
            "reason": printable(self.reason, MAX_REASON),
            "id": self.id,
        }
        return json.dumps(found, separators=(",", ":")).encode()


def set_limit(name: str, data: bytes, ctime: float) -> SetLimit | None:
    """Return the limit that a node says by its name, with what its data tell of it; never raises."""
    found = signs.limit(name)
    if found is None:
        return None
    texts = _decoded(data)
    try:
        when = datetime.fromtimestamp(ctime, timezone.utc)
    except (ValueError, OverflowError, OSError):
        when = None
    return SetLimit(
        limit=found.value,
        by=printable(texts.get("by", ""), MAX_BY),
        reason=printable(texts.get("reason", ""), MAX_REASON),
        when=when,
    )


def is_limit(name: str) -> bool:
    """Tell whether the name of a child is one that sets a limit, whether it can be read or not."""
    return name.startswith(_START)


def _decoded(data: bytes) -> dict[str, str]:
    try:
        found = json.loads(data) if len(data) <= _READABLE else None
    except (ValueError, RecursionError):
        found = None
    return {key: text for key, text in found.items() if isinstance(text, str)} if isinstance(found, dict) else {}
