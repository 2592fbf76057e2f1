"""The causes that are in the servers. `inspection.ensemble` finds most of them, and has their words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_zklock.report import formatting
from django_zklock.report.incident import MANY, Incident

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from django_zklock.inspection import EnsembleReport, ServerReport
    from django_zklock.report.facts import Facts

DENIED_WITHIN: Final = 300.0
"""Seconds in which callers without an answer count."""


def summary(report: EnsembleReport) -> str:
    """Return in a sentence or two how many servers run, and how many more may fail."""
    voters, spare = report.voters, report.spare
    running, unknown = sum(server.serves for server in voters), sum(server.is_unknown for server in voters)
    values = {"running": running, "count": len(voters), "unknown": unknown, "spare": spare}
    if unknown:
        text = gettext("%(unknown)d of %(count)d servers cannot be asked, so it is not known how many may fail.")
    elif spare is None or spare < 0:
        text = gettext("%(running)d of %(count)d servers are in a quorum. That is no majority, so no lock is granted.")
    elif len(voters) == 1:
        text = gettext("The only server runs. If it stops, all locks stop.")
    elif not spare:
        text = gettext("%(running)d of %(count)d servers run. One more failure stops all locks.")
    else:
        text = ngettext(
            "%(running)d of %(count)d servers run. Locks go on if %(spare)d more fails.",
            "%(running)d of %(count)d servers run. Locks go on if %(spare)d more fail.",
            spare,
        )
    return text % values


def down(report: EnsembleReport) -> list[ServerReport]:
    """Return the servers that do not run, or are in no quorum, while the others go on."""
    return [server for server in report.servers if report.goes_on and server.problem and not server.is_unknown]


def unasked(report: EnsembleReport) -> list[ServerReport]:
    """Return the servers that cannot be asked. While no quorum is known, that is each with a problem."""
    return [server for server in report.servers if server.problem and server not in down(report)]


def problem_text(server: ServerReport) -> str:
    """Return why a server does not serve, or cannot be asked. The system's words after a colon stay as they are."""
    words, colon, reason = server.problem.partition(": ")
    return f"{server.address} {gettext(words)}{colon}{reason}."


class OfServers(Incident):
    """A cause that is in the servers."""

    act = "health"
    command = "doctor"


class Quorum(OfServers):
    """ZooKeeper does not answer, so it cannot grant locks. The card names the servers that are down."""

    cause = "quorum"
    severity = "error"
    word = _("Blocked")
    title = _("ZooKeeper does not answer, or has no quorum")
    remedy = _("Start the servers that are down, or repair the network. Locks then go on by themselves.")
    ends = "A quorum answers."

    @classmethod
    def find(cls, facts: Facts) -> Iterator[Quorum]:
        """An answered request of our own counts more than what the servers say of themselves."""
        report, snapshot = facts.servers, facts.snapshot
        if not snapshot.problem or (snapshot.answers and not report.is_lost):
            return
        kind = Refused if snapshot.connection.refused else Quorum
        detail = summary(report) if report.is_lost and kind is Quorum else snapshot.problem
        silent = sorted(server.address for server in report.servers if server.is_down)
        named = gettext("No answer from %(servers)s.") % {"servers": ", ".join(silent)} if silent else ""
        yield kind(detail=f"{detail} {named}".rstrip(), blocked=sum(lock.waiting for lock in snapshot.locks))


class Refused(Quorum):
    """A server refuses this process, or its settings are wrong."""

    title = _("This process has no access to ZooKeeper")
    remedy = _("Correct what is named here. Locks then go on by themselves.")


class Split(OfServers):
    """The [servers in `URL`](look-after-zookeeper.md#the-servers-are-not-one-ensemble) do not belong together."""

    cause = "split"
    severity = "error"
    word = _("Unsafe")
    title = _("The servers are not one ensemble, so two processes may hold one lock")
    sentence = _(
        "Two ensembles, or one server is cut off or hangs: %(detail)s. "
        "Two of them would give the same lock to two holders."
    )
    remedy = _("Stop the work that must not run twice. Then correct URL, or the configuration of the servers.")
    ends = "The servers are one ensemble."

    @classmethod
    def find(cls, facts: Facts) -> Iterator[Self]:
        if facts.servers.is_split:
            leading = [server for server in facts.servers.servers if server.serves and server.leads]
            texts = [f"{server.address} ({server.role}, zxid {server.zxid:#x})" for server in leading]
            yield cls(detail=", ".join(texts))


class Down(OfServers):
    """A server does not answer, or is in no quorum, while the others go on. The card says how many more may fail."""

    cause = "down"
    word = _("Degraded")
    title = _("ZooKeeper: %(summary)s")
    remedy = "%(remedy)s"
    ends = "All servers run."

    @classmethod
    def find(cls, facts: Facts) -> Iterator[Self]:
        """A server that runs must not be started: its disk may be full, or the others may not reach it."""
        report = facts.servers
        servers = down(report)
        if not servers or not facts.snapshot.answers:  # else the lost quorum says it all
            return
        remedy = gettext("Start this server, or repair its network.")
        if all(server.runs for server in servers):
            remedy = gettext("Look at the log of this server, at its disk and its network.")
        yield cls(
            detail=" ".join(map(problem_text, servers)),
            values={"summary": summary(report).rstrip("."), "remedy": remedy},
        )


class Denied(OfServers):
    """
    ZooKeeper refuses a write of the look, by an ACL for example. Or it has given no lock to three callers in the last
    five minutes, whatever the reason.
    """

    cause = "denied"
    severity = "error"
    word = _("Blocked")
    title = _("ZooKeeper gives callers no lock")
    remedy = _("Compare `AUTH` in their settings with the ACL of the path. `doctor` on their host tells both.")
    ends = "The look may write, and five minutes have passed without a third caller."

    @classmethod
    def find(cls, facts: Facts) -> Iterator[Self]:
        """A host that gets no connection is one of them. If this one has none, that says it all."""
        if not facts.snapshot.answers:
            return
        hosts = facts.past("recent", "failed", "host", DENIED_WITHIN)
        number = sum(host.number for host in hosts)
        texts = [facts.servers.refused] if facts.servers.refused else []
        if number >= MANY:
            text = gettext("%(number)d callers in %(minutes)d minutes, on %(hosts)s: %(reason)s")
            names = formatting.keys_text([host.name for host in hosts], MANY)
            values = {"number": number, "minutes": DENIED_WITHIN / 60, "hosts": names, "reason": hosts[0].reason}
            texts.append(text % values)
        if texts:
            yield cls(detail=" ".join(texts))


class Slow(OfServers):
    """A write of the look takes half a second, twice in turn."""

    cause = "slow"
    word = _("Slow")
    title = _("ZooKeeper is slow: a write takes %(time)s")
    remedy = _("Look at the disks of the servers, and at the network between them. Leases may end.")
    ends = "A write is fast again."

    @classmethod
    def find(cls, facts: Facts) -> Iterator[Self]:
        report = facts.servers
        if report.is_slow and facts.snapshot.answers and not facts.snapshot.problem:
            time = formatting.duration(report.write_seconds)
            yield cls(values={"time": time if report.has_quorum else gettext("more than %(time)s") % {"time": time}})
