"""The causes that are in the past of the locks, if an app records it: so many events of one kind."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_zklock.report import formatting
from django_zklock.report.facts import SLACK
from django_zklock.report.incident import MANY, Incident

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from django_zklock.inspection import LockInfo
    from django_zklock.report.facts import Facts


class OfHistory(Incident):
    """Something that has happened several times of late. The queues do not show it any more."""

    word = _("Check")
    ends = "Half an hour without another one."
    act = "history"
    command = "show"

    outcome: ClassVar[str] = ""
    by: ClassVar[str] = "key"
    least: ClassVar[int] = MANY
    within: ClassVar[float] = 1800.0

    @classmethod
    def find(cls, facts: Facts) -> Iterator[Self]:
        for recent in facts.past("recent", cls.outcome, cls.by, cls.within):
            number = cls.number_of(recent)
            if number >= cls.least:
                seconds, age = ((timezone.now() - time).total_seconds() for time in (recent.first, recent.last))
                yield cls(
                    host=recent.name if cls.by == "host" else "",
                    keys=(recent.name,) if cls.by == "key" else (),
                    values={"number": number, "minutes": cls.within / 60, "seconds": seconds, "advice": _TOO_SHORT},
                    age=max(0.0, age),
                )

    @classmethod
    def number_of(cls, recent: Any) -> Any:
        """Return how often it has happened: a process that loses all its locks counts once."""
        return recent.sessions if cls.by == "host" else recent.number


class Ended(OfHistory):
    """In the last 30 minutes, three processes of a host ended while they held exclusive locks, three or more."""

    cause, outcome, by, command = "ended", "held", "host", "list"
    title = _("%(number)d processes on %(process)s ended or were cut off while they held locks")
    remedy = _("Look at the host, and at its log for the reason. Their work may be incomplete, or still run: check it.")

    @classmethod
    def number_of(cls, recent: Any) -> Any:
        """Return the smaller one of processes and locks: if one lock kills them all, that lock is the cause."""
        return min(recent.sessions, recent.keys)


class Dying(OfHistory):
    """In the last 30 minutes, three holders of one exclusive lock never released it: it flaps."""

    cause, outcome = "dying", "held"
    title = _("%(keys)s: its holder died %(number)d times in %(minutes)d minutes")
    remedy = _(
        "Look at the log and the memory of the processes, and at what the work does. Check the work of this lock."
    )


class Flapping(OfHistory):
    """In the last 30 minutes, the network took the locks from three sessions of a host."""

    cause, outcome, by, command = "flapping", "cut off", "host", "list"
    title = _("%(process)s has lost its locks %(number)d times in %(minutes)d minutes")
    remedy = _("Its connections break, or its processes pause. Look at its network, its load and its memory.")


class Hot(OfHistory):
    """In the last minute, 20 callers of a lock were refused. The card names the holder, if it is always the same."""

    cause, outcome, least, within = "hot", "timed out", 20, 60.0
    ends = "A minute with fewer."
    title = _("%(number)d callers were refused in the last minute: %(keys)s")
    remedy = "%(advice)s"

    @classmethod
    def find(cls, facts: Facts) -> Iterator[Self]:
        for incident in super().find(facts):
            lock = facts.locks.get(incident.keys[0])
            if lock is None or not _has_held(lock, incident.values["seconds"]):
                yield incident
                continue
            texts, ends = formatting.reasons(lock), lock.holders[0].ends
            if ends is not None:
                texts.append(f"{gettext('Ends at the latest')} {formatting.time_text(ends)}.")
            named = replace(incident, detail=" ".join(texts))
            if lock.lasts or lock.operator:
                holders = tuple((lock.key, holder) for holder in lock.holders)
                named = replace(named, holders=holders, values={**incident.values, "advice": _LASTING})
            yield named


_TOO_SHORT: Final = _("Hold it for a shorter time, wait longer (`timeout`), set `on_conflict`, or use permits.")
_LASTING: Final = _("No caller gets the lock before that ends. If it takes too long, end it, or break the lock.")


def _has_held(lock: LockInfo, seconds: float) -> bool:
    """Return whether the holders that block a lock have had it for so long. A semaphore is blocked by all of them."""
    lasted = [holder.duration + SLACK >= seconds for holder in lock.holders]
    return bool(lasted) and (all(lasted) if lock.limit is not None else any(lasted))


class Stale(OfHistory):
    """In the last 30 minutes, three fenced writes of holders were refused, although they held the lock."""

    cause, outcome, severity = "stale", "stale", "error"
    title = _("%(number)d fenced writes were refused in %(minutes)d minutes: %(keys)s")
    remedy = _('Was ZooKeeper restored? See "After ZooKeeper has lost its data" in the docs.')


class Order(OfHistory):
    """In the last 30 minutes, a deadlock ended by itself."""

    cause, outcome, least = "order", "deadlock", 1
    title = _("%(number)d deadlocks ended by themselves in %(minutes)d minutes: %(keys)s")
    remedy = _("Lock them in the same order everywhere, or all at once with `zk_locks`. The history has the story.")


class Refused(OfHistory):
    """In the last 30 minutes, ZooKeeper refused a release."""

    cause, outcome, severity, least = "refused", "refused", "error", 1
    title = _("Release refused: %(keys)s")
    remedy = _("Give its account the right that is missing, and it releases by itself. Or end its process.")
