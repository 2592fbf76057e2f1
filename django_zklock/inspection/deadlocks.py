"""Find owners that wait for each other across locks."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from django_zklock.inspection.info import LockInfo, Wait
from django_zklock.locks.queue_reader import ContenderInfo

MAX_WAITS: Final = 2000
MAX_CYCLES: Final = 20
MAX_CHAIN: Final = 12
MAX_STARTS: Final = 100  # locks from which a search for a cycle starts

_Owner: TypeAlias = tuple[int, int]  # session id and number of the owner in it


def find_waits(locks: Sequence[LockInfo]) -> tuple[Wait, ...]:
    """
    Return the owners that hold one lock and wait for another, two thousand at most.

    Contenders have the same owner if they agree in session and owner number. A contender without a number, such as
    another client, is in no wait.
    """
    wants: defaultdict[_Owner, list[str]] = defaultdict(list)
    for lock in locks:
        for waiter in lock.waiters:
            wants[waiter.session_id, waiter.owner].append(lock.key)
    holds: defaultdict[_Owner, list[str]] = defaultdict(list)
    names: dict[_Owner, str] = {}
    for lock in locks if wants else ():
        for holder in lock.holders:
            owner = holder.session_id, holder.owner
            if owner in wants and all(owner):
                holds[owner].append(lock.key)
                names[owner] = _name(holder)
    found: list[Wait] = []
    for owner, keys in holds.items():
        for held in dict.fromkeys(keys):
            found += [
                Wait(who=names[owner], holds=held, waits_for=key) for key in dict.fromkeys(wants[owner]) if key != held
            ]
            if len(found) > MAX_WAITS:
                break
    return tuple(sorted(found[:MAX_WAITS], key=lambda wait: (wait.holds, wait.waits_for, wait.who)))


def find_cycles(found: Sequence[Wait], locks: Iterable[LockInfo] = ()) -> tuple[tuple[Wait, ...], ...]:
    """
    Return cycles of waits, twenty at most: each waits for the lock that the next one holds.

    For each lock in a cycle, one of the shortest cycles through it is returned, and each cycle once. A semaphore is
    part of a cycle only if all holders of its permits are: any other one will release a permit.
    """
    following = _possible_cycles(_stuck(found, locks)) if found else {}
    named: dict[frozenset[Wait], tuple[Wait, ...]] = {}
    covered: set[str] = set()
    for key in sorted(following)[:MAX_STARTS]:
        if len(named) == MAX_CYCLES:
            break
        if key in covered:
            continue
        cycle = _shortest(key, following)
        if cycle:
            covered.update(wait.holds for wait in cycle)
            named.setdefault(frozenset(cycle), cycle)
    return tuple(named.values())


def chain_from(key: str, found: Sequence[Wait]) -> tuple[Wait, ...]:
    """
    Return why a lock is not released: its holder waits for another lock, the holder of that one for a third, and so on.

    In a cycle, the last wait is for a lock that was named before. Empty if no holder of the lock waits.
    """
    chain: list[Wait] = []
    while len(chain) < MAX_CHAIN and key not in {wait.holds for wait in chain}:
        following = next((wait for wait in found if wait.holds == key), None)
        if following is None:
            break
        chain.append(following)
        key = following.waits_for
    return tuple(chain)


def _stuck(found: Sequence[Wait], locks: Iterable[LockInfo]) -> Sequence[Wait]:
    """Drop the waits for semaphores that will have a free permit."""
    pools = {lock.key: {_name(each) for each in lock.holders} for lock in locks if _is_semaphore(lock)}
    while True:
        waiting = {(wait.who, wait.holds) for wait in found}
        moving = {key for key, holders in pools.items() if not all((who, key) in waiting for who in holders)}
        left = [wait for wait in found if wait.waits_for not in moving]
        if len(left) == len(found):
            return found
        found = left


def _is_semaphore(lock: LockInfo) -> bool:
    """Return True if each waiter can continue as soon as any one of the holders releases."""
    return bool(lock.holders) and all(each.kind == "semaphore" for each in (*lock.holders, *lock.waiters))


def _possible_cycles(found: Sequence[Wait]) -> dict[str, list[Wait]]:
    """Return by lock the waits of its holders, without those that cannot be part of a cycle."""
    led_to = _trimmed([(wait.holds, wait.waits_for, wait) for wait in found])
    both = _trimmed([(wait.waits_for, wait.holds, wait) for wait in led_to])
    following: dict[str, list[Wait]] = {}
    for wait in both:
        following.setdefault(wait.holds, []).append(wait)
    return following


def _trimmed(edges: Sequence[tuple[str, str, Wait]]) -> list[Wait]:
    """Drop edges from vertices without an incoming edge, repeatedly; in linear time, as a long chain can be forged."""
    leaving: defaultdict[str, list[tuple[str, Wait]]] = defaultdict(list)
    entering: defaultdict[str, int] = defaultdict(int)
    for start, end, wait in edges:
        leaving[start].append((end, wait))
        entering[end] += 1
    unreached = deque(node for node in leaving if not entering[node])
    while unreached:
        for end, _ in leaving.pop(unreached.popleft(), ()):
            entering[end] -= 1
            if not entering[end]:
                unreached.append(end)
    return [wait for ends in leaving.values() for _, wait in ends]


def _shortest(key: str, following: dict[str, list[Wait]]) -> tuple[Wait, ...]:
    """Return a shortest cycle through a lock, by breadth-first search; empty if there is none."""
    reached_by: dict[str, Wait] = {}
    to_visit = deque([key])
    while to_visit:
        here = to_visit.popleft()
        for wait in following.get(here, ()):
            if wait.waits_for in reached_by:
                continue
            reached_by[wait.waits_for] = wait
            if wait.waits_for == key:
                return _backtrack(key, reached_by)
            to_visit.append(wait.waits_for)
    return ()


def _backtrack(key: str, reached_by: dict[str, Wait]) -> tuple[Wait, ...]:
    path = [reached_by[key]]
    while path[-1].holds != key:
        path.append(reached_by[path[-1].holds])
    return tuple(reversed(path))


def _name(contender: ContenderInfo) -> str:
    what, ident = contender.what, contender.about.get("id", "")
    named = f"{what} {ident}" if ident and ident not in what else what
    return f"{contender.host} pid {contender.pid} {contender.thread} (owner {contender.owner}): {named}"
