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


def has_room(queue: Queue, limits: Limits) -> bool:
    """Tell whether one that came now would have a permit at once, if it knows of as many as anybody in the queue."""
    limit = queue.limit.value if queue.limit is not None else max(limits.values(), default=1)
    return _alike(queue) == len(queue) < limit


def undecided(queue: Queue, limits: Limits) -> tuple[str, ...]:
    """
    Return the names of those whose own limits decide who has a permit, and are not among `limits`.

    Who stands further back than the highest limit that is known of has none, if it knows of none that is higher.
    """
    if queue.limit is not None or not queue or queue[0].kind is not Kind.LEASE:
        return ()
    alike = [child.name for child in queue[: _alike(queue)]]
    highest = max((limits[name] for name in alike if name in limits), default=1)
    if all(name in limits for name in alike[:highest]):
        return ()
    return tuple(name for name in alike if name not in limits)


def may_hold(queue: Queue, place: int, came: int, changed: int) -> bool:
    """
    Tell whether one that has no permit by the rule may have had one when the limit was changed, and so have it still.

    `came` and `changed` are the transactions that made its node and the sign of the change.
    """
    child = queue[place]
    if queue.sign is None or queue.sign.sure:
        return False
    return place < _alike(queue) and child.kind is Kind.LEASE and child.sequence > queue.through and came < changed


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
    child = queue[place]
    limit = limits.get(child.name, 1) if queue.limit is None else queue.limit.value
    return place < limit or child.sequence <= queue.through
