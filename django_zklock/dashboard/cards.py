"""The first page: a card for each incident, with its holders and the work of those who wait."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.report import lazy
from django_zklock.report.formatting import STATE_LABELS, host_and_pid, work_kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from django_zklock.inspection import LockInfo, Snapshot
    from django_zklock.report.incident import Incident

MAX_CARDS: Final = 20
MAX_ROWS: Final = 5
"""Holders of a card, works of its callers, and locks behind it."""
MAX_QUEUES: Final = 50
"""Queues of all cards whose waiters are read. Of the others, the first one is known."""


def cards(incidents: Sequence[Incident], snapshot: Snapshot, reply_timeout: float) -> list[dict[str, Any]]:
    """Return the values of the first cards. A snapshot has one waiter of each lock; those of a card have fifty."""
    shown = incidents[:MAX_CARDS]
    known = {lock.key: lock for lock in snapshot.locks}
    keys = list(dict.fromkeys(key for incident in shown for key in _queues(incident)))
    if keys and snapshot.answers:
        with suppress(ZooKeeperUnavailable):
            known |= lazy.inspection.look_at_each(keys[:MAX_QUEUES], reply_timeout)
    return [_card(incident, known) for incident in shown]


def _queues(incident: Incident) -> list[str]:
    """Return the keys of the locks that its callers wait for."""
    return [*incident.keys, *(wait.holds for _depth, wait in incident.behind)] if incident.blocked else []


def _card(incident: Incident, locks: Mapping[str, LockInfo]) -> dict[str, Any]:
    described = incident.describe()
    queues = [locks[key] for key in dict.fromkeys(_queues(incident)) if key in locks]
    works = Counter(work_kind(waiter) for lock in queues for waiter in lock.waiters)
    callers = works.most_common(MAX_ROWS)
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
