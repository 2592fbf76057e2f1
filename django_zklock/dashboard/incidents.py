"""Find what needs attention now, and describe it for pages, commands and JSON."""

from __future__ import annotations

import hashlib
import shlex
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from django.utils.translation import gettext_lazy as _

from django_zklock.conf.options import LONG_HELD
from django_zklock.core import clock
from django_zklock.dashboard import extension, formatting, lazy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from django_zklock.inspection import EnsembleReport, LockInfo, ScannedContender, Snapshot

    Held: TypeAlias = tuple[LockInfo, ScannedContender]

Blocking: TypeAlias = Literal["quorum", "split", "deadlock", "counter", "unreadable", "orphan", "host"]
"""The causes by which work is blocked, or no longer exclusive, until a person acts."""
Cause: TypeAlias = Literal[Blocking, "foreign", "hung", "operator", "ended", "flapping"]
"""The causes, the worst first."""
CAUSES: Final[tuple[Cause, ...]] = get_args(Cause)
MANY: Final = 3
"""Locks of one host, losses, or locks of ended processes, from which on the host is the cause."""
TIMES_USUAL: Final = 3.0
"""Ratio to the usual hold from which on a holder counts as hung."""
LEAST_SECONDS: Final = 10.0
"""A shorter hold is never hung, however short the usual one is. Another client may block a waiter for so long."""
FORGOTTEN_AFTER: Final = 8 * 3600.0
"""Seconds from which on an operator hold is forgotten, even if nobody waits."""
WITHIN: Final = 1800.0
"""Seconds in which losses, and holds without an end, are searched."""
LATE: Final = 8.0
"""Seconds after which the end of a hold is surely in the table."""
MAX_NAMED: Final = 3
"""Keys that a text names, and holders that the commands name."""
TEXTS: Final[Mapping[Cause, tuple[Any, Any, Any, str]]] = {
    "quorum": (
        _("ZooKeeper has no quorum, so no lock can be granted"),
        "%(detail)s",
        _("Start the servers that are down, or repair the network. Locks then go on by themselves."),
        "doctor",
    ),
    "split": (
        _("The servers are not one ensemble, so two processes may hold one lock"),
        "%(detail)s",
        _("Stop the work that must not run twice. Then correct URL, or the configuration of the servers."),
        "doctor",
    ),
    "deadlock": (
        _("Deadlock: %(keys)s"),
        _("Each waits for a lock that another one holds. Nothing ends it by itself. %(holders)s"),
        _("Break one of them: its work is stopped, and the others continue."),
        "",
    ),
    "counter": (
        _("Counter used up: %(keys)s"),
        "%(detail)s",
        _("Let the contenders finish. Then delete the empty directory, so that ZooKeeper counts from 0 again."),
        "show %(key)s",
    ),
    "unreadable": (
        _("Unknown znode in the queue: %(keys)s"),
        "%(detail)s",
        _("Find the program that made the znode, give it another path, and delete the znode."),
        "show %(key)s",
    ),
    "orphan": (
        _("Contender without a session: %(keys)s"),
        _("%(holders)s. Nothing deletes it: it was restored from a backup or copied, or its client made it so."),
        _("If its program is gone, break the lock. If it only waits, delete its znode with zkCli.sh."),
        "",
    ),
    "host": (
        _("%(process)s hangs, with %(count)d locks"),
        _("It has held a lock for %(time)s. It is dead or silent, or its work hangs."),
        _("Look at the host. If it is dead, its locks are free when its session ends. If it hangs, break them."),
        "list --host %(host)s",
    ),
    "foreign": (
        _("Another client blocks %(keys)s"),
        _("%(holders)s cannot be asked to release the lock."),
        _("End its program, or break the lock."),
        "",
    ),
    "hung": (
        _("%(holder)s has held %(keys)s for %(time)s"),
        "%(work)s",
        _("Too long? 1. Request release (work finishes). 2. Break (work is stopped)."),
        "",
    ),
    "operator": (
        _("Forgotten hold? %(keys)s, %(holder)s"),
        "%(operator)s",
        _("If the reason is gone, end this hold."),
        "",
    ),
    "ended": (
        _("Processes on %(process)s ended with %(count)d locks"),
        _("It was killed, or its host is down. Its locks are free again, and its work may be incomplete."),
        _("Look at the host, and at its log for the reason. Check the work of these locks."),
        "history --host %(host)s",
    ),
    "flapping": (
        _("%(process)s has lost its locks %(lost)d times in the last 30 minutes"),
        _("Its connections to ZooKeeper break, or its processes pause."),
        _("Look at its network, its load and its memory."),
        "history --host %(host)s --what lost",
    ),
}
"""The title, the explanation, the remedy and a command of each cause."""


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

    @property
    def identity(self) -> str:
        """Return a text that is the same as long as it is the same incident, in each process."""
        tokens = sorted(holder.token for _key, holder in self.holders)
        text = repr((self.host, sorted(self.keys), tokens))
        return f"{self.cause}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


