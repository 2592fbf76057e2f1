"""Find what needs an operator's attention: one incident for each cause, the worst first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args

from django_zklock.inspection.ensemble import EnsembleReport
from django_zklock.inspection.info import LONG_HELD, LockInfo, ScannedContender, Snapshot
from django_zklock.queue.order import EXHAUSTED

Cause: TypeAlias = Literal[
    "quorum", "deadlock", "counter", "unreadable", "host", "foreign", "hung", "operator", "ended", "flapping"
]
"""The causes, the worst first."""
CAUSES: Final[tuple[Cause, ...]] = get_args(Cause)
MANY: Final = 3
"""Locks of one process from which on the process is the cause, not its locks; losses of a host that flaps."""
TIMES_USUAL: Final = 3.0
"""Ratio to the usual hold from which on a holder counts as hung."""
LEAST_SECONDS: Final = 10.0
"""A shorter hold is never hung, however short the usual one is."""
FORGOTTEN_AFTER: Final = 8 * 3600.0
"""Seconds from which on an operator hold is forgotten, even if nobody waits."""

Process: TypeAlias = tuple[str, int]  # host and pid
Held: TypeAlias = tuple[LockInfo, ScannedContender]


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One cause, and all that it affects."""

    cause: Cause
    keys: tuple[str, ...] = ()
    """The locks, those with the most waiters first."""
    host: str = ""
    pid: int = 0
    age: float | None = None
    """Seconds; None if it is not known."""
    blocked: int = 0
    """Waiters of these locks."""
    count: int = 0
    """How many locks were lost."""
    detail: str = ""
    """The words of ZooKeeper, or of the error about the queue."""
    holders: tuple[tuple[str, ScannedContender], ...] = ()
    """The holders that can be asked, broken or ended, each with its key."""

    @property
    def severity(self) -> str:
        """Return "error" if work is blocked until a person acts, else "warning"."""
        return "error" if self.cause in {"quorum", "deadlock", "counter", "unreadable", "host"} else "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class PastFacts:
    """The facts that ZooKeeper does not keep; empty without the app of events."""

    usual_hold: Callable[[str], float | None] = lambda template: None
    """The usual hold of a template, in seconds."""
    losses: Mapping[str, int] = field(default_factory=dict)
    """By host, how many locks it has lost lately."""
    unfinished: Iterable[tuple[str, int, str, int]] = ()
    """Host, pid, key and token of late grants without an end."""


def incidents(
    snapshot: Snapshot,
    servers: EnsembleReport | None = None,
    past: PastFacts | None = None,
    long_held: float = LONG_HELD,
) -> tuple[Incident, ...]:
    """Return what needs attention, the worst first. `servers` are needed only if the snapshot has a problem."""
    past = past or PastFacts()
    present = [*_quorum(snapshot, servers), *_deadlocks(snapshot), *_queues(snapshot), *_ended(snapshot, past)]
    present += [
        Incident(cause="flapping", host=host, count=count) for host, count in past.losses.items() if count >= MANY
    ]
    deadlocked = snapshot.deadlocked
    present += _holders([lock for lock in snapshot.locks if lock.key not in deadlocked], past, long_held)
    return tuple(
        sorted(
            present,
            key=lambda incident: (
                CAUSES.index(incident.cause),
                -incident.blocked,
                -(incident.age or 0.0),
                incident.keys,
            ),
        )
    )


def _quorum(snapshot: Snapshot, servers: EnsembleReport | None) -> Iterator[Incident]:
    """An answered request of our own counts more than what the servers say of themselves."""
    serves = servers is not None and any(server.serves for server in servers.servers)
    if snapshot.problem and (snapshot.connection.state != "connected" or not serves):
        errors = [finding.text for finding in servers.findings if finding.result == "error"] if servers else []
        waiting = sum(lock.waiting for lock in snapshot.locks)
        yield Incident(cause="quorum", detail=errors[0] if errors else snapshot.problem, blocked=waiting)


def _deadlocks(snapshot: Snapshot) -> Iterator[Incident]:
    locks = {lock.key: lock for lock in snapshot.locks}
    for cycle in snapshot.cycles:
        stuck = [locks[wait.holds] for wait in cycle if wait.holds in locks]
        yield _of("deadlock", [(lock, holder) for lock in stuck for holder in lock.holders])


def _queues(snapshot: Snapshot) -> Iterator[Incident]:
    for lock in snapshot.locks:
        if lock.problem:
            cause: Cause = "counter" if lock.problem.endswith(EXHAUSTED) else "unreadable"
            yield Incident(cause=cause, keys=(lock.key,), blocked=lock.waiting, detail=lock.problem)


def _ended(snapshot: Snapshot, past: PastFacts) -> Iterator[Incident]:
    """Yield processes that have nothing in ZooKeeper any more, and never released what they held."""
    if snapshot.problem or snapshot.total > len(snapshot.locks):
        return
    contenders = [contender for lock in snapshot.locks for contender in (*lock.holders, *lock.waiters)]
    alive = {(contender.host, contender.pid) for contender in contenders}
    processes: defaultdict[Process, dict[str, None]] = defaultdict(dict)
    for host, pid, key, _ in past.unfinished:
        if (host, pid) not in alive:
            processes[host, pid][key] = None
    for (host, pid), keys in processes.items():
        if len(keys) >= MANY:  # the row of a single release may only be late
            yield Incident(cause="ended", host=host, pid=pid, keys=tuple(keys))


def _holders(  # noqa: C901 - one pass over all holders
    locks: Iterable[LockInfo], past: PastFacts, long_held: float
) -> Iterator[Incident]:
    held: defaultdict[Process, list[Held]] = defaultdict(list)
    hung: defaultdict[Process, list[Held]] = defaultdict(list)
    for lock in locks:
        for holder in lock.holders:
            if holder.operator is not None:
                if lock.waiting or holder.duration >= FORGOTTEN_AFTER:
                    yield _of("operator", [(lock, holder)])
                continue
            if holder.source == "other":
                if lock.waiting:
                    yield _of("foreign", [(lock, holder)])
                continue
            held[holder.host, holder.pid].append((lock, holder))
            if lock.waiting and holder.idle_for is None and is_hung(holder, past.usual_hold, long_held):
                hung[holder.host, holder.pid].append((lock, holder))
    for process, stuck in hung.items():
        if len(held[process]) >= MANY and len({lock.key for lock, _ in held[process]}) >= MANY:
            yield _of("host", held[process], age=max(holder.duration for _, holder in stuck))
        else:
            for pair in stuck:
                yield _of("hung", [pair])


def is_hung(holder: ScannedContender, usual_hold: Callable[[str], float | None], long_held: float = LONG_HELD) -> bool:
    """Return True if it has certainly held the lock for long, or for several times the usual hold of its template."""
    certain = holder.certain_duration
    if certain >= long_held:
        return True
    usual = usual_hold(holder.template) if certain >= LEAST_SECONDS and holder.template else None
    return usual is not None and certain >= TIMES_USUAL * usual


def _of(cause: Cause, held: list[Held], age: float | None = None) -> Incident:
    """Return the incident of these holders."""
    held = sorted(held, key=lambda pair: (-pair[0].waiting, pair[0].key))
    locks = {lock.key: lock for lock, _ in held}
    first = held[0][1] if held else None
    return Incident(
        cause=cause,
        keys=tuple(locks),
        host=first.host if first else "",
        pid=first.pid if first else 0,
        age=age if age is not None else max((holder.duration for _, holder in held), default=None),
        blocked=sum(lock.waiting for lock in locks.values()),
        holders=tuple((lock.key, holder) for lock, holder in held),
    )
