"""How a queue looks from outside: who in it has the lock, and whose end each of the others waits for."""

from __future__ import annotations

from collections.abc import Sequence

from django_zklock.queue.nodes import Child, Kind


def holders(queue: Sequence[Child]) -> int:
    """Return how many, from the first on, have the lock: one; or all that read before the first who does not."""
    readers = next((place for place, child in enumerate(queue) if child.kind is not Kind.READ), len(queue))
    return readers or min(1, len(queue))


def behind(queue: Sequence[Child], place: int) -> str:
    """Return the name of the one whose end the contender at `place` waits for; empty if it waits for none."""
    if place < holders(queue):
        return ""
    if queue[place].kind is Kind.READ:
        return next(child.name for child in reversed(queue[:place]) if child.kind is not Kind.READ)
    return queue[place - 1].name


def takes_sides(queue: Sequence[Child]) -> bool:
    """Tell whether it is the queue of a read-write lock."""
    return any(child.kind is not Kind.LOCK for child in queue)
