"""Find what needs attention now, and describe it for pages, commands and JSON."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from django.utils.formats import number_format
from django.utils.translation import gettext_lazy as _

from django_zklock.conf.options import LONG_HELD
from django_zklock.core.queue.command_line import command
from django_zklock.core.queue.untrusted import iso_time
from django_zklock.dashboard import extension, formatting, lazy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from django_zklock.inspection import EnsembleReport, LockInfo, ScannedContender, Snapshot

    Held: TypeAlias = tuple[LockInfo, ScannedContender]

Blocking: TypeAlias = Literal["quorum", "split", "deadlock", "counter", "unreadable", "orphan", "host"]
"""The causes by which work is blocked, or no longer exclusive, until a person acts."""
Cause: TypeAlias = Literal[
    Blocking, "broken", "foreign", "silent", "hung", "operator", "hot", "order", "ended", "flapping", "wearing"
]
"""The causes, the worst first."""
CAUSES: Final[tuple[Cause, ...]] = get_args(Cause)
MANY: Final = 3
"""Locks of one host, losses, or locks of ended processes, from which on the host is the cause."""
TIMES_USUAL: Final = 3.0
"""Ratio to the usual hold from which on a holder counts as hung."""
LEAST_SECONDS: Final = 10.0
"""A shorter hold is never hung, however short the usual one is. Another client may block a waiter for so long."""
FORGOTTEN: Final = 0.9
"""Share of its planned time after which an operator hold that others wait for may be forgotten."""
MAX_NAMED: Final = 3
"""Keys that a text names, and holders that the commands name."""
TEXTS: Final[Mapping[Cause, tuple[Any, Any, Any, str]]] = {
    "quorum": (
        _("ZooKeeper has no quorum"),
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
        _("Each waits for a lock that another one holds. %(holders)s"),
        _("Break one of them: its work is stopped, and the others continue."),
        "",
    ),
    "counter": (
        _("Counter used up: %(keys)s"),
        "%(detail)s",
        _("Let the contenders finish. Then delete the empty directory, so that ZooKeeper counts from 0 again."),
        "show",
    ),
    "unreadable": (
        _("Unknown znode in the queue: %(keys)s"),
        "%(detail)s",
        _("Find the program that made the znode, give it another path, and delete the znode."),
        "show",
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
        "list",
    ),
    "broken": (
        _("Broken by %(by)s %(time)s ago, and its work has not ended yet: %(keys)s"),
        _("The work on %(process)s lost the lock and may still run without it. No end of its work is recorded."),
        _("Look at the process. If it still runs this work, end the process; then check the work."),
        "history",
    ),
    "foreign": (
        _("Another client blocks %(keys)s"),
        _("%(holders)s cannot be asked to release the lock."),
        _("End its program, or break the lock."),
        "",
    ),
    "silent": (
        _("The leader of %(keys)s gives no sign of life"),
        _("%(holders)s. Its next one is overdue by %(time)s. Its session lives, so no other candidate takes over."),
        _("Look at its log: it may wait for its broker or database. If it hangs, break the lock: the next one leads."),
        "",
    ),
    "hung": (
        _("%(holder)s has held %(keys)s for %(time)s"),
        "%(work)s",
        _("Too long? 1. Request release (work that looks for requests finishes). 2. Break (work is stopped)."),
        "",
    ),
    "operator": (
        _("Forgotten hold? %(keys)s, %(holder)s"),
        _("It has lasted %(time)s. %(operator)s"),
        _("If the reason is gone, end this hold."),
        "",
    ),
    "hot": (
        _("%(refused)d of %(callers)d callers were refused in the last minute: %(keys)s"),
        _("They want one lock at the same time, and their timeouts are shorter than the queue."),
        _("Hold it for a shorter time, wait longer (`timeout`), set `max_waiters` or `on_conflict`, or use permits."),
        "show",
    ),
    "order": (
        _("Deadlock %(time)s ago, which has ended by itself: %(keys)s"),
        _("%(count)d in the last 30 minutes. In the last one, %(stories)s."),
        _("Always lock %(order)s, or all at once with `zk_locks`. To change: %(works)s."),
        "history --what=deadlock",
    ),
    "ended": (
        _("Processes on %(process)s ended or were cut off, with %(count)d locks"),
        _("They were killed or paused, or the host is down. The locks are free. Work may be incomplete or still run."),
        _("Look at the host, and at its log for the reason. Check the work of these locks."),
        "history",
    ),
    "flapping": (
        _("%(process)s has lost its locks %(count)d times in the last 30 minutes"),
        _("Its connections to ZooKeeper break, or its processes pause."),
        _("Look at its network, its load and its memory."),
        "history --what=lost",
    ),
    "wearing": (
        _("Counter nearly used up: %(keys)s"),
        "%(detail)s",
        _("Delete its directory in a moment in which it is empty, so that ZooKeeper counts from 0 again."),
        "show",
    ),
}
"""The title, the explanation, the remedy and a command of each cause, which gets the key or the host."""


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
    values: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """More values for its texts."""
    since: object = None
    """When it began, or the servers: it tells the incident from a later one of the same locks, holders and host."""
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
        """
        Return a text of at most 32 characters, the same as long as it is the same incident, in each process.

        A host that hangs is one incident until it releases the oldest of these locks, whatever locks it acquires
        meanwhile. Another death or break, other servers and another holder are new ones. A counter is used up once.
        Deadlocks that have ended are one incident if their locks have the same templates.
        """
        of_host = self.cause in {"quorum", "split", "host", "flapping", "ended", "broken", "order"}
        tokens = sorted(holder.token for _key, holder in self.holders)
        since = self.since or (self.detail if self.cause in {"quorum", "split", "unreadable"} else None)
        parts = (self.host, self.pid * (self.cause == "broken"), str(since), *tokens[:1])
        text = repr(parts if of_host else (sorted(self.keys), tokens, *([str(since)] if since else [])))
        return f"{self.cause}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of a look: what needs attention, and what was looked at."""

    incidents: tuple[Incident, ...]
    """The worst first."""
    looked_at: str
    """How many locks and servers."""
    unseen: tuple[str, ...]
    """Sentences about what was not looked at, and why."""
    complete: bool
    """Whether everything was looked at."""
    acknowledged: tuple[dict[str, Any], ...] = ()
    """Other incidents: their descriptions, and who has acknowledged them, why and until when."""

    @property
    def healthy(self) -> bool:
        """Return whether nothing needs attention, as far as everything was looked at."""
        return self.complete and not self.incidents

    def __str__(self) -> str:
        """Return the sentence about the causes that were not found."""
        if self.healthy and self.acknowledged:
            text = _("Nothing else needs attention; acknowledged: %(count)d. Looked at: %(what)s.")
            return text % {"count": len(self.acknowledged), "what": self.looked_at}
        if self.healthy:
            return _("Nothing needs attention. Looked at: %(what)s.") % {"what": self.looked_at}
        is_known = self.incidents or self.acknowledged
        text = _("No other known cause in %(what)s.") if is_known else _("No known cause in %(what)s.")
        return " ".join([text % {"what": self.looked_at}, *self.unseen])


