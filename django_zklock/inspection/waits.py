"""Who keeps whom waiting across locks, and who waits in a circle."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from django_zklock.inspection.values import ContenderInfo, LockInfo, Wait

MOST_WAITS: Final = 2000
MOST_CYCLES: Final = 20
MOST_TRIES: Final = 100  # locks from which a circle is looked for

_Owner: TypeAlias = tuple[int, int]  # a session, and the number of an owner in it


def waits(locks: Iterable[LockInfo]) -> tuple[Wait, ...]:
    """
    Return who holds one lock and waits for another, as far as the payloads tell: two thousand at most.

    Contenders are one owner's if they agree in session and number of the owner. One without a number, such as another
    client's, is in no wait.
    """
    holds: defaultdict[_Owner, list[str]] = defaultdict(list)
    wants: defaultdict[_Owner, list[str]] = defaultdict(list)
    names: dict[_Owner, str] = {}
    for lock in locks:
        for holder in lock.holders:
            holds[_owner(holder)].append(lock.key)
            names[_owner(holder)] = _name(holder)
        for waiter in lock.waiters:
            wants[_owner(waiter)].append(lock.key)
    found: list[Wait] = []
    for owner in holds.keys() & wants.keys():
        if not all(owner):
            continue
        who = names[owner]
        for held in dict.fromkeys(holds[owner]):
            found += [Wait(who=who, holds=held, waits_for=key) for key in dict.fromkeys(wants[owner]) if key != held]
            if len(found) > MOST_WAITS:
                break
    return tuple(sorted(found[:MOST_WAITS], key=lambda wait: (wait.holds, wait.waits_for, wait.who)))


def cycles(found: Sequence[Wait], locks: Iterable[LockInfo] = ()) -> tuple[tuple[Wait, ...], ...]:
    """
    Return circles of waits, each of which waits for the lock that the next one holds; twenty at most.

    For each lock in a circle one of the shortest through it is named, and each circle once. A semaphore is in none as
    long as one who has a permit may go on to let go of it: only if all of them wait in circles, nobody ever does.
    """
    following = _circular(_stuck(found, locks))
    named: dict[frozenset[Wait], tuple[Wait, ...]] = {}
    covered: set[str] = set()
    for key in sorted(following)[:MOST_TRIES]:
        if len(named) == MOST_CYCLES:
            break
        if key in covered:
            continue
        circle = _shortest(key, following)
        if circle:
            covered.update(wait.holds for wait in circle)
            named.setdefault(frozenset(circle), circle)
    return tuple(named.values())


def _stuck(found: Sequence[Wait], locks: Iterable[LockInfo]) -> Sequence[Wait]:
    """Drop the waits for semaphores of which a permit will become free."""
    pools = {lock.key: {_name(each) for each in lock.holders} for lock in locks if _any_will_do(lock)}
    while True:
        waiting = {(wait.who, wait.holds) for wait in found}
        moving = {key for key, holders in pools.items() if not all((who, key) in waiting for who in holders)}
        left = [wait for wait in found if wait.waits_for not in moving]
        if len(left) == len(found):
            return found
        found = left


def _any_will_do(lock: LockInfo) -> bool:
    """Tell whether all who wait for a lock can go on as soon as any one of several holders has let go of it."""
    return bool(lock.holders) and all(each.kind == "semaphore" for each in (*lock.holders, *lock.waiters))


def _circular(found: Sequence[Wait]) -> dict[str, list[Wait]]:
    """Return by lock the waits of its holders, without those that lead nowhere or come from nowhere."""
    led_to = _trimmed([(wait.holds, wait.waits_for, wait) for wait in found])
    both = _trimmed([(wait.waits_for, wait.holds, wait) for wait in led_to])
    following: dict[str, list[Wait]] = {}
    for wait in both:
        following.setdefault(wait.holds, []).append(wait)
    return following


def _trimmed(edges: Sequence[tuple[str, str, Wait]]) -> list[Wait]:
    """Drop edges from nodes that no edge leads to, until all have one; in linear time, as anybody may forge a chain."""
    leaving: defaultdict[str, list[tuple[str, Wait]]] = defaultdict(list)
    entering: defaultdict[str, int] = defaultdict(int)
    for start, end, wait in edges:
        leaving[start].append((end, wait))
        entering[end] += 1
    bare = deque(node for node in leaving if not entering[node])
    while bare:
        for end, _ in leaving.pop(bare.popleft(), ()):
            entering[end] -= 1
            if not entering[end]:
                bare.append(end)
    return [wait for ends in leaving.values() for _, wait in ends]


def _shortest(key: str, following: dict[str, list[Wait]]) -> tuple[Wait, ...]:
    came_by: dict[str, Wait] = {}
    to_visit = deque([key])
    while to_visit:
        here = to_visit.popleft()
        for wait in following.get(here, ()):
            if wait.waits_for in came_by:
                continue
            came_by[wait.waits_for] = wait
            if wait.waits_for == key:
                return _way_back(key, came_by)
            to_visit.append(wait.waits_for)
    return ()


def _way_back(key: str, came_by: dict[str, Wait]) -> tuple[Wait, ...]:
    way = [came_by[key]]
    while way[-1].holds != key:
        way.append(came_by[way[-1].holds])
    return tuple(reversed(way))


def _owner(contender: ContenderInfo) -> _Owner:
    return contender.session_id, contender.owner


def _name(contender: ContenderInfo) -> str:
    what, ident = contender.what, contender.about.get("id", "")
    named = f"{what} {ident}" if ident and ident not in what else what
    return f"{contender.host} pid {contender.pid} {contender.thread} (owner {contender.owner}): {named}"
