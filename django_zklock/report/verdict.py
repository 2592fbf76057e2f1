"""Look at all locks and servers, and say what needs attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django.utils.formats import number_format
from django.utils.translation import gettext as _

from django_zklock.core import clock
from django_zklock.report import formatting, history, holders, lazy, queues, servers
from django_zklock.report.facts import Facts
from django_zklock.report.incident import MAX_NAMED
from django_zklock.report.servers import down, problem_text, unasked

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django_zklock.inspection import EnsembleReport, LockInfo, ServerReport, Snapshot
    from django_zklock.report.incident import Incident

CAUSES: Final[dict[str, type[Incident]]] = {
    kind.cause: kind
    for kind in (
        servers.Quorum,
        servers.Split,
        servers.Denied,
        holders.Deadlock,
        queues.Unreadable,
        holders.Orphan,
        holders.Host,
        history.Stale,
        history.Refused,
        holders.Foreign,
        holders.Silent,
        holders.Hung,
        holders.Operator,
        queues.Crowded,
        servers.Slow,
        servers.Down,
        history.Hot,
        history.Order,
        history.Ended,
        history.Dying,
        history.Flapping,
    )
}
"""The causes, the worst first."""
SERVERS_SHARE: Final = 0.3
"""Share of the time in which the servers have to answer. The first round of a new connection takes about as long."""


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

    @property
    def healthy(self) -> bool:
        """Return whether nothing needs attention, as far as everything was looked at."""
        return self.complete and not self.incidents

    def __str__(self) -> str:
        """Return the sentence about the causes that were not found."""
        if self.healthy:
            return _("Nothing needs attention. Looked at: %(what)s.") % {"what": self.looked_at}
        text = _("No other known cause in %(what)s.") if self.incidents else _("No known cause in %(what)s.")
        return " ".join([text % {"what": self.looked_at}, *self.unseen])


class Look(NamedTuple):
    """All that was read at one moment, with what needs attention."""

    snapshot: Snapshot
    servers: EnsembleReport
    verdict: Verdict


def now(reply_timeout: float, *, max_age: float = 1.0, **limits: Any) -> Look:
    """
    Ask all servers, and read all locks, in `reply_timeout` seconds. If no server answers, stop earlier.

    `limits` are those of `inspection.snapshot`.
    """
    until = clock.now() + reply_timeout
    lazy.inspection.connection()  # connects, while the servers are asked
    servers = lazy.inspection.ensemble(reply_timeout=reply_timeout * SERVERS_SHARE, max_age=max_age)
    is_away = not servers.answers and lazy.inspection.connection().state != "connected"
    left = round(max(0.1, until - clock.now()), 1)
    snapshot = lazy.inspection.snapshot(reply_timeout=0.1 if is_away else left, max_age=max_age, **limits)
    return Look(snapshot, servers, look(snapshot, servers))


def as_json(reply_timeout: float) -> dict[str, Any]:
    """Return what needs attention now in all locks, for JSON."""
    snapshot, _servers, verdict = now(reply_timeout, max_locks=None)
    return {
        "healthy": verdict.healthy,
        "problem": snapshot.problem,
        "complete": verdict.complete,
        "looked_at": verdict.looked_at,
        "verdict": str(verdict),
        "locks": snapshot.total,
        "held": sum(bool(lock.holders) for lock in snapshot.locks),
        "waiting": sum(lock.waiting for lock in snapshot.locks),
        "incidents": [incident.describe() for incident in verdict.incidents],
    }


def look(snapshot: Snapshot, servers: EnsembleReport) -> Verdict:
    """Return what needs attention, and what was looked at."""
    facts = Facts(snapshot, servers)
    present = found(facts)
    running = max(sum(server.runs for server in servers.servers), servers.has_quorum)  # a proxy may cut `srvr`
    servers_seen = running + len(down(servers)) >= len(servers.servers)
    unseen = facts.unseen + _unseen_locks(snapshot)
    if not any(incident.cause == "quorum" for incident in present):  # it says the same
        unseen += _unasked(snapshot, () if servers_seen else unasked(servers))
        if not (servers.has_quorum or snapshot.problem):
            unseen.append(_("It is not known whether locks can be granted: a write was not answered in time."))
    complete = snapshot.complete and servers_seen and servers.has_quorum and not unseen
    return Verdict(
        incidents=tuple(present),
        looked_at=_looked_at(snapshot, running, len(servers.servers)),
        unseen=tuple(unseen),
        complete=complete,
    )


def _unasked(snapshot: Snapshot, servers: Iterable[ServerReport]) -> list[str]:
    """Return why ZooKeeper did not answer, and which servers could not be asked."""
    problem = [formatting.clean(snapshot.problem, formatting.MAX_ERROR)] if snapshot.problem else []
    return problem + [problem_text(server) for server in servers]


def _looked_at(snapshot: Snapshot, running: int, servers: int) -> str:
    """Return how many locks and servers were looked at, and how many there are; "?" if that is not known."""
    figures = {
        "locks": sum(not lock.is_unread for lock in snapshot.locks),
        "all_locks": snapshot.total,
        "servers": running,
        "all_servers": servers,
    }
    values = {name: number_format(number, force_grouping=True) for name, number in figures.items()}
    if snapshot.problem and not snapshot.total:
        values["all_locks"] = "?"
    return _("%(locks)s of %(all_locks)s locks, %(servers)s of %(all_servers)s servers") % values


def _unseen_locks(snapshot: Snapshot) -> list[str]:
    """Return sentences about locks that were not read."""
    if snapshot.complete:
        return []
    unread = [lock for lock in snapshot.locks if lock.is_unread][:MAX_NAMED]
    return [f"{formatting.key_text(lock.key)}: {' '.join(formatting.reasons(lock))}" for lock in unread] + list(
        snapshot.skipped
    )


def found(facts: Facts, causes: Iterable[type[Incident]] = CAUSES.values()) -> list[Incident]:
    """Return the incidents of these causes, the worst first. Callers behind one of them are no second one."""
    incidents: list[Incident] = [incident for kind in causes for incident in kind.find(facts)]
    others = [incident for incident in incidents if incident.cause != "hot"]
    blamed = {key for incident in others if incident.holders or _blocks(incident) for key in incident.keys}
    hot = {key for incident in incidents if incident.cause == "hot" for key in incident.keys}
    hidden = {"hot": blamed, "crowded": blamed | hot}
    shown = [incident for incident in incidents if hidden.get(incident.cause, set()).isdisjoint(incident.keys)]
    order = [*CAUSES]
    return sorted(shown, key=lambda incident: (order.index(incident.cause), -incident.blocked, -(incident.age or 0.0)))


def _blocks(incident: Incident) -> bool:
    """Return whether callers wait because a queue is blocked. It has no holder then that could be blamed."""
    return bool(incident.blocked) and incident.severity == "error"


def by_key(snapshot: Snapshot) -> tuple[dict[str, Incident], Facts]:
    """Return the worst incident of each lock that is in its queue, and the facts of that look."""
    facts = Facts(snapshot, lazy.inspection.EnsembleReport(()))
    in_queues = [kind for kind in CAUSES.values() if not issubclass(kind, (history.OfHistory, servers.OfServers))]
    incidents = found(facts, in_queues)
    return {key: incident for incident in reversed(incidents) for key in incident.keys}, facts


def state_of(lock: LockInfo, incident: Incident | None) -> str:
    """Return the state of a lock: that of its card, unless its own state says more."""
    state = lock.state
    says_more = state in {"deadlocked", "unread", "unreadable", "operator", "reserved"}
    return state if incident is None or says_more else incident.state
