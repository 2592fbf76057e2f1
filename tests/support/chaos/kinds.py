"""Which kinds of locks may be held at the same time, and how many permits there may have been at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

LOCK: Final = "lock"
READ: Final = "read"
WRITE: Final = "write"
SEMAPHORE: Final = "semaphore"
EXCLUSIVE: Final = frozenset({LOCK, WRITE})


def share(first: str, other: str) -> bool:
    """Tell whether holds of these two kinds may last at the same time: readers, and permits as far as there are any."""
    return first == other and first not in EXCLUSIVE


@dataclass(frozen=True, slots=True)
class LimitChange:
    """One call that set the limit of a key for all, or cleared it (None); it took effect from `call` to `back`."""

    key: str
    limit: int | None
    call: float
    back: float = math.inf
    certain: bool = True
    """Whether it did; if not, it may have at any time since `call`, or never."""

    def before(self, other: LimitChange) -> bool:
        """Tell whether it certainly came first."""
        return self.back < other.call


class Limits:
    """The possible limits of one key, from the calls that changed it."""

    def __init__(self, changes: Sequence[LimitChange]) -> None:
        self._changes = changes

    def most(self, own: float, start: float, end: float) -> float:
        """
        Return the highest limit that may have been in force at some moment from `start` to `end`.

        `own` is that of the contender, which counts where none is set for all.
        """
        done = [change for change in self._changes if change.certain and change.back <= start]
        possible = [
            own if change.limit is None else change.limit
            for change in self._changes
            if change.call <= end and not any(change.before(later) for later in reversed(done))
        ]
        return max(possible if done else [own, *possible])
