"""Read and write the tables."""

from __future__ import annotations

import os
import socket
import statistics
import string
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote

from django.db import Error, router, transaction
from django.db.models import Max, Min, Q, QuerySet, Sum
from django.utils import timezone

from django_zklock.contrib.events.models import MAX_TEXT, Attempt, OperatorAction, PastIncident
from django_zklock.core.locks import order
from django_zklock.core.queue.escaping import printable, shortened
from django_zklock.core.zk import troubles
from django_zklock.shared import Shared

if TYPE_CHECKING:
    from django_zklock.exceptions import DeadlockLink

USUAL_OF: Final = 50
"""How many holds of a template count for its usual hold: the median of the last ones."""
LEAST: Final = 5
"""A template with fewer holds than this has no usual hold."""

UNFINISHED: Final = 2000
"""Most grants without an end that are read."""
DEADLOCKED: Final = 2000
"""Most waits of deadlocks that are read."""

ACTIONS: Final = "actions"
"""The value of `what` in `history` that selects the actions of operators. The others are outcomes."""

SEARCHED: Final = timedelta(days=1)
"""How far back a part of a text is searched by default. No index helps such a search."""
MARGIN: Final = 60.0
"""Seconds by which the time of a grant may differ between its two events, if a clock was set in between."""


class Attempted(NamedTuple):
    """A lock was granted or not, or the fenced write of its holder was refused. A try that did not wait has 0 s."""

    outcome: str
    at: float
    """In seconds since 1970, as in all events."""
    key: str
    template: str
    kind: str
    token: int | None = None
    work: str = ""
    waited: float | None = None
    session: int | None = None


class Ended(NamedTuple):
    """A hold has ended. `granted` is complete, in case the event of the grant was dropped."""

    granted: Attempted
    outcome: str
    held: float
    reason: str


class Deadlocked(NamedTuple):
    """The wait for the lock `key` was ended after `waited` seconds, because it was part of a deadlock."""

    at: float
    circle: tuple[DeadlockLink, ...]
    key: str
    waited: float


class Acted(NamedTuple):
    """An operator did something."""

    fields: Mapping[str, Any]
    """Those of an `operations.audit.Action`."""


Event: TypeAlias = Attempted | Ended | Deadlocked | Acted
_Row = TypeVar("_Row")


def ago(seconds: float) -> datetime:
    """Return the time so many seconds ago."""
    return timezone.now() - timedelta(seconds=seconds)


def write(events: Collection[Event]) -> None:
    """Write events to the tables in one transaction. The end of a hold updates the row of its grant, if it has one."""
    rows: list[Attempt] = []
    actions: list[OperatorAction] = []
    held: dict[tuple[str, int | None], Attempt] = {}
    database = router.db_for_write(Attempt)
    table = Attempt._default_manager.using(database)
    with transaction.atomic(database):
        for event in events:
            if isinstance(event, Acted):
                actions.append(_action(event))
            elif isinstance(event, Ended):
                grant = event.granted
                end = {"outcome": event.outcome, "held": event.held, "reason": printable(event.reason, MAX_TEXT)}
                row = held.get((grant.key, grant.token))
                if row is None and not _open_row(table, event).update(**end):
                    row = held[grant.key, grant.token] = _row(grant)
                    rows.append(row)
                if row is not None:
                    for name, value in end.items():
                        setattr(row, name, value)
            elif isinstance(event, Deadlocked):
                rows += _waits(event)
            elif event.outcome != Attempt.TIMED_OUT:
                rows.append(_row(event))
                held[event.key, event.token] = rows[-1]  # a refused write has no token, so no end finds its row
        table.bulk_create([*rows, *_timed_out(events)])
        OperatorAction._default_manager.using(database).bulk_create(actions)


