"""Write the events, and read what the report and the page of a lock need."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, TypeAlias

from django.db import router, transaction
from django.db.models import Count, Exists, Max, Min, OuterRef, QuerySet, Sum
from django.utils import timezone

from django_zklock.contrib.events.models import MAX_TEXT, Event
from django_zklock.core.queue.escaping import shortened
from django_zklock.shared import Shared

LATE: Final = 8.0
"""Seconds after which the end of a hold is surely in the table."""


Fields: TypeAlias = dict[str, Any]
"""Those of an `Event`, as other threads pass them: a model sends signals when it is made."""


class Recent(NamedTuple):
    """How often something has happened to a lock or on a host, in how many sessions, and when."""

    name: str
    count: int
    sessions: int
    first: datetime
    last: datetime


def ago(seconds: float) -> datetime:
    """Return the time so many seconds ago."""
    return timezone.now() - timedelta(seconds=seconds)


def _time(at: float) -> datetime:
    return datetime.fromtimestamp(at, timezone.now().tzinfo)  # naive if the project's times are


def write(events: Iterable[Fields]) -> None:
    """Write events in one transaction. The end of a hold takes the place of its grant; equal refused tries are one row."""
    rows: dict[object, Event] = {}
    for fields in events:
        event = Event(**{**fields, "at": _time(fields["at"])})
        identity = (
            event.key,
            event.token or event.outcome,
            event.token or (event.work, event.waited or int(event.at.timestamp())),
        )
        before = rows.get(identity)
        if before is None:
            rows[identity] = event
        elif event.outcome == Event.TIMED_OUT:
            before.count += 1
        elif before.outcome == Event.HELD and event.outcome != Event.HELD:
            before.outcome, before.held, before.reason = event.outcome, event.held, event.reason
        else:  # holds of a lock that lingers share a token
            rows[id(before)], rows[identity] = before, event
    database = router.db_for_write(Event)
    table = Event._default_manager.using(database)
    with transaction.atomic(database):
        table.bulk_create([row for row in rows.values() if not _ends_earlier(row, table)])


def _ends_earlier(row: Event, table: Any) -> bool:
    """Return whether this is the end of a hold whose grant was written earlier; update that."""
    open_outcomes = {Event.HELD, *({Event.RELEASED} if row.outcome == Event.REFUSED else ())} - {row.outcome}
    if row.token is None or row.outcome in (Event.HELD, Event.ACTION):
        return False
    grant = table.filter(key=row.key, token=row.token, outcome__in=open_outcomes)
    return bool(grant.update(outcome=row.outcome, held=row.held, reason=row.reason))


def delete_old(days: float, most: int) -> bool:
    """Delete the oldest rows if they are older than so many days; return whether there may be more than `most`."""
    table = Event._default_manager.using(router.db_for_write(Event))
    # Rows are inserted about in the order of their times, so no index on the time is needed.
    oldest = list(table.order_by("pk").values_list("pk", "at")[:most])
    old = [pk for pk, when in oldest if when < ago(days * 86400.0)]
    if old:
        table.filter(pk__in=old).delete()
    return len(old) == most


def last_grants(key: str, most: int) -> list[Event]:
    """Return the last grants of this lock, newest first."""
    return _read(
        Event._default_manager.filter(key=shortened(key, MAX_TEXT), token__isnull=False).order_by("-at")[:most]
    )


def recent(outcome: str, by: str, seconds: float) -> list[Recent]:
    """Count the events with an outcome in the last so many seconds, by "key" or "host"; at most every 5 s."""
    return _recent.get((outcome, by, seconds), 0.0, 5.0)


@Shared
def _recent(asked: tuple[str, str, float], timeout: float) -> list[Recent]:
    """
    Count the events with an outcome in the last so many seconds, by "key" or "host".

    A hold without an end counts if another one got the lock since: then its process was killed, paused or cut off.
    """
    outcome, by, seconds = asked
    rows = Event._default_manager.filter(outcome=outcome, at__gte=ago(seconds))
    if outcome == Event.HELD:
        later = Event._default_manager.filter(key=OuterRef("key"), token__gt=OuterRef("token"), at__lt=ago(LATE))
        rows = rows.filter(Exists(later), kind="lock")
    counted = (
        rows.order_by().values_list(by).annotate(Sum("count"), Count("session", distinct=True), Min("at"), Max("at"))
    )
    return [Recent(*row) for row in _read(counted)]


def _read(rows: QuerySet[Any, Any]) -> list[Any]:
    with transaction.atomic(rows.db):  # an error must not spoil the caller's transaction
        return list(rows)
