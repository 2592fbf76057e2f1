"""The first page: a card for each incident, with its holders and the work of those who wait."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from django_zklock.report.formatting import STATE_LABELS, host_and_pid, work_kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django_zklock.inspection import LockInfo
    from django_zklock.report.incident import Incident

MAX_CARDS: Final = 20
MAX_ROWS: Final = 5
"""Holders of a card, works of its callers, and locks behind it."""


def card(incident: Incident, locks: Mapping[str, LockInfo]) -> dict[str, Any]:
    """Return the values of a card. A look reads the first waiters of each queue; the others have no work here."""
    described = incident.describe()
    keys = dict.fromkeys([*incident.keys, *(wait.holds for _depth, wait in incident.behind)])
    works = Counter(work_kind(waiter) for key in keys if key in locks for waiter in locks[key].waiters)
    callers = works.most_common(MAX_ROWS) if incident.blocked else []
    return {
        **described,
        "word": incident.word or STATE_LABELS[incident.state],
        "text": incident.sentences(),
        "process": host_and_pid(incident.host, incident.pid),
        "rows": incident.holders[:MAX_ROWS],
        "hidden": max(0, len(incident.keys) - MAX_ROWS),
        "behind": described["behind"][:MAX_ROWS],
        "hidden_behind": max(0, len(incident.behind) - MAX_ROWS),
        "callers": callers,
        "other_callers": max(0, incident.blocked - sum(count for _work, count in callers)),
    }