def report(reply_timeout: float, *, sure: bool = False) -> dict[str, Any]:
    """Return what needs attention now in all locks, for JSON. With `sure`, wait until it is known who has ended."""
    snapshot = lazy.inspection.snapshot(reply_timeout=reply_timeout, max_locks=None, max_waiters=50 if sure else 1)
    verdict = look(snapshot, lazy.inspection.ensemble(reply_timeout=reply_timeout), sure=sure)
    return {
        "healthy": verdict.healthy,
        "problem": snapshot.problem,
        "complete": verdict.complete,
        "looked_at": verdict.looked_at,
        "verdict": str(verdict),
        "locks": snapshot.total,
        "incidents": [describe(incident) for incident in verdict.incidents],
        "acknowledged": list(verdict.acknowledged),
    }


def look(snapshot: Snapshot, servers: EnsembleReport, long_held: float = LONG_HELD, *, sure: bool = False) -> Verdict:
    """Return what needs attention, and what was looked at. With `sure`, wait until it is known who has ended."""
    past, unsure = extension.installed.find(snapshot, sure=sure)
    problem = [formatting.clean(snapshot.problem, formatting.MAX_ERROR)] if snapshot.problem else []
    unseen = [*unsure, *problem, *(() if snapshot.complete else snapshot.skipped)]

    def is_hung(lock: LockInfo, holder: ScannedContender) -> bool:
        if holder.lasts:
            return holder.silent_for > 0
        if holder.source == "other":  # it does not say since when it holds the lock
            return (lock.longest_wait or 0.0) >= min(long_held, LEAST_SECONDS)
        certain = holder.certain_duration
        usual = extension.installed.usual_hold(holder.template) if LEAST_SECONDS <= certain < long_held else None
        return certain >= long_held or (usual is not None and certain >= TIMES_USUAL * usual)

    present = [*_of_queues(snapshot, servers), *_of_holders(snapshot, is_hung), *past]
    present.sort(key=lambda incident: (CAUSES.index(incident.cause), -incident.blocked, -(incident.age or 0.0)))
    is_asked = present and snapshot.connection.state == "connected"
    known = lazy.operations.acknowledgements(reply_timeout=1.5) if is_asked else {}
    acknowledged = [
        {**describe(incident), "by": written.by, "reason": written.reason, "until": formatting.time_text(written.until)}
        for incident in present
        if (written := known.get(incident.identity)) is not None
    ]
    reached, count = sum(server.runs for server in servers.servers), len(servers.servers)
    reached = max(reached, int(snapshot.connection.state == "connected"))  # a proxy may cut `srvr`
    read = sum(not lock.is_unread for lock in snapshot.locks)
    figures = {"locks": read, "all_locks": snapshot.total, "servers": reached, "all_servers": count}
    values = {name: number_format(number, force_grouping=True) for name, number in figures.items()}
    return Verdict(
        incidents=tuple(incident for incident in present if incident.identity not in known),
        acknowledged=tuple(acknowledged),
        looked_at=_("%(locks)s of %(all_locks)s locks, %(servers)s of %(all_servers)s servers") % values,
        unseen=tuple(unseen),
        complete=snapshot.complete and not unseen and reached == count and read == snapshot.total,
    )