def _timed_out(events: Iterable[Event]) -> list[Attempt]:
    """Return the rows of waits that timed out. Tries that did not wait are many: those of a second share one."""
    rows: dict[object, Attempt] = {}
    for event in events:
        if isinstance(event, Attempted) and event.outcome == Attempt.TIMED_OUT:
            same = event if event.waited else (event.key, event.template, int(event.at))
            if same in rows:
                rows[same].count += 1
            else:
                rows[same] = _row(event)
    return list(rows.values())


def _open_row(table: QuerySet[Attempt], end: Ended) -> QuerySet[Attempt]:
    """
    Return the row of a grant, if it was written earlier. Holds of a lock that lingers share a token.

    The end of a hold whose release is refused was recorded before.
    """
    grant = end.granted
    outcomes = [Attempt.HELD, *([Attempt.RELEASED] if end.outcome == Attempt.REFUSED else [])]
    times = _time(grant.at - MARGIN), _time(grant.at + MARGIN)
    key = shortened(grant.key, MAX_TEXT)
    rows: QuerySet[Attempt] = table.filter(key=key, at__range=times, token=grant.token, outcome__in=outcomes)
    return rows


def accepts_rows() -> bool:
    """Return whether the database accepts a plain row, which is rolled back. If so, a refused row was at fault."""
    database = router.db_for_write(Attempt)
    try:
        with transaction.atomic(database):
            Attempt._default_manager.using(database).create(pid=os.getpid(), at=timezone.now())
            transaction.set_rollback(True, database)
    except Error:
        return False
    return True


def _waits(event: Deadlocked) -> Iterator[Attempt]:
    """Yield a row for each wait of a deadlock, in the order of the circle."""
    for link in event.circle:
        holder, waited = link.holder, event.waited if link.waits_for == event.key else None
        lock = link.waits_for, link.waits_for_template, holder.kind
        location = order.location_of(link.holds_template, link.waits_for_template)
        work = f"{holder.what} at {location}" if location else holder.what
        wait = Attempted(Attempt.DEADLOCK, event.at, *lock, work=work, waited=waited)
        yield _row(wait, host=holder.host, pid=holder.pid, reason=shortened(link.holds, MAX_TEXT))


def _row(event: Attempted, **more: Any) -> Attempt:
    return Attempt(
        outcome=event.outcome,
        at=_time(event.at),
        key=shortened(event.key, MAX_TEXT),
        template=shortened(event.template, MAX_TEXT),
        kind=event.kind,
        token=event.token,
        work=printable(event.work, MAX_TEXT),
        waited=event.waited,
        session=event.session,
        **{"host": _HOST, "pid": os.getpid(), **more},
    )


def _action(event: Acted) -> OperatorAction:
    fields = event.fields
    texts = {"key": shortened(fields["key"], MAX_TEXT), "by": printable(fields["by"], MAX_TEXT)}
    return OperatorAction(**{**fields, **texts, "at": _time(fields["at"])})


_HOST: Final = printable(socket.gethostname(), MAX_TEXT)


def _time(at: float) -> datetime:
    return datetime.fromtimestamp(at, timezone.now().tzinfo)  # naive if the project's times are


def delete_old(days: float, most: int) -> bool:
    """Delete the oldest rows if they are older than so many days; return whether there may be more than `most`."""
    before = timezone.now() - timedelta(days=days)
    more = [_delete_before(before, model, most) for model in (Attempt, OperatorAction, PastIncident)]
    return any(more)


def _delete_before(before: datetime, model: type[Attempt | OperatorAction | PastIncident], most: int) -> bool:
    table = model._default_manager.using(router.db_for_write(model))
    # Rows are inserted about in the order of their times, so no index on the time is needed.
    oldest = list(table.order_by("pk").values_list("pk", "at")[:most])
    old = [pk for pk, at in oldest if at < before]
    if old:
        table.filter(pk__lte=old[-1], at__lt=before).delete()
    return bool(old) and len(oldest) == most  # some may not be old: rows of a host whose clock was wrong


def last_grants(key: str, most: int) -> list[Attempt]:
    """Return the last grants of this lock, newest first."""
    grants = Attempt._default_manager.filter(key=shortened(key, MAX_TEXT), token__isnull=False)
    return _read(grants.order_by("-at")[:most])


