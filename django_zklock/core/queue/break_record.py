"""The record of a break: it tells the holder of a broken lock who broke it, and why."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from typing import Final

from django_zklock.core.queue.escaping import path, printable
from django_zklock.core.queue.untrusted import json_object, texts

DIRECTORY: Final = "!broken"
"""The directory of all records. No segment of a key begins with `!`, which is percent-encoded there."""

_MOST: Final = 160  # characters that are kept of a text


@dataclass(frozen=True, slots=True)
class BreakRecord:
    """The person who broke a lock, and the reason."""

    by: str
    reason: str
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    """Unique for each break. After a lost reply, the caller recognizes its own break by this id."""

    def encode(self) -> bytes:
        """Return JSON."""
        fields = {"version": 1, "by": printable(self.by, _MOST), "reason": printable(self.reason, _MOST), "id": self.id}
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> BreakRecord | None:
        """Return the record in `data`, or None; never raises."""
        try:
            return cls(**texts(json_object(data), {"by": _MOST, "reason": _MOST, "id": _MOST}))
        except ValueError:
            return None

    def __str__(self) -> str:
        """Return it as the reason of a loss."""
        return f"it was broken by {self.by}: {self.reason}"


def directory(base: str) -> str:
    """Return the path of the directory of all records."""
    return path(base, DIRECTORY)


def record_path(base: str, name: str) -> str:
    """Return the path of the record for a holder's znode. No two znodes have the same name."""
    return f"{directory(base)}/{name}.note"  # without the suffix, it would be the name of a contender
