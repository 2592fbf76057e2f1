"""The cards of the first page: each incident with its holders as rows, equal ones folded; and what comes next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_zklock.report import formatting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django_zklock.inspection import Figures, ScannedContender, Snapshot
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


def cards_of(seen: Verdict, snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return a card for each incident, or for several equal ones: its texts, its rows, and who looks after it."""
    groups: dict[tuple[str, str, bool], list[Incident]] = {}
    for incident in seen.unnoted_first:
        group = incident.cause, _kind(incident) or incident.identity, incident.identity in seen.notes
        groups.setdefault(group, []).append(incident)
    waits_for = {wait.holds: wait.waits_for for cycle in snapshot.cycles for wait in cycle}
    waiting = {lock.key: lock.waiting for lock in snapshot.locks}
    cards = []
    for (_cause, kind, _noted), equal in groups.items():
        size = len(equal) if len(equal) >= EQUAL else 1
        for start in range(0, len(equal), size):
            folded = [incident.describe() for incident in equal[start + 1 : start + size]]
            card = _card(equal[start], waits_for, waiting)
            note = seen.notes.get(equal[start].identity)
            cards.append({**card, "note": note, "equal": folded, "kind": formatting.clean(kind)})
    return cards


def _kind(incident: Incident) -> str:
    """Return what equal incidents have in common: the work of their only holder; empty for others."""
    works = [holder.about.get("task") or holder.what.partition(" ")[0] for _key, holder in incident.holders]
    return works[0] if len(works) == 1 else ""


def _card(incident: Incident, waits_for: Mapping[str, str], waiting: Mapping[str, int]) -> dict[str, Any]:
    card = incident.describe()
    return {
        **card,
        "word": incident.word or (_("Blocked") if incident.severity == "error" else _("Slow")),
        "text": incident.sentences(),
        "rows": [(key, holder, waits_for.get(key, "")) for key, holder in incident.holders[:MAX_ROWS]],
        "hidden": max(0, len(incident.keys) - MAX_ROWS),
        "behind": [{**row, "waiting": waiting.get(row["key"], 0)} for row in card["behind"][:MAX_BEHIND]],
        "hidden_behind": max(0, len(card["behind"]) - MAX_BEHIND),
    }


def strip_text(count: int) -> str:
    """Return how many causes there are."""
    return ngettext("%(count)d thing needs attention", "%(count)d things need attention", count) % {"count": count}


def waits_text(figures: Figures) -> str:
    """Return how many wait, and how long at most; empty if nobody does."""
    if not figures.waiting:
        return ""
    count = figures.waiting
    text = ngettext("%(count)d caller waits, for %(time)s", "%(count)d callers wait, the longest %(time)s", count)
    return text % {"count": count, "time": formatting.duration(figures.longest_wait)}


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