def history(
    most: int,
    *,
    what: str = "",
    without: str = "",
    who: str = "",
    host: str = "",
    since: datetime | None = None,
    row: int | None = None,
    part: str = "",
    **conditions: Any,
) -> list[Attempt | OperatorAction]:
    """
    Return the last attempts and actions, newest first, then by their primary keys.

    `what` is an outcome or "actions", and `without` an outcome. `who` is a part of a work, a host, a pid or an
    operator's name. An action has the host of the holder that it concerned. `conditions` are values by the names of
    `_LOOKUPS`; an empty one selects all rows. Of the rows at the time `before`, those with a primary key above `row`
    are left out.
    """
    if since is None and (who or part):
        since = timezone.now() - SEARCHED
    conditions |= {"since": since, "key": shortened(conditions.get("key", ""), MAX_TEXT)}
    common = Q(*((_LOOKUPS[name], value) for name, value in conditions.items() if value))
    if part:
        escaped = quote(part, safe=string.punctuation)  # as the keys of this package have what is not in ASCII
        common &= Q(key__contains=part) | Q(key__contains=escaped)
    if row is not None:
        common &= ~Q(at=conditions.get("before"), pk__gt=row)
    rows: list[Attempt | OperatorAction] = []
    if what != ACTIONS:
        rows += _newest(Attempt, common & _outcomes(what, without) & _attempts_of(who, host), most)
    if what in {"", ACTIONS}:
        rows += _newest(OperatorAction, common & _actions_of(who, host), most)
    return sorted(rows, key=lambda record: (record.at, record.pk), reverse=True)[:most]


def _newest(model: type[Any], condition: Q, most: int) -> list[Any]:
    return _read(model._default_manager.filter(condition).order_by("-at", "-pk")[:most])


def _outcomes(what: str, without: str) -> Q:
    return (Q(outcome=what) if what else Q()) & (~Q(outcome=without) if without else Q())


def _attempts_of(who: str, host: str) -> Q:
    condition = Q(host=host) if host else Q()
    if who:
        by_pid = Q(pid=who) if who.isdecimal() and len(who) < 10 else Q()
        condition &= Q(work__icontains=who) | Q(host__icontains=who) | by_pid
    return condition


def _actions_of(who: str, host: str) -> Q:
    condition = Q(holder__contains=f" on {host}, ") if host else Q()
    return condition & (Q(by__icontains=who) | Q(holder__icontains=who)) if who else condition


_LOOKUPS: Final = {
    "key": "key",
    "since": "at__gte",
    "until": "at__lte",
    "before": "at__lte",
}


def last_losses(host: str, pid: int, most: int) -> list[Attempt]:
    """Return the newest grants of a host, or of one process of it, that were lost or have no end yet."""
    rows = Attempt._default_manager.filter(host=shortened(host, MAX_TEXT), **({"pid": pid} if pid else {}))
    return _read(rows.filter(outcome__in=(Attempt.LOST, Attempt.HELD)).order_by("-at")[:most])


def broken_by(attempts: Iterable[Attempt]) -> dict[tuple[str, int | None], str]:
    """Return the operators who broke locks, by the keys and tokens of those of these grants that have no end."""
    tokens = {attempt.key: attempt.token for attempt in attempts if attempt.outcome == Attempt.HELD}
    broken = OperatorAction._default_manager.filter(what="broken", key__in=tokens, token__isnull=False)
    return {(action.key, action.token): action.by for action in _read(broken.order_by("at"))} if tokens else {}


def _read_usual(template: str, timeout: float) -> tuple[float, float] | None:
    """
    Return the median of the last holds of a template in seconds, and how many callers usually waited.

    A caller that waits for ten holds has ten before it. None if there are too few holds.
    """
    released = Attempt._default_manager.filter(template=shortened(template, MAX_TEXT), outcome=Attempt.RELEASED)
    last = _read(released.only("held", "waited").order_by("-at")[:USUAL_OF])
    if len(last) < LEAST:
        return None
    hold, wait = (statistics.median(getattr(row, name) or 0.0 for row in last) for name in ("held", "waited"))
    return hold, wait / max(hold, 0.001)


