"""Find owners that wait for each other across locks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Final, TypeAlias

from django_zklock.core.execution.owner import DISPATCHER
from django_zklock.core.protocol.contender_info import ContenderInfo
from django_zklock.inspection.info import LockInfo, ScannedContender, Wait

MAX_WAITS: Final = 2000
MAX_CYCLES: Final = 20
MAX_CHAIN: Final = 12

_Owner: TypeAlias = tuple[object, ...]


def owners(contender: ScannedContender) -> tuple[_Owner, ...]:
    """
    Return the identities of what holds or waits, the more exact one first; none for another client.

    A thread, greenlet or asyncio task has a number in its session. A lock that a worker's main process has acquired for
    a Celery task belongs to the whole task, too: the task's process waits for others in a session of its own. Any other
    lock of a task belongs only to its thread, as another thread of the task may wait. So do leases: a coordinator does
    not know which of them a client uses together. A holder that has waited for a second says so in its znode.
    """
    known: list[_Owner] = [(contender.session_id, contender.owner)] if contender.session_id and contender.owner else []
    # A waiter without a number lingers: its znode may still name a task that has left.
    if contender.about.get("id") and (contender.thread == DISPATCHER if contender.holds else known):
        known.append((contender.host, contender.about["id"]))
    if guid := contender.waits_as if contender.holds else contender.guid:
        known.append((guid,))
    return tuple(known)


def find_waits(locks: Sequence[LockInfo]) -> tuple[Wait, ...]:
    """
    Return the owners that hold one lock and wait for another, two thousand at most.

    Contenders have the same owner if they agree in one of its identities.
    """
    wants: defaultdict[_Owner, dict[str, None]] = defaultdict(dict)  # the keys, each once
    for lock in locks:
        for waiter in lock.waiters:
            for owner in owners(waiter):
                wants[owner][lock.key] = None
    waits = (
        ((known[0], lock.key, key), Wait(who=_name(holder), holds=lock.key, waits_for=key, owner=known[0]))
        for lock in locks
        for holder, known in [(holder, owners(holder)) for holder in lock.holders]
        for owner in known
        for key in wants.get(owner, ())
        if key != lock.key
    )
    once: dict[tuple[_Owner, str, str], Wait] = {}  # an owner may have several permits of one semaphore
    for identity, wait in waits:
        once[identity] = wait
        if len(once) == MAX_WAITS:
            break
    return tuple(sorted(once.values(), key=lambda wait: (wait.holds, wait.waits_for, wait.who)))


def find_cycles(waits: Sequence[Wait], locks: Iterable[LockInfo] = ()) -> tuple[tuple[Wait, ...], ...]:
    """
    Return cycles of waits, twenty at most: each owner waits for the lock that the next one holds.

    Not all cycles are returned, but at least one of each set of locks that wait for each other. When it is broken, the
    next search finds another. A semaphore is part of a cycle only if all its holders wait: any other one will release
    its permit.
    """
    edges: defaultdict[str, dict[str, Wait]] = defaultdict(dict)  # by the held lock, then by the awaited one
    for wait in _without_free_permits(waits, locks):
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
        lock.key: {owners(holder)[:1] for holder in lock.holders}
        for lock in locks
        if {contender.kind for contender in (*lock.holders, *lock.waiters)} == {"semaphore"}
    }
    while True:
        waiting = {((wait.owner,), wait.holds) for wait in waits}
        moving = {key for key, holders in semaphores.items() if not all((owner, key) in waiting for owner in holders)}
        stuck = [wait for wait in waits if wait.waits_for not in moving]
        if len(stuck) == len(waits):
            return waits
        waits = stuck


def _name(contender: ContenderInfo) -> str:
    what, ident = contender.what, contender.about.get("id", "")
    work = f"{what} {ident}" if ident and ident not in what else what
    return f"{contender.host} pid {contender.pid} {contender.thread}: {work}"