def _of_queues(snapshot: Snapshot, servers: EnsembleReport) -> Iterator[Incident]:
    """An answered request of our own counts more than what the servers say of themselves."""
    serves = any(server.serves for server in servers.servers)
    if snapshot.problem and (snapshot.connection.state != "connected" or not serves):
        errors = [  # but for the fourth sentence, which is the remedy of the card
            " ".join(map(str, finding.messages[:3])) % finding.values
            for finding in servers.findings
            if finding.result == "error"
        ]
        waiting = sum(lock.waiting for lock in snapshot.locks)
        down = sorted(server.address for server in servers.servers if not server.runs)
        yield Incident(cause="quorum", detail=(errors or [snapshot.problem])[0], blocked=waiting, since=down)
    sides = sorted(f"{server.address}, epoch {server.zxid >> 32}" for server in servers.servers if server.serves)
    for finding in servers.findings:
        if finding.splits:
            yield Incident(cause="split", detail=finding.text, since=sides)
    for lock in snapshot.locks:
        if (lock.problem and not lock.is_unread) or lock.numbers_left is not None:
            cause: Cause = "counter" if lock.is_worn_out else "unreadable" if lock.problem else "wearing"
            detail = lock.problem or formatting.counter_text(lock)
            yield Incident(cause=cause, keys=(lock.key,), blocked=lock.waiting, detail=detail)


