"""The note that is left when a lock is broken, so that the one who had it learns by whom and why."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from typing import Final

from django_zklock.queue.names import path
from django_zklock.queue.printable import printable

DIRECTORY: Final = "!broken"
"""No segment of a key begins so: `!` is percent-encoded in them."""

_READABLE: Final = 4096
_MOST: Final = 160  # characters that are kept of a text


@dataclass(frozen=True, slots=True)
class Note:
    """By whom a lock was broken, and why."""

    by: str
    reason: str
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    """Of the break, by which its author finds it again after a lost answer."""

    def encode(self) -> bytes:
        """Return JSON."""
        found = {"version": 1, "by": printable(self.by, _MOST), "reason": printable(self.reason, _MOST), "id": self.id}
        return json.dumps(found, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Note | None:
        """Return the note in `data`, None if there is none; never raises."""
        try:
            found = json.loads(data) if len(data) <= _READABLE else None
        except (ValueError, RecursionError):
            return None
        if not isinstance(found, dict):
            return None
        by, reason, known = (found.get(name) for name in ("by", "reason", "id"))
        if not (isinstance(by, str) and isinstance(reason, str) and isinstance(known, str)):
            return None
        return cls(printable(by, _MOST), printable(reason, _MOST), known[:_MOST])

    def __str__(self) -> str:
        """Return it as the reason of a loss."""
        return f"it was broken by {self.by}: {self.reason}"


def directory(base: str) -> str:
    """Return the path of the directory of all notes."""
    return path(base, DIRECTORY)


def place(base: str, name: str) -> str:
    """Return the path of the note about the node of this name; no two nodes have had the same."""
    return f"{directory(base)}/{name}.note"  # so that it does not end like a contender
