"""The incidents of the last day: each process that looks writes what it sees, and pages show what is over."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Final

from django.db import router, transaction
from django.utils import timezone

from django_zklock.contrib.events import table
from django_zklock.contrib.events.models import MAX_TEXT, OperatorAction, PastIncident
from django_zklock.core.queue.escaping import shortened
from django_zklock.report import formatting
from django_zklock.report.incident import Incident
from django_zklock.report.verdict import CAUSES

MOST: Final = 20
"""Incidents of one look that are written: the worst. A page shows so many, too."""
WITHIN: Final = 24 * 3600.0
"""Seconds in which a page shows them."""
WRITE_EVERY: Final = timedelta(seconds=10)
"""How exact the end of an incident is."""
RETURNS_AFTER: Final = timedelta(minutes=5)
"""An incident that was not seen for so long, and is seen again, has begun again."""
ACTED_AFTER: Final = timedelta(minutes=1)
"""How long after its end an action may be written."""
MAX_KEYS: Final = 10
ACTS: Final = {"broken", "release requested", "hold ended", "limit set"}
"""Actions that may end an incident."""
_FIELD: Final = re.compile(r"%\((\w+)\)")


def record(present: Sequence[Incident]) -> None:
    """Write which incidents are seen now. A calm look writes nothing, and reads nothing."""
    seen = {incident.identity: incident for incident in present[:MOST]}
    if not seen:
        return
    database, now = router.db_for_write(PastIncident), timezone.now()
    rows = PastIncident._default_manager.using(database)
    with transaction.atomic(database):
        known = {row.identity: row for row in rows.filter(identity__in=seen)}
        new = [_row(incident, now) for identity, incident in seen.items() if identity not in known]
        if new:
            rows.bulk_create(new, ignore_conflicts=True)  # another process may have written them
        for identity, row in known.items():
            if now - row.seen_at >= WRITE_EVERY or seen[identity].blocked > row.peak:
                _update(row, seen[identity], now)


def _row(incident: Incident, now: datetime) -> PastIncident:
    return PastIncident(
        identity=incident.identity,
        cause=incident.cause,
        keys=json.dumps([shortened(key, MAX_TEXT) for key in incident.keys[:MAX_KEYS]]),
        texts=_texts(incident),
        at=now - timedelta(seconds=incident.age or 0.0),
        seen_at=now,
        peak=incident.blocked,
    )


def _update(row: PastIncident, incident: Incident, now: datetime) -> None:
    if now - row.seen_at > RETURNS_AFTER and incident.age is None:
        row.at, row.peak = now, 0
        row.times += 1
    row.seen_at, row.peak = now, max(row.peak, incident.blocked)
    row.texts = _texts(incident)
    row.save(update_fields=["at", "seen_at", "peak", "times", "texts"])


def _texts(incident: Incident) -> str:
    """Return the values that its title names, so that a page can write it in another language."""
    values = incident.texts()
    return json.dumps({name: values[name] for name in _FIELD.findall(str(incident.title))})


def over(present: Sequence[Incident]) -> list[tuple[PastIncident, str, str]]:
    """Return the incidents of the last day that are not present any more, the newest first; their titles; who acted."""
    identities = [incident.identity for incident in present]
    past = table.last_incidents(WITHIN, MOST, identities)
    actions = table.actions_since(min(row.at for row in past)) if past else []
    return [(row, _title(row), _acted(row, actions)) for row in past]


def _acted(row: PastIncident, actions: Collection[OperatorAction]) -> str:
    """Return the operators who acted on the locks of an incident meanwhile."""
    keys, until = json.loads(row.keys), row.seen_at + ACTED_AFTER
    acts = [action for action in actions if action.key in keys and action.what in ACTS]
    acted = [action.by for action in acts if row.at <= action.at <= until]
    return ", ".join(dict.fromkeys(map(formatting.clean, acted)))


def _title(row: PastIncident) -> str:
    """Return its title in the language of the page. Another version may know other causes, and other values."""
    lasted = formatting.duration((row.seen_at - row.at).total_seconds())
    try:
        return str(CAUSES[row.cause].title) % {**json.loads(row.texts), "time": lasted}
    except (KeyError, TypeError, ValueError):
        return formatting.clean(f"{row.cause}: {', '.join(json.loads(row.keys))}")
