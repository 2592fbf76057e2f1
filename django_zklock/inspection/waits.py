"""Show the owners that wait for each other across locks. `core.protocol.deadlock` ends their deadlocks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
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


class Graph:
    """The waits among some locks. A wait may end by itself if a holder of the lock that it is for does not wait."""

    def __init__(self, waits: Sequence[Wait], locks: Iterable[LockInfo]) -> None:
        self.locks = {lock.key: lock for lock in locks}
        self._after = {wait.holds: wait for wait in reversed(waits)}
        self._edges = {(wait.owner, wait.holds) for wait in waits}
        self._stuck = list(waits)
        while (kept := [wait for wait in self._stuck if self._waits_all(wait.waits_for, self._stuck)]) != self._stuck:
            self._stuck = kept
        self._before: defaultdict[str, list[Wait]] = defaultdict(list)
        for wait in waits:
            if self._waits_all(wait.holds, waits):
                self._before[wait.waits_for].append(wait)

    def _waits_all(self, key: str, waits: Sequence[Wait]) -> bool:
        waiting = {wait.owner for wait in waits if wait.holds == key and not wait.may_end}
        holders = self.locks[key].holders if key in self.locks else ()
        return bool(waiting) and all(holder.waits_as in waiting for holder in holders)

    def waits_elsewhere(self, key: str, holder: ContenderInfo) -> bool:
        """Return whether this holder waits for another lock: then that one is the cause, and not this hold."""
        return (holder.waits_as, key) in self._edges

    def chain(self, key: str) -> tuple[Wait, ...]:
        """Return why a lock is not released: its holder waits for another one, the holder of that for a third, ..."""
        chain: list[Wait] = []
        while key in self._after and self._after[key] not in chain and len(chain) < MAX_CHAIN:
            chain.append(self._after[key])
            key = chain[-1].waits_for
        return tuple(chain)

    @property
    def cycles(self) -> tuple[tuple[Wait, ...], ...]:
        """The deadlocks: each owner waits for the lock that the next one holds, and the last for that of the first."""
        cycles: dict[str, tuple[Wait, ...]] = {}
        following = {wait.holds: wait for wait in reversed(self._stuck)}
        for wait in self._stuck:
            path: list[Wait] = []
            while wait not in path:
                path.append(wait)
                wait = following[wait.waits_for]
            cycle = path[path.index(wait) :]
            first = min(range(len(cycle)), key=lambda index: cycle[index].holds)
            cycles[cycle[first].holds] = (*cycle[first:], *cycle[:first])
        return tuple(cycles[key] for key in sorted(cycles)[:MAX_CYCLES])

    def behind(self, keys: Iterable[str]) -> tuple[int, tuple[tuple[int, Wait], ...]]:
        """Return how many callers wait for these locks, or for locks whose holders wait for them; and those holders."""
        reached, tree = dict.fromkeys(keys), []
        rest = [(1, wait) for key in reached for wait in self._before[key]]
        while rest:
            depth, wait = rest.pop(0)
            if wait.holds not in reached:
                reached[wait.holds] = None
                tree.append((depth, wait))
                rest[:0] = [(depth + 1, other) for other in self._before[wait.holds]]
        return sum(self.locks[key].waiting for key in reached if key in self.locks), tuple(tree)


def _name(contender: ContenderInfo) -> str:
    what, ident = contender.what, contender.about.get("id", "")
    work = f"{what} {ident}" if ident and ident not in what else what
    return f"{contender.host} pid {contender.pid} {contender.thread}: {work}"
