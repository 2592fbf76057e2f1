"""The holders of a queue, and the contender that each waiter waits for, as views of the queue show them."""

from __future__ import annotations

from collections.abc import Container, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from django_zklock.core.queue.markers import LimitRecord
from django_zklock.core.queue.nodes import Kind, own_limit
from django_zklock.core.queue.order import Queue

Limits: TypeAlias = Mapping[str, int]
"""The limits by which contenders hold permits, by name: the results of `permit_limit`."""

UNKNOWN_LIMITS: Final[Limits] = MappingProxyType({})
_SHARE: Final = (Kind.READ, Kind.PERMIT)


def holder_indexes(queue: Queue, limits: Limits = UNKNOWN_LIMITS) -> tuple[int, ...]:
    """
    Return the indexes of the holders: one, or all readers at the front, or as many as there are permits.

    The holders are the first in the queue, with one exception: if the limits in the code of contenders differ, a waiter
    with a low limit may be between holders with higher ones. After a change of the limit, there are at most as many
    holders: some of those that came before the change may wait.
    """
    if not queue:
        return ()
    kind = queue[0].kind
    if kind not in _SHARE:
        return (0,)
    front = range(queue.same_kind_at_front)
    if kind is Kind.READ:
        return tuple(front)
    return tuple(index for index in front if index < max(limits.get(queue[index].name, 1), queue.limit or 0))


def end_of_holders(queue: Queue, limits: Limits = UNKNOWN_LIMITS) -> int:
    """Return the index just behind the last holder; 0 if there is none."""
    indexes = holder_indexes(queue, limits)
    return indexes[-1] + 1 if indexes else 0


def permits_at_front(queue: Queue) -> list[str]:
    """Return the names of the contenders that want permits with only such ones ahead, in the order of the queue."""
    if not queue or queue[0].kind is not Kind.PERMIT:
        return []
    return [child.name for child in queue[: queue.same_kind_at_front]]


def permit_limit(queue: Queue, data: bytes, change: bytes | None) -> int:
    """
    Return the limit by which a contender that wants a permit holds one; `data` are those of its znode.

    `change` are the data of the marker of the limit; None if there is none, or if the contender came after it. A
    contender that came before may have been granted by an earlier limit, and keeps its permit. So the highest one
    counts. A contender further back than this has never had a permit.
    """
    own = own_limit(data)
    return queue.limit or own if change is None else max(queue.limit or 0, own, LimitRecord.read(change).before)


def waits_for(queue: Queue, index: int, indexes: Container[int]) -> str:
    """
    Return the name of the contender that the one at `index` waits for; empty for a holder.

    `indexes` is the result of `holder_indexes`.
    """
    if index in indexes:
        return ""
    kind = queue[index].kind
    if kind in _SHARE:
        others = (child.name for child in reversed(queue[:index]) if child.kind is not kind)
        return next(others, queue[index - 1].name)
    return queue[index - 1].name


def kind_of_queue(queue: Queue) -> str:
    """Return the kind of a lock by its queue: `lock`, `read-write` or `semaphore`."""
    kinds = {child.kind for child in queue}
    if queue.limit is not None or Kind.PERMIT in kinds:
        return "semaphore"
    return "lock" if kinds <= {Kind.LOCK} else "read-write"
