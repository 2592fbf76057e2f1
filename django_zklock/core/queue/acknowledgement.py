"""The acknowledgement of an incident: who looks after it, why, and until when. All processes read it in ZooKeeper."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Final

from django_zklock.core.queue.escaping import MAX_BY, MAX_REASON, path, printable
from django_zklock.core.queue.untrusted import LATEST, json_object, number, texts

DIRECTORY: Final = "!acknowledged"
"""The directory of all acknowledgements. No segment of a key begins with `!`, which is percent-encoded there."""


_TEXTS: Final = {"title": MAX_REASON, "by": MAX_BY, "reason": MAX_REASON}  # characters that are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    """An incident that a person has acknowledged."""

    title: str
    by: str
    reason: str
    ends: float
    """In seconds since 1970, by the clock of the process that wrote it."""

    @property
    def until(self) -> datetime:
        """When it ends."""
        return datetime.fromtimestamp(self.ends, timezone.utc)

    def encode(self) -> bytes:
        """Return JSON."""
        kept = {name: printable(getattr(self, name), most) for name, most in _TEXTS.items()}
        return json.dumps({"version": 1, **kept, "ends": self.ends}, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Acknowledgement | None:
        """Return the acknowledgement in `data`, or None; never raises."""
        fields = json_object(data)
        try:
            return cls(**texts(fields, _TEXTS), ends=number(fields.get("ends"), 0, LATEST))
        except ValueError:
            return None


def directory(base: str) -> str:
    """Return the path of the directory of all acknowledgements."""
    return path(base, DIRECTORY)
