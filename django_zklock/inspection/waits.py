"""Show the owners that wait for each other across locks. `core.protocol.deadlock` ends their deadlocks."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence, Set
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
        if wait is None or wait.is_over(now):
            continue
        awaited = keys.get(wait.guid, key)
        if awaited != key:
            waits.add(Wait(_name(holder), key, awaited, wait.guid, bool(wait.may_end)))
    return tuple(sorted(waits, key=lambda wait: (wait.holds, wait.waits_for, wait.who))[:MAX_WAITS])


class Graph:
    """
    The waits among some locks.

    A holder is stuck if the wait that it tells of never ends, and only it can release its hold. A wait for a permit
    never ends if all holders of the semaphore are stuck: any other one will release its permit. A wait for another lock
    never ends if one of the holders is stuck, as a writer waits for all readers.
    """

    def __init__(self, waits: Sequence[Wait], locks: Iterable[LockInfo]) -> None:
        self.locks = {lock.key: lock for lock in locks}
        self._first = {wait.holds: wait for wait in reversed(waits)}
        self._edges = {(wait.owner, wait.holds) for wait in waits}
        self._before: defaultdict[str, list[Wait]] = defaultdict(list)
        self._waiting: defaultdict[str, set[str]] = defaultdict(set)
        for wait in waits:
            self._before[wait.waits_for].append(wait)
            if not wait.may_end:
                self._waiting[wait.holds].add(wait.owner)
        self._endless = self._without_end(waits)

    def _is_blocked(self, key: str, stuck: Set[str]) -> bool:
        """Return whether a lock is not granted as long as these of its holders are stuck."""
        lock = self.locks.get(key)
        if lock is None:
            return bool(stuck)
        are_stuck = [holder.waits_as in stuck for holder in lock.holders]
        kinds = {contender.kind for contender in (*lock.holders, *lock.waiters)}
        return all(are_stuck) if kinds == {"semaphore"} else any(are_stuck)

    def _without_end(self, waits: Sequence[Wait]) -> list[Wait]:
        """Return the waits that never end: drop one that ends, then those that end by that, and so on."""
        left = dict.fromkeys(wait for wait in waits if not wait.may_end)
        stuck = {key: set(owners) for key, owners in self._waiting.items()}
        rest = deque(left)
        while rest:
            wait = rest.popleft()
            if wait in left and not self._is_blocked(wait.waits_for, stuck.get(wait.waits_for, set())):
                del left[wait]
                stuck[wait.holds].discard(wait.owner)
                rest.extend(self._before[wait.holds])
        return [*left]

    def waits_elsewhere(self, key: str, holder: ContenderInfo) -> bool:
        """Return whether this holder waits for another lock: then that one is the cause, and not this hold."""
        return (holder.waits_as, key) in self._edges

    def chain(self, key: str) -> tuple[Wait, ...]:
        """Return why a lock is not released: its holder waits for another one, the holder of that for a third, ..."""
        chain: list[Wait] = []
        while key in self._first and self._first[key] not in chain and len(chain) < MAX_CHAIN:
            chain.append(self._first[key])
            key = chain[-1].waits_for
        return tuple(chain)

    @property
    def cycles(self) -> tuple[tuple[Wait, ...], ...]:
        """
        The deadlocks: each owner waits for the lock that the next one holds, and the last for that of the first.

        Of several through one lock, one is named. When it is broken, the next graph has another one. Twenty at most.
        """
        following = {wait.holds: wait for wait in reversed(self._endless)}
        seen: set[Wait] = set()
        cycles = []
        for start in self._endless:
            path: list[Wait] = []
            wait = start
            while wait not in seen:
                seen.add(wait)
                path.append(wait)
                wait = following[wait.waits_for]
            if wait in path:
                cycle = path[path.index(wait) :]
                first = min(range(len(cycle)), key=lambda index: cycle[index].holds)
                cycles.append((*cycle[first:], *cycle[:first]))
        return tuple(sorted(cycles, key=lambda cycle: cycle[0].holds)[:MAX_CYCLES])

    def behind(self, keys: Iterable[str]) -> tuple[int, tuple[tuple[int, Wait], ...]]:
        """Return how many callers wait for these locks, or for locks whose holders wait for them; and those holders."""
        reached, tree = dict.fromkeys(keys), []
        rest = deque((1, wait) for key in reached for wait in self._before[key])
        while rest:
            depth, wait = rest.popleft()
            if wait.holds not in reached and self._is_blocked(wait.holds, self._waiting[wait.holds]):
                reached[wait.holds] = None
                tree.append((depth, wait))
                rest.extendleft((depth + 1, other) for other in reversed(self._before[wait.holds]))
        return sum(self.locks[key].waiting for key in reached if key in self.locks), tuple(tree)


def _name(contender: ContenderInfo) -> str:
    what, ident = contender.what, contender.about.get("id", "")
    work = f"{what} {ident}" if ident and ident not in what else what
    return f"{contender.host} pid {contender.pid} {contender.thread}: {work}"
