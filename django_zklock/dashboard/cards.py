"""The first page: a sentence about the worst incident, and each incident with its holders and callers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from django.utils import timezone
from django.utils.functional import cached_property
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_zklock.dashboard.callers import callers_of
from django_zklock.report import formatting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_zklock.inspection import LockInfo, ScannedContender, Snapshot
    from django_zklock.report.incident import Incident
    from django_zklock.report.verdict import Verdict

MAX_CARDS: Final = 20
MAX_ROWS: Final = 5
"""Holders that a card shows."""
MAX_BEHIND: Final = 10
"""Locks behind them that it shows."""
MAX_NEXT: Final = 5
"""Holds of which the page says when they end."""
EQUAL: Final = 3
"""Incidents of one cause and one work, from which on the others are folded."""
MAX_NAMED: Final = 2
"""Locks that the strip names."""


class Cards:
    """The cards of one look."""

    def __init__(self, seen: Verdict, snapshot: Snapshot) -> None:
        self.incidents = seen.unnoted_first
        self._seen = seen
        self._locks = {lock.key: lock for lock in snapshot.locks}
        self._waits_for = {wait.holds: wait.waits_for for cycle in snapshot.cycles for wait in cycle}

    def shown(self) -> list[dict[str, Any]]:
        """Return the cards: one for each incident, or for several equal ones."""
        return [
            {**self._card(first), "kind": _kind(first), "equal": [incident.describe() for incident in others]}
            for first, *others in self._groups[:MAX_CARDS]
        ]

    def hidden(self) -> int:
        """Return how many incidents have no card."""
        return sum(map(len, self._groups[MAX_CARDS:]))

    @cached_property
    def _groups(self) -> list[list[Incident]]:
        """The incidents of each card."""
        groups: dict[tuple[str, str, bool], list[Incident]] = {}
        for incident in self.incidents:
            group = incident.cause, _kind(incident) or incident.identity, incident.identity in self._seen.notes
            groups.setdefault(group, []).append(incident)
        cards: list[list[Incident]] = []
        for equal in groups.values():
            cards += [equal] if len(equal) >= EQUAL else [[incident] for incident in equal]
        return cards

    @property
    def severity(self) -> str:
        """Return the worst severity; empty without an incident."""
        severities = {incident.severity for incident in self.incidents}
        return "error" if "error" in severities else "".join(severities)

    def strip(self) -> Strip | None:
        """Return the sentence about the first card; None without one."""
        if not self.incidents:
            return None
        first = self.incidents[0]
        waits = [lock.longest_wait or 0.0 for lock in self._stopped(first)]
        everybody = sum(lock.waiting for lock in self._locks.values())
        return Strip(
            headline=_headline(first, len(self.incidents)),
            age=first.age,
            behind=_behind_text(first, everybody, max(waits, default=0.0)),
            acted=self._acted(first),
        )

    def _stopped(self, incident: Incident) -> Sequence[LockInfo]:
        """Return the locks of an incident and those behind them, the longest queues first."""
        keys = dict.fromkeys([*incident.keys, *(wait.holds for _depth, wait in incident.behind)])
        locks = [self._locks[key] for key in keys if key in self._locks]
        return sorted(locks, key=lambda lock: -lock.waiting)

    def _card(self, incident: Incident) -> dict[str, Any]:
        card = incident.describe()
        behind = card["behind"][:MAX_BEHIND]
        return {
            **card,
            "word": incident.word or (_("Blocked") if incident.severity == "error" else _("Slow")),
            "text": incident.sentences(),
            "note": self._seen.notes.get(incident.identity),
            "rows": [(key, holder, self._waits_for.get(key, "")) for key, holder in incident.holders[:MAX_ROWS]],
            "hidden": max(0, len(incident.keys) - MAX_ROWS),
            "behind": [{**row, "waiting": self._waiting(row["key"])} for row in behind],
            "hidden_behind": len(card["behind"]) - len(behind),
            "callers": callers_of(incident, self._stopped(incident)) if incident.blocked else None,
        }

    def _waiting(self, key: str) -> int:
        return self._locks[key].waiting if key in self._locks else 0

    def _acted(self, incident: Incident) -> str:
        """Return who has acted: by a note, a release request, or a break."""
        note = self._seen.notes.get(incident.identity)
        texts = [_("%(name)s looks after it") % {"name": note["by"]}] if note else []
        requests = [holder.release_request for _key, holder in incident.holders if holder.release_request is not None]
        texts += [_("%(name)s has requested the release") % {"name": request.by} for request in requests]
        return formatting.clean("; ".join(dict.fromkeys(texts))) or _("nobody has acted yet")


@dataclass(frozen=True, slots=True)
class Strip:
    """The sentence above the cards: it names the locks that are blocked, the callers, and who has acted."""

    headline: str
    """It says the same as long as the incidents are the same: screen readers hear it when it changes."""
    age: float | None
    behind: str
    acted: str

    @property
    def began(self) -> datetime | None:
        """Return when it began, or None if that is not known."""
        return None if self.age is None else timezone.now() - timedelta(seconds=self.age)


def _headline(first: Incident, count: int) -> str:
    """Return how many causes there are, and what the first one blocks."""
    things = ngettext("%(count)d thing needs attention", "%(count)d things need attention", count) % {"count": count}
    if first.cause == "quorum":
        return f"{things}: {_('no lock is granted')}"
    if not (first.blocked and first.keys) or first.cause == "crowded":
        return things
    blocked = ngettext("%(keys)s is blocked", "%(keys)s are blocked", len(first.keys))
    return f"{things}: {blocked % {'keys': formatting.keys_text(first.keys, MAX_NAMED)}}"


def _behind_text(first: Incident, everybody: int, longest: float) -> str:
    """Return how many callers wait because of this incident."""
    if not first.blocked:
        return _("no caller waits because of it") if first.severity != "error" else ""
    text = ngettext(
        "%(count)d caller is behind it, for %(time)s",
        "%(count)d callers are behind it, the first for %(time)s",
        first.blocked,
    )
    if everybody > first.blocked:
        text = _("%(count)d of %(all)d waiting callers are behind it, the first for %(time)s")
    return text % {"count": first.blocked, "all": everybody, "time": formatting.duration(longest)}


def _kind(incident: Incident) -> str:
    """Return what equal incidents have in common: the work of their only holder; empty for others."""
    works = [formatting.work_kind(holder) for _key, holder in incident.holders]
    return works[0] if len(works) == 1 else ""


def read_text(locks: int, servers: int) -> str:
    """Return what was read."""
    text = ngettext("%(count)d lock", "%(count)d locks", locks) % {"count": locks}
    more = ngettext("%(count)d server", "%(count)d servers", servers) % {"count": servers}
    return _("%(locks)s and %(servers)s read") % {"locks": text, "servers": more}


def ends_next(snapshot: Snapshot) -> list[tuple[str, ScannedContender, float]]:
    """Return the operator holds that end next: the lock, the hold, and in how many seconds. No reservations."""
    ends = [
        (lock.key, holder, holder.operator.seconds - holder.duration)
        for lock in snapshot.locks
        for holder in lock.holders
        if holder.operator is not None and not holder.operator.task_id
    ]
    return sorted(ends, key=lambda end: end[2])[:MAX_NEXT]
