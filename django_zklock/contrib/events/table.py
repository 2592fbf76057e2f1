"""Write the events, and read what the report and the page of a lock need."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from django.db import router, transaction
from django.db.models import Count, Exists, F, Max, Min, OuterRef, QuerySet, Sum
from django.utils import timezone

from django_zklock.contrib.events.models import EXIT_TIMEOUT, LATE, MAX_TEXT, Event
from django_zklock.contrib.events.timeline import Timeline
from django_zklock.core.queue.escaping import shortened
from django_zklock.shared import Shared

MARGIN: Final = 60.0
"""Seconds by which the times of the grant and the end of a hold may differ, if a clock was set in between."""
DAY: Final = 86400.0

if TYPE_CHECKING:
    from django_zklock.inspection import LockInfo

Fields: TypeAlias = dict[str, Any]
"""Those of an `Event`, as other threads pass them: a model sends signals when it is made."""
_OF_THE_END: Final = ("outcome", "held", "reason")
"""The fields that the end of a hold changes."""


class Recent(NamedTuple):
    """How often something has happened to a lock or on a host, in how many sessions, to how many locks, and when."""

    name: str
    number: int
    sessions: int
    keys: int
    first: datetime
    last: datetime
    reason: str
    """One of them."""


def ago(seconds: float) -> datetime:
    """Return the time so many seconds ago."""
    return timezone.now() - timedelta(seconds=seconds)


def _time(at: float) -> datetime:
    return datetime.fromtimestamp(at, timezone.now().tzinfo)  # naive if the project's times are


def write(events: Iterable[Fields]) -> None:
    """Write events in one transaction. The end of a hold changes the row of its grant; equal tries share a row."""
    rows: list[Fields] = []
    ends: list[Fields] = []
    latest: dict[object, Fields] = {}
    for event in events:
        shared = _shared_by(event)
        row = latest.get(shared)
        if row is None or not _joined(row, event):
            latest[shared] = dict(event)  # the event itself is written again if the database fails
            (ends if _ended_by(event) else rows).append(latest[shared])
    database = router.db_for_write(Event)
    table = Event._default_manager.using(database)
    with transaction.atomic(database):
        rows += [end for end in ends if not _end_earlier(end, table)]
        table.bulk_create([Event(**{**row, "at": _time(row["at"])}) for row in rows])


def _shared_by(event: Fields) -> object:
    """Return what the events of one row have in common."""
    if event.get("token") is not None:
        return event["key"], event["token"]
    if event["outcome"] == Event.FAILED or (event["outcome"] == Event.TIMED_OUT and not event["waited"]):
        return event["key"], event["outcome"], int(event["at"])
    return id(event)


def _joined(row: Fields, event: Fields) -> bool:
    """Add an event to an earlier row; return False if it needs its own one, like the next hold of a lingering lock."""
    if event["outcome"] in {Event.TIMED_OUT, Event.FAILED}:
        row["count"] = row.get("count", 1) + 1
        return True
    if row["outcome"] not in _ended_by(event):
        return False
    row.update({name: event[name] for name in _OF_THE_END})
    return True


def _ended_by(event: Fields) -> set[str]:
    """Return the outcomes that an event may replace. The end of a hold whose release is refused was recorded before."""
    if event["outcome"] == Event.REFUSED:
        return {Event.HELD, Event.RELEASED}
    return {Event.HELD} if event["outcome"] in {Event.RELEASED, Event.LOST, Event.CUT_OFF} else set()


def _end_earlier(end: Fields, table: QuerySet[Event]) -> bool:
    """Return whether this is the end of a hold whose grant was written earlier; change that row."""
    times = _time(end["at"] - MARGIN), _time(end["at"] + MARGIN)
    grant = table.filter(key=end["key"], at__range=times, token=end["token"], outcome__in=_ended_by(end))
    return bool(grant.update(**{name: end[name] for name in _OF_THE_END}))


def delete_old(days: float, most: int) -> bool:
    """Delete the oldest rows if they are older than so many days; return whether there may be more than `most`."""
    table = Event._default_manager.using(router.db_for_write(Event))
    old = list(table.filter(at__lt=ago(days * DAY)).order_by("at").values_list("pk", flat=True)[:most])
    if old:
        table.filter(pk__in=old).delete()
    return len(old) == most


def last_grants(key: str, most: int) -> list[Event]:
    """Return the last grants of this lock, newest first."""
    return _read(
        Event._default_manager.filter(key=shortened(key, MAX_TEXT), token__isnull=False).order_by("-at")[:most]
    )


def timeline(lock: LockInfo, most: int) -> Timeline | None:
    """Return the last grants of a lock with their bars; None without any."""
    grants = last_grants(lock.key, most)
    return Timeline(grants, lock) if grants else None


def refused(keys: Iterable[str]) -> dict[str, float]:
    """Return by key how many seconds ago a caller was refused last, or a try failed, in the last day."""
    known = {shortened(key, MAX_TEXT): key for key in keys}
    outcomes = Event.TIMED_OUT, Event.TRIED
    rows = Event._default_manager.filter(key__in=known, outcome__in=outcomes, at__gte=ago(DAY))
    last = _read(rows.order_by().values_list("key").annotate(last=Max("at")))
    return {known[key]: (timezone.now() - at).total_seconds() for key, at in last}


def recent(outcome: str, by: str, seconds: float) -> list[Recent]:
    """Count the events with an outcome in the last so many seconds, by "key" or "host"; at most every 5 s."""
    return _recent.get((outcome, by, seconds), 0.0, 5.0)


@Shared
def _recent(asked: tuple[str, str, float], timeout: float) -> list[Recent]:
    """Count the events with an outcome in the last so many seconds, by "key" or "host"."""
    outcome, by, seconds = asked
    rows = Event._default_manager.filter(outcome=outcome, at__gte=ago(seconds))
    if outcome == Event.HELD:
        rows = rows.filter(Exists(_later(seconds)), kind="lock")
        away = _read(_written_late(seconds)) if _read(rows[:1]) else []
        rows = rows.filter(at__gt=away[0]) if away else rows
    sessions, keys = Count("session", distinct=True), Count("key", distinct=True)
    counted = (
        rows.order_by()
        .values_list(by)
        .annotate(
            number=Sum("count"), sessions=sessions, keys=keys, first=Min("at"), last=Max("at"), reason=Max("reason")
        )
    )
    return [Recent(*row) for row in _read(counted)]


def _later(seconds: float) -> QuerySet[Event]:
    """
    Return the later grants of an exclusive lock: with one of them, a hold without an end was not released.

    Its process was killed, paused or cut off. The later row must be old enough: while the database is away, the row of
    the next holder may be written before the end of this hold.
    """
    since = ago(seconds + MARGIN)  # the clocks of two hosts differ, too
    later = Event._default_manager.filter(key=OuterRef("key"), at__gte=since, token__gt=OuterRef("token"))
    late: QuerySet[Event] = later.filter(recorded__lt=ago(LATE))
    return late


def _written_late(seconds: float) -> QuerySet[Event, datetime]:
    """Return when a row was last written late, as the database was away: ends of earlier holds may have been lost."""
    late = F("at") + timedelta(seconds=EXIT_TIMEOUT)
    rows = Event._default_manager.filter(at__gte=ago(seconds), recorded__gt=late)
    return rows.order_by("-recorded").values_list("recorded", flat=True)[:1]


def _read(rows: QuerySet[Any, Any]) -> list[Any]:
    with transaction.atomic(rows.db):  # an error must not spoil the caller's transaction
        return list(rows)
