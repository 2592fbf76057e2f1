"""
Knows since when a holder has its lock, as far as that can be seen.

A node bears the time at which its contender came. When its turn came is written nowhere, as that would cost a write.
But who was seen to wait had not got the lock before that moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from django_zklock.inspection.found import Found

MOST: Final = 10_000  # locks that are remembered


@dataclass(frozen=True, slots=True)
class _Seen:
    since: Mapping[str, float]  # by name of a holder
    at: float


class SeenTurns:
    """Who held each lock when it was last looked at; on the protocol's thread."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}  # by key

    def take(self, found: Found, *, complete: bool) -> Mapping[tuple[str, str], float]:
        """
        Return since when at most each holder has had its lock, by key and name, in seconds since 1970; remember it.

        `complete` tells whether nobody holds a lock that was not found.
        """
        seen = {key: self._look(found, key) for key in found.queues}
        if complete or len(self._seen) + len(seen) > MOST:
            self._seen = seen
        else:
            self._seen.update(seen)
        return {(key, name): since for key, each in seen.items() for name, since in each.since.items()}

    def _look(self, found: Found, key: str) -> _Seen:
        before = self._seen.get(key)
        since: dict[str, float] = {}
        queue = found.queues[key]
        for child in (queue[place] for place in found.held(key)):
            node = found.nodes.get((key, child.name))
            if node is None:
                continue
            came = node.ctime
            if before is None:
                since[child.name] = came
            else:
                since[child.name] = before.since.get(child.name, max(came, before.at))
        return _Seen(since, found.began_at)