def _of_holders(snapshot: Snapshot, is_hung: Callable[[LockInfo, ScannedContender], bool]) -> Iterator[Incident]:
    locks = {lock.key: lock for lock in snapshot.locks}
    for cycle in snapshot.cycles:
        victims = [locks[wait.holds] for wait in cycle if wait.holds in locks]
        yield from _of("deadlock", [(lock, holder) for lock in victims for holder in lock.holders])
    contenders = [(lock, contender) for lock in snapshot.locks for contender in (*lock.holders, *lock.waiters)]
    yield from _of("orphan", [(lock, contender) for lock, contender in contenders if contender.is_orphan])
    held: defaultdict[tuple[str, int], list[Held]] = defaultdict(list)
    hung: defaultdict[str, list[Held]] = defaultdict(list)
    others = [lock for lock in snapshot.locks if not lock.deadlocked]
    holds = [(lock, holder) for lock in others for holder in lock.holders if not holder.is_orphan]
    for lock, holder in holds:
        if holder.operator is not None:
            if lock.waiting and holder.duration >= FORGOTTEN * holder.operator.seconds:
                yield from _of("operator", [(lock, holder)])
        elif holder.lasts or holder.source == "other":
            yield from _of("silent" if holder.lasts else "foreign", [(lock, holder)] if is_hung(lock, holder) else [])
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
    for host, pid in sorted(processes)[:1]:
        yield Incident(
            cause=cause,
            keys=tuple(waiting),
            host=host,
            pid=pid if len(processes) == 1 else 0,
            age=max(holder.certain_duration for _lock, holder in held) or None,
            blocked=sum(waiting.values()),
            holders=tuple((lock.key, holder) for lock, holder in held),
            since=held[0][1].renewal_due if cause == "silent" else None,
        )


def describe(incident: Incident) -> dict[str, Any]:
    """Return the texts, the facts and the commands of an incident, for a page, for JSON or for a terminal."""
    named = incident.holders[:MAX_NAMED]
    holders = [f"{formatting.key_text(key, 200)}: {formatting.holder_text(holder)}" for key, holder in named]
    values: dict[str, Any] = {
        "keys": formatting.keys_text(incident.keys, MAX_NAMED),
        "process": formatting.host_and_pid(incident.host, incident.pid),
        "count": len(incident.keys),
        "time": formatting.duration(incident.age or 0.0),
        "detail": formatting.clean(incident.detail, formatting.MAX_ERROR),
        "holders": "; ".join(holders),
        **incident.values,
    }
    for _key, holder in named[:1]:
        times = extension.installed.times_usual(holder.certain_duration, holder.template)
        values["holder"] = formatting.process_of(holder)
        work = formatting.work_of(holder)
        runs = _("The holder runs %(work)s.") % {"work": work} if work else ""
        values["work"] = " ".join(filter(None, (runs, f"{times}." if times else "")))
        if incident.cause in {"hung", "operator"}:
            values["time"] = formatting.span(holder)
        if incident.cause == "silent":
            values["time"] = formatting.duration(holder.silent_for)
        if holder.operator is not None:
            values["operator"] = formatting.operator_text(holder.operator)
    title, explanation, remedy, name = (str(text) % values for text in TEXTS[incident.cause])
    waits = formatting.waits_text(incident.blocked) if incident.blocked else ""
    host = incident.host if name.startswith(("list", "history")) and incident.cause != "order" else None
    commands = [command(name, *incident.keys[: name == "show"], host=host)] if name else []
    for key, holder in [(key, holder) for key, holder in named if holder.holds]:
        commands += formatting.hold_commands(key, holder)[0 if incident.cause == "hung" else -1 :]
    return {
        **{
            name: getattr(incident, name) for name in ("cause", "identity", "severity", "host", "pid", "age", "blocked")
        },
        "title": title,
        "explanation": " ".join(filter(None, (waits, explanation, _asked(incident)))),
        "remedy": remedy,
        "commands": commands,
        "token": next((holder.token for _key, holder in named), None),
        "keys": list(incident.keys),
    }


def _asked(incident: Incident) -> str:
    """Return who asked the holders last to release, how long ago and why; empty if nobody did."""
    requests = [holder.release_request for _key, holder in incident.holders if holder.release_request is not None]
    if not requests:
        return ""
    latest = max(requests, key=lambda request: request.at)
    values = {"name": latest.by, "reason": latest.reason or "?"}
    try:
        asked = datetime.now(timezone.utc) - iso_time(latest.at)
        values["time"] = formatting.duration(asked.total_seconds())
    except ValueError:  # no time, or one that another program wrote
        return str(_("Asked by %(name)s: %(reason)s.")) % values
    return str(_("Asked by %(name)s %(time)s ago: %(reason)s.")) % values