_missing: dict[tuple[str, int, str, int], float] = {}
"""Holds without an end whose processes have no contender: since when; replaced by any thread."""


def report(reply_timeout: float, *, sure: bool = False) -> dict[str, Any]:
    """Return what needs attention now, for JSON. With `sure`, wait if only time can tell whether processes ended."""
    snapshot = lazy.inspection.snapshot(reply_timeout=reply_timeout, max_waiters=50 if sure else 1)
    servers = lazy.inspection.ensemble(reply_timeout=reply_timeout)
    present, acknowledged = split(find(snapshot, servers, sure=sure), reply_timeout)
    return {
        "healthy": not present and not snapshot.problem,
        "problem": snapshot.problem,
        **looked_at(snapshot, servers),
        "locks": snapshot.total,
        "incidents": [describe(incident) for incident in present],
        "acknowledged": acknowledged,
    }


def split(incidents: Sequence[Incident], reply_timeout: float) -> tuple[list[Incident], list[dict[str, Any]]]:
    """Return the incidents that nobody has acknowledged, and the others: described, and with who did."""
    known = lazy.operations.acknowledgements(reply_timeout=reply_timeout) if incidents else {}
    acknowledged = [
        {**describe(incident), "by": written.by, "reason": written.reason, "until": formatting.time_text(written.until)}
        for incident in incidents
        if (written := known.get(incident.identity)) is not None
    ]
    return [incident for incident in incidents if incident.identity not in known], acknowledged


def looked_at(snapshot: Snapshot, servers: EnsembleReport) -> dict[str, Any]:
    """Return what a verdict is about, and whether that is everything."""
    reached, count = sum(server.runs for server in servers.servers), len(servers.servers)
    reached = max(reached, snapshot.connection.state == "connected")  # a proxy may cut `srvr`
    values = {"locks": len(snapshot.locks), "all_locks": snapshot.total, "servers": reached, "all_servers": count}
    text = _("%(locks)d of %(all_locks)d locks, %(servers)d of %(all_servers)d servers") % values
    complete = snapshot.complete and reached == count
    return {"complete": complete, "looked_at": "; ".join([text, *([] if complete else snapshot.skipped)])}


def find(
    snapshot: Snapshot, servers: EnsembleReport | None, long_held: float = LONG_HELD, *, sure: bool = False
) -> tuple[Incident, ...]:
    """Return what needs attention, the worst first. Without `servers`, whether they are one ensemble is not known."""
    ended = _ended(snapshot)
    if sure and _of_many(host for host, *_row in _missing):
        time.sleep(LATE)
        ended = _ended(snapshot)

    def is_hung(lock: LockInfo, holder: ScannedContender) -> bool:
        if holder.source == "other":  # it does not say since when it holds the lock
            return (lock.longest_wait or 0.0) >= min(long_held, LEAST_SECONDS)
        certain = holder.certain_duration
        usual = extension.installed.usual_hold(holder.template) if LEAST_SECONDS <= certain < long_held else None
        return certain >= long_held or (usual is not None and certain >= TIMES_USUAL * usual)

    present = [*_of_queues(snapshot, servers), *_of_holders(snapshot, is_hung)]
    losses = extension.installed.losses(WITHIN)
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
        of_host = [pair for pid in {holder.pid for _lock, holder in stuck} for pair in held[host, pid]]
        if len({lock.key for lock, _holder in of_host}) >= MANY:
            yield from _of("host", of_host)
        else:
            for pair in stuck:
                yield from _of("hung", [pair])