usual: Final = Shared(_read_usual, most=1000)


def _read_usual_wait(template: str, timeout: float) -> float | None:
    """Return the median of the last waits of a template before the last hour, in which a convoy may have begun."""
    before = timezone.now() - timedelta(hours=1)
    granted = Attempt._default_manager.filter(template=shortened(template, MAX_TEXT), at__lt=before)
    last = _read(granted.exclude(waited=None).only("waited").order_by("-at")[:USUAL_OF])
    return statistics.median(row.waited for row in last) if len(last) >= LEAST else None


usual_wait: Final = Shared(_read_usual_wait, most=1000)


@Shared
def past_losses(seconds: float, timeout: float) -> dict[str, int]:
    """
    Return by host how many sessions have lost locks within the last so many seconds.

    A loss by a break, by `max_hold` or by a deleted znode is no trouble of the network, and does not count. Several
    losses of one session count once. Rows without a session count once for each process.
    """
    since = ago(seconds)
    lost = Attempt._default_manager.filter(outcome=Attempt.LOST, at__gte=since - SEARCHED, reason__in=troubles.ALL)
    sessions = {
        (row.host, row.session or f"pid {row.pid}")
        for row in _read(lost.order_by())
        if row.at + timedelta(seconds=row.held or 0.0) >= since
    }
    return dict(Counter(host for host, _ in sessions))


def began(pause: float, **of: Any) -> str:
    """Return when the last refusals or losses began: after the last pause of so many seconds, or the day before."""
    since = timezone.now() - SEARCHED
    rows = Attempt._default_manager.filter(at__gte=since, **of)
    if of["outcome"] == Attempt.LOST:
        times = [row.at + timedelta(seconds=row.held or 0.0) for row in _read(rows)]
    else:  # there may be many
        times = _read(rows.datetimes("at", "minute", tzinfo=since.tzinfo))
    starts = [time for before, time in pairwise([since, *sorted(times)]) if (time - before).total_seconds() >= pause]
    return str(starts[-1] if starts else since.date())


@Shared
def past_unfinished(seconds: float, timeout: float) -> list[Attempt]:
    """
    Return the newest grants of the last so many seconds without an end, and those whose locks were broken since then.

    They are read where they are written: a copy of the database may be late.
    """
    database, since = router.db_for_write(Attempt), ago(seconds)
    actions = OperatorAction._default_manager.using(database).filter(what="broken", at__gte=since, token__isnull=False)
    broken = {(action.key, action.token): action for action in _read(actions.order_by("at"))}
    rows = Attempt._default_manager.using(database).filter(outcome=Attempt.HELD, token__isnull=False)
    late = _read(rows.filter(at__gte=since).order_by("-at")[:UNFINISHED])
    if broken:
        keys, tokens = zip(*broken, strict=True)
        late += _read(rows.filter(key__in=set(keys), token__in=set(tokens), at__lt=since))
    for row in late:
        if (action := broken.get((row.key, row.token))) is not None:
            row.broken_by, row.broken_at = action.by or "?", action.at
    return late


def refresh(rows: Iterable[Attempt]) -> None:
    """Read these rows again, where they are written."""
    database = router.db_for_write(Attempt)
    with transaction.atomic(database):
        for row in rows:
            row.refresh_from_db(database)


@Shared
def past_deadlocks(seconds: float, timeout: float) -> list[list[Attempt]]:
    """Return the waits of each deadlock of the last so many seconds, in the order of its circle; the newest first."""
    since = ago(seconds)
    rows = Attempt._default_manager.filter(outcome=Attempt.DEADLOCK, at__gte=since).order_by("-at", "pk")
    return [list(circle) for _, circle in groupby(_read(rows[:DEADLOCKED]), key=lambda row: row.at)]


