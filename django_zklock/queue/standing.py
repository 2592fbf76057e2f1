"""How a queue looks from outside: who in it has the lock, and whose end each of the others waits for."""

from __future__ import annotations

from collections.abc import Container, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from django_zklock.queue.nodes import Kind
from django_zklock.queue.order import Queue
from django_zklock.queue.rules import Granted, rule_for

Limits: TypeAlias = Mapping[str, int]
"""By its name the limit that a contender for a permit knows of; it counts where none was set for all."""

UNKNOWN: Final[Limits] = MappingProxyType({})
_SHARE: Final = (Kind.READ, Kind.LEASE)


def held(queue: Queue, limits: Limits = UNKNOWN) -> tuple[int, ...]:
    """
    Return the places of those that have the lock: one; or all that share it; or as many as there are permits.

    They are the first, but where own limits differ, one that knows of few permits may wait among those that know of
    more.
    """
    if not queue:
        return ()
    kind = queue[0].kind
    if kind not in _SHARE:
        return (0,)
    alike = range(_alike(queue))
    return tuple(alike) if kind is Kind.READ else tuple(place for place in alike if _has_permit(queue, place, limits))


def holders(queue: Queue, limits: Limits = UNKNOWN) -> int:
    """Return how many, from the first on, have the lock or stand before one that has."""
    places = held(queue, limits)
    return places[-1] + 1 if places else 0


def undecided(queue: Queue) -> list[str]:
    """Return the names of those whose own limits decide who has a permit, in the order of the queue."""
    if queue.limit is not None or not queue or queue[0].kind is not Kind.LEASE:
        return []
    return [child.name for child in queue[: _alike(queue)]]


def may_hold(queue: Queue, place: int, own_limit: int, before: int) -> bool:
    """
    Return whether a contender that came before the last change of the limit may hold a permit by an earlier limit.

    It is not certain: perhaps it waits. `before` is the highest limit that was set before the change, `own_limit` the
    one in the contender's code. A contender at a place beyond both has never had a permit.
    """
    return place < _alike(queue) and queue[place].kind is Kind.LEASE and place < max(own_limit, before)


def has_lock(queue: Queue, name: str, limit: int = 1) -> bool:
    """Tell whether the contender of this name has the lock; `limit` is what it knows of, if it wants a permit."""
    place = queue.place(name)
    return place is not None and isinstance(rule_for(queue[place].kind, limit)(queue, name), Granted)


def behind(queue: Queue, place: int, places: Container[int] | None = None) -> str:
    """
    Return the name of the one whose end the contender at `place` waits for; empty if it waits for none.

    `places` is what `held` tells of the queue; without it, no own limits are known.
    """
    if place in (held(queue) if places is None else places):
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


def _alike(queue: Queue) -> int:
    """Return how many, from the first on, want the same."""
    return next((place for place, child in enumerate(queue) if child.kind is not queue[0].kind), len(queue))


def _has_permit(queue: Queue, place: int, limits: Limits) -> bool:
    return place < (limits.get(queue[place].name, 1) if queue.limit is None else queue.limit)