def _of(cause: Cause, held: list[Held]) -> Iterator[Incident]:
    """Yield the incident of these holders, if there are any."""
    held = sorted(held, key=lambda pair: (-pair[0].waiting, pair[0].key))
    waiting = {lock.key: lock.waiting for lock, _holder in held}
    processes = {(holder.host, holder.pid) for _lock, holder in held}
    for host, pid in list(processes)[:1]:
        yield Incident(
            cause=cause,
            keys=tuple(waiting),
            host=host,
            pid=pid if len(processes) == 1 else 0,
            age=max(holder.certain_duration for _lock, holder in held) or None,
            blocked=sum(waiting.values()),
            holders=tuple((lock.key, holder) for lock, holder in held),
        )


def _ended(snapshot: Snapshot) -> dict[str, list[str]]:
    """Return by host the many keys that ended processes never released. Rows may be late, so it takes a second look."""
    global _missing
    if snapshot.problem or snapshot.total > len(snapshot.locks):
        return {}
    rows = extension.installed.unfinished(WITHIN)
    if not rows:
        _missing = {}
        return {}
    now = clock.now()
    alive = {(contender.host, contender.pid) for lock in snapshot.locks for contender in (*lock.holders, *lock.waiters)}
    _missing = {row: _missing.get(row, now) for row in rows if row[:2] not in alive}
    ended = [(host, key) for (host, _pid, key, _token), since in _missing.items() if now - since >= LATE]
    return {host: [key for other, key in ended if other == host] for host in _of_many(host for host, _key in ended)}


def _of_many(hosts: Iterable[str]) -> list[str]:
    """Return those that are there often enough to need attention."""
    return [host for host, count in Counter(hosts).items() if count >= MANY]


def describe(incident: Incident) -> dict[str, Any]:
    """Return the texts, the facts and the commands of an incident, for a page, for JSON or for a terminal."""
    named = incident.holders[:MAX_NAMED]
    holders = [f"{formatting.clean(key, 200)}: {formatting.holder_text(holder)}" for key, holder in named]
    values: dict[str, Any] = {
        "keys": formatting.keys_text(incident.keys, MAX_NAMED),
        "key": shlex.quote("".join(incident.keys[:1])),
        "host": shlex.quote(incident.host),
        "process": formatting.host_and_pid(incident.host, incident.pid),
        "count": len(incident.keys),
        "lost": incident.count,
        "time": formatting.duration(incident.age or 0.0),
        "detail": formatting.clean(incident.detail, formatting.MAX_ERROR),
        "holders": "; ".join(holders),
    }
    for _key, holder in named[:1]:
        times = extension.installed.times_usual(holder.certain_duration, holder.template)
        values["holder"] = formatting.process_of(holder)
        values["work"] = " · ".join(filter(None, (formatting.work_of(holder), times)))
        if incident.cause == "hung":
            values["time"] = formatting.span(holder)
        if holder.operator is not None:
            values["operator"] = formatting.operator_text(holder.operator)
    title, explanation, remedy, command = (str(text) % values for text in TEXTS[incident.cause])
    commands = [command] if command else []
    for key, holder in [(key, holder) for key, holder in named if holder.holds]:
        commands += formatting.hold_commands(key, holder)[0 if incident.cause == "hung" else -1 :]
    return {
        **{name: getattr(incident, name) for name in ("cause", "severity", "host", "pid", "age", "blocked")},
        "identity": incident.identity,
        "title": title,
        "explanation": f"{formatting.waits_text(incident.blocked) if incident.blocked else ''} {explanation}".strip(),
        "remedy": remedy,
        "commands": [f"manage.py zklock {command}" for command in commands],
        "token": next((holder.token for _key, holder in named), None),
        "keys": list(incident.keys),
    }