def mark_missed(rows: Sequence[int]) -> None:
    """Write that these grants without an end are missed from now on, unless another process has written it."""
    database = router.db_for_write(Attempt)
    with transaction.atomic(database):
        table = Attempt._default_manager.using(database).filter(outcome=Attempt.HELD, missed_at__isnull=True)
        for first in range(0, len(rows), 500):
            table.filter(pk__in=rows[first : first + 500]).update(missed_at=timezone.now())


@Shared
def past_refused(seconds: float, timeout: float) -> dict[str, tuple[int, int]]:
    """Return by key how many callers were refused in the last so many seconds, and how many there were."""
    rows = Attempt._default_manager.filter(at__gte=ago(seconds)).order_by()
    counted = rows.values("key").annotate(
        refused=Sum("count", filter=Q(outcome=Attempt.TIMED_OUT)), callers=Sum("count")
    )
    refused = counted.filter(refused__isnull=False).values_list("key", "refused", "callers")
    return {key: (refused, callers) for key, refused, callers in _read(refused)}


def refused_since(keys: Collection[str], seconds: float) -> int:
    """Return how many callers of these locks were refused in the last so many seconds."""
    names = [shortened(key, MAX_TEXT) for key in keys]
    rows = Attempt._default_manager.filter(key__in=names, at__gte=ago(seconds), outcome=Attempt.TIMED_OUT)
    return sum(_read(rows.values_list("count", flat=True)[:UNFINISHED]))


def broken_since(keys: Collection[str], seconds: float) -> list[str]:
    """Return the operators who broke one of these locks in the last so many seconds."""
    names = [shortened(key, MAX_TEXT) for key in keys]
    rows = OperatorAction._default_manager.filter(key__in=names, at__gte=ago(seconds), what="broken")
    return _read(rows.values_list("by", flat=True))


def last_incidents(seconds: float, most: int, without: Collection[str]) -> list[PastIncident]:
    """Return the incidents that were seen in the last so many seconds, the newest first."""
    rows = PastIncident._default_manager.filter(seen_at__gte=ago(seconds)).exclude(identity__in=without)
    return _read(rows.order_by("-seen_at")[:most])


def actions_since(first: datetime) -> list[OperatorAction]:
    """Return the actions of operators from this time on."""
    return _read(OperatorAction._default_manager.filter(at__gte=first).order_by("at")[:UNFINISHED])


@Shared
def past_stale(seconds: float, timeout: float) -> dict[str, list[str]]:
    """Return by template the keys under which fenced writes were refused, one for each write."""
    since = ago(seconds)
    rows = Attempt._default_manager.filter(outcome=Attempt.STALE, at__gte=since).order_by("-at")
    keys: defaultdict[str, list[str]] = defaultdict(list)
    for row in _read(rows.only("template", "key")[:UNFINISHED]):
        keys[row.template].append(row.key)
    return dict(keys)


@Shared
def past_refused_releases(key: float, timeout: float) -> dict[int, str]:
    """Return the tokens of the releases that were refused in the last day, and why. There are many while ACLs fail."""
    rows = Attempt._default_manager.filter(outcome=Attempt.REFUSED, at__gte=timezone.now() - SEARCHED)
    return dict(_read(rows.order_by("-at").values_list("token", "reason")[:UNFINISHED]))


@Shared
def past_epochs(seconds: float, timeout: float) -> list[int]:
    """Return the first and the last epoch of the grants of the last so many seconds, if there are any."""
    rows = Attempt._default_manager.filter(at__gte=ago(seconds), token__gte=1 << 32)
    with transaction.atomic(rows.db):
        tokens = rows.aggregate(Min("token"), Max("token"))
    return [token >> 32 for token in tokens.values() if token is not None]


def _read(rows: QuerySet[Any, _Row]) -> list[_Row]:
    with transaction.atomic(rows.db):  # an error must not spoil the caller's transaction
        return list(rows)
