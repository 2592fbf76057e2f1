"""Show the owners that wait for each other across locks. `core.protocol.deadlock` ends their deadlocks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Final

from django_zklock.core.protocol.contender_info import ContenderInfo
from django_zklock.core.queue.order import Queue
from django_zklock.inspection.info import LockInfo, Wait

MAX_WAITS: Final = 2000
MAX_CYCLES: Final = 20
MAX_CHAIN: Final = 12


def find_waits(locks: Sequence[LockInfo], queues: Mapping[str, Queue], now: float) -> tuple[Wait, ...]:
    """
    Return the owners that hold one lock and wait for another, two thousand at most.

    Each owner says so in the znodes of its locks, as soon as it has waited for a second. Its waiter is in the queue
    `now`, in seconds since 1970 by ZooKeeper's clock. A search for deadlocks believes the same.
    """
    keys = {child.guid: key for key, queue in queues.items() for child in queue}
    held = [(lock.key, holder) for lock in locks for holder in lock.holders]
    waits: set[Wait] = set()  # an owner may have several permits of one semaphore
    for _key, holder in held:
        keys.pop(holder.guid, None)  # it waits no longer
    for key, holder in held:
        wait = holder.wait
        awaited = "" if wait is None or wait.is_over(now) else keys.get(wait.guid, "")
        if wait is not None and awaited not in ("", key):
            waits.add(Wait(_name(holder), key, awaited, wait.guid, bool(wait.may_end)))
    return tuple(sorted(waits, key=lambda wait: (wait.holds, wait.waits_for, wait.who))[:MAX_WAITS])


def find_cycles(waits: Sequence[Wait], locks: Iterable[LockInfo] = ()) -> tuple[tuple[Wait, ...], ...]:
    """
    Return cycles of waits, twenty at most: each owner waits for the lock that the next one holds.

    Not all cycles are returned, but at least one of each set of locks that wait for each other. When it is broken, the
    next search finds another. A semaphore is part of a cycle only if all its holders wait: any other one will release
    its permit.
    """
    edges: defaultdict[str, dict[str, Wait]] = defaultdict(dict)  # by the held lock, then by the awaited one
    lasting = [wait for wait in waits if not wait.may_end]
    for wait in _without_free_permits(lasting, locks):
        edges[wait.holds].setdefault(wait.waits_for, wait)
    cycles: list[tuple[Wait, ...]] = []
    while len(cycles) < MAX_CYCLES:
        try:
            TopologicalSorter(edges).prepare()
        except CycleError as error:
            keys = error.args[1]  # the holder of each waits for the one before; the last is the first again
            cycle = [edges[held][awaited] for awaited, held in pairwise(keys)][::-1]
            start = min(range(len(cycle)), key=lambda index: cycle[index].holds)
            first, *others = (*cycle[start:], *cycle[:start])
            cycles.append((first, *others))
            del edges[first.holds][first.waits_for]  # so that the next search finds another one
        else:
            break
    return tuple(sorted(cycles, key=lambda cycle: cycle[0].holds))


def chain_from(key: str, waits: Sequence[Wait]) -> tuple[Wait, ...]:
    """
    Return why a lock is not released: its holder waits for another lock, the holder of that one for a third, and so on.

    In a cycle, the last wait is for a lock that was named before. Empty if no holder of the lock waits.
    """
    chain: list[Wait] = []
    while len(chain) < MAX_CHAIN and key not in {wait.holds for wait in chain}:
        following = next((wait for wait in waits if wait.holds == key), None)
        if following is None:
            break
        chain.append(following)
        key = following.waits_for
    return tuple(chain)


def _without_free_permits(waits: Sequence[Wait], locks: Iterable[LockInfo]) -> Sequence[Wait]:
    """Drop the waits for a semaphore if one of its holders does not wait: that one will release its permit."""
    semaphores = {
        lock.key: {holder.waits_as for holder in lock.holders}
        for lock in locks
        if {contender.kind for contender in (*lock.holders, *lock.waiters)} == {"semaphore"}
    }
    while True:
        waiting = {(wait.owner, wait.holds) for wait in waits}
        moving = {key for key, holders in semaphores.items() if not all((owner, key) in waiting for owner in holders)}
        stuck = [wait for wait in waits if wait.waits_for not in moving]
        if len(stuck) == len(waits):
            return waits
        waits = stuck


def _name(contender: ContenderInfo) -> str:
    what, ident = contender.what, contender.about.get("id", "")
    work = f"{what} {ident}" if ident and ident not in what else what
    return f"{contender.host} pid {contender.pid} {contender.thread}: {work}"
