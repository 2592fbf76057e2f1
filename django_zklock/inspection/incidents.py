"""Find what needs an operator's attention: one incident for each cause, the worst first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from django_zklock.inspection.ensemble import EnsembleReport
from django_zklock.inspection.info import LockInfo, ScannedContender, Snapshot

Blocking: TypeAlias = Literal["quorum", "split", "deadlock", "counter", "unreadable", "orphan", "host"]
"""The causes by which work is blocked, or no longer exclusive, until a person acts."""
Cause: TypeAlias = Literal[Blocking, "foreign", "hung", "operator", "ended", "flapping"]
"""The causes, the worst first."""
CAUSES: Final[tuple[Cause, ...]] = get_args(Cause)
MANY: Final = 3
"""Locks of one host, or losses, from which on the host is the cause."""
TIMES_USUAL: Final = 3.0
"""Ratio to the usual hold from which on a holder counts as hung."""
LEAST_SECONDS: Final = 10.0
"""A shorter hold is never hung, however short the usual one is. Another client may block a waiter for so long."""
FORGOTTEN_AFTER: Final = 8 * 3600.0
"""Seconds from which on an operator hold is forgotten, even if nobody waits."""

Held: TypeAlias = tuple[LockInfo, ScannedContender]


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One cause, and all that it affects."""

    cause: Cause
    keys: tuple[str, ...] = ()
    """The locks, those with the most waiters first."""
    host: str = ""
    pid: int = 0
    """0 if several processes of the host are concerned."""
    age: float | None = None
    """Seconds for which it has certainly lasted; None if that is not known."""
    blocked: int = 0
    """Waiters for these locks."""
    count: int = 0
    """How many sessions of the host have lost their locks."""
    detail: str = ""
    """The words of ZooKeeper, or of the error about the queue."""
    holders: tuple[tuple[str, ScannedContender], ...] = ()
    """The holders that can be asked, broken or ended, each with its key."""

    @property
    def severity(self) -> str:
        """Return "error" if the cause is one of `Blocking`, else "warning"."""
        return "error" if self.cause in get_args(Blocking) else "warning"


def incidents(
    snapshot: Snapshot,
    servers: EnsembleReport | None,
    *,
    long_held: float,
    usual_hold: Callable[[str], float | None],
    losses: Mapping[str, int],
    ended: Mapping[str, Sequence[str]],
) -> tuple[Incident, ...]:
    """
    Return what needs attention, the worst first. Without `servers`, whether they are one ensemble is not known.

    ZooKeeper does not know the rest: the usual hold of a template in seconds; by host, how many sessions have lost
    their locks, and the keys that ended processes have never released.
    """

    def is_hung(lock: LockInfo, holder: ScannedContender) -> bool:
        if holder.source == "other":  # it does not say since when it holds the lock
            return (lock.longest_wait or 0.0) >= min(long_held, LEAST_SECONDS)
        certain = holder.certain_duration
        usual = usual_hold(holder.template) if LEAST_SECONDS <= certain < long_held else None
        return certain >= long_held or (usual is not None and certain >= TIMES_USUAL * usual)

    present = [*_of_queues(snapshot, servers), *_of_holders(snapshot, is_hung)]
    present += [Incident(cause="flapping", host=host, count=losses[host]) for host in losses if losses[host] >= MANY]
    present += [Incident(cause="ended", host=host, keys=tuple(keys)) for host, keys in ended.items()]
    present.sort(key=lambda incident: (CAUSES.index(incident.cause), -incident.blocked, -(incident.age or 0.0)))
    return tuple(present)


def _of_queues(snapshot: Snapshot, servers: EnsembleReport | None) -> Iterator[Incident]:
    """An answered request of our own counts more than what the servers say of themselves."""
    serves = servers is not None and any(server.serves for server in servers.servers)
    if snapshot.problem and (snapshot.connection.state != "connected" or not serves):
        errors = [finding.text for finding in servers.findings if finding.result == "error"] if servers else []
        waiting = sum(lock.waiting for lock in snapshot.locks)
        yield Incident(cause="quorum", detail=(errors or [snapshot.problem])[0], blocked=waiting)
    for finding in servers.findings if servers else ():
        if finding.splits:
            yield Incident(cause="split", detail=finding.text)
    for lock in snapshot.locks:
        if lock.problem:
            cause: Cause = "counter" if lock.is_worn_out else "unreadable"
            yield Incident(cause=cause, keys=(lock.key,), blocked=lock.waiting, detail=lock.problem)


def _of_holders(snapshot: Snapshot, is_hung: Callable[[LockInfo, ScannedContender], bool]) -> Iterator[Incident]:
    locks = {lock.key: lock for lock in snapshot.locks}
    for cycle in snapshot.cycles:
        victims = [locks[wait.holds] for wait in cycle if wait.holds in locks]
        yield from _of("deadlock", [(lock, holder) for lock in victims for holder in lock.holders])
    contenders = [(lock, contender) for lock in snapshot.locks for contender in (*lock.holders, *lock.waiters)]
    yield from _of("orphan", [(lock, contender) for lock, contender in contenders if contender.is_orphan])
    held: defaultdict[tuple[str, int], list[Held]] = defaultdict(list)
    hung: defaultdict[str, list[Held]] = defaultdict(list)
    for lock, holder in [
        (locks[key], holder)
        for key in locks.keys() - snapshot.deadlocked
        for holder in locks[key].holders
        if not holder.is_orphan
    ]:
        if holder.operator is not None:
            if lock.waiting or holder.duration >= FORGOTTEN_AFTER:
                yield from _of("operator", [(lock, holder)])
        elif holder.source == "other":
            yield from _of("foreign", [(lock, holder)] if is_hung(lock, holder) else [])
        else:
            held[holder.host, holder.pid].append((lock, holder))
            if lock.waiting and holder.idle_for is None and is_hung(lock, holder):
                hung[holder.host].append((lock, holder))
    for host, stuck in hung.items():
        of_host = [pair for pid in {holder.pid for _, holder in stuck} for pair in held[host, pid]]
        if len({lock.key for lock, _ in of_host}) >= MANY:
            yield from _of("host", of_host)
        else:
            for pair in stuck:
                yield from _of("hung", [pair])


def _of(cause: Cause, held: list[Held]) -> Iterator[Incident]:
    """Yield the incident of these holders, if there are any."""
    held = sorted(held, key=lambda pair: (-pair[0].waiting, pair[0].key))
    waiting = {lock.key: lock.waiting for lock, _ in held}
    processes = {(holder.host, holder.pid) for _, holder in held}
    for host, pid in list(processes)[:1]:
        yield Incident(
            cause=cause,
            keys=tuple(waiting),
            host=host,
            pid=pid if len(processes) == 1 else 0,
            age=max(holder.certain_duration for _, holder in held) or None,
            blocked=sum(waiting.values()),
            holders=tuple((lock.key, holder) for lock, holder in held),
        )
