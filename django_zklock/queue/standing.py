"""How a queue looks from outside: who in it has the lock, and whose end each of the others waits for."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from django_zklock.queue.nodes import Kind
from django_zklock.queue.order import Queue
from django_zklock.queue.rules import Granted, rule_for

Limits: TypeAlias = Mapping[str, int]
"""By its name the limit that a contender for a permit knows of; it counts where none was set for all."""

UNKNOWN: Final[Limits] = MappingProxyType({})
_SHARE: Final = (Kind.READ, Kind.LEASE)


def holders(queue: Queue, limits: Limits = UNKNOWN) -> int:
    """Return how many, from the first on, have the lock: one; or all that share it; or as many as there are permits."""
    if not queue:
        return 0
    kind = queue[0].kind
    if kind not in _SHARE:
        return 1
    alike = next((place for place, child in enumerate(queue) if child.kind is not kind), len(queue))
    if kind is Kind.READ:
        return alike
    return next((place for place in range(alike) if not _has_permit(queue, place, limits)), alike)


def undecided(queue: Queue, limits: Limits) -> tuple[str, ...]:
    """Return the names of those whose own limits decide how many have a permit, and are not among `limits`."""
    if queue.limit is not None or not queue or queue[0].kind is not Kind.LEASE:
        return ()
    many = holders(queue, limits)
    if many == len(queue) or queue[many].kind is not Kind.LEASE or queue[many].name in limits:
        return ()
    return tuple(child.name for child in queue[many:] if child.kind is Kind.LEASE and child.name not in limits)


def has_lock(queue: Queue, name: str, limit: int = 1) -> bool:
    """Tell whether the contender of this name has the lock; `limit` is what it knows of, if it wants a permit."""
    place = queue.place(name)
    return place is not None and isinstance(rule_for(queue[place].kind, limit)(queue, name), Granted)


def behind(queue: Queue, place: int, many: int | None = None) -> str:
    """
    Return the name of the one whose end the contender at `place` waits for; empty if it waits for none.

    `many` is what `holders` tells of the queue; without it, no own limits are known.
    """
    if place < (holders(queue) if many is None else many):
        return ""
    kind = queue[place].kind
    if kind in _SHARE:
        others = (child.name for child in reversed(queue[:place]) if child.kind is not kind)
        return next(others, queue[place - 1].name)
    return queue[place - 1].name


def kind(queue: Queue) -> str:
    """Return what the queue is that of: `lock`, `read-write` or `semaphore`; a plain lock may stand in any of them."""
    kinds = {child.kind for child in queue}
    if queue.limit is not None or Kind.LEASE in kinds:
        return "semaphore"
    return "lock" if kinds <= {Kind.LOCK} else "read-write"


def _has_permit(queue: Queue, place: int, limits: Limits) -> bool:
    child = queue[place]
    if queue.limit is None:
        return place < limits.get(child.name, 1)
    return place < queue.limit.value or child.sequence <= queue.limit.through
