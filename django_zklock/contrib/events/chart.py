"""
The chart of all locks, or of one: how many held, waited and were refused, in the last hour and in the last day.

A bar is the average number in its minute, or in its half hour. The last bar is the present number. The tables have no
row of a wait, and no end of a hold, before it ends. So the present ones are those that ZooKeeper shows.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django.db import transaction
from django.db.models import DateTimeField, F, FloatField, Func, Q, Sum, Value
from django.db.models.functions import Coalesce, Floor, Least
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_zklock.contrib.events.models import MAX_TEXT, Attempt
from django_zklock.contrib.events.table import SEARCHED
from django_zklock.core.queue.escaping import shortened
from django_zklock.shared import Shared

if TYPE_CHECKING:
    from django_zklock.inspection import LockInfo

MOST_LONG: Final = 5000
"""Rows that last longer than a bar and are read one by one, the newest first."""


class Span(NamedTuple):
    """How far back a chart reaches: so many bars of so many seconds. Its result is used again for `max_age` seconds."""

    bars: int
    step: float
    max_age: float


SPANS: Final = {gettext_lazy("Hour"): Span(60, 60.0, 10.0), gettext_lazy("Day"): Span(48, 1800.0, 600.0)}


class Counts(NamedTuple):
    """The numbers of each bar. The first bar begins at `start`, in seconds since 1970."""

    start: float
    held: list[float]
    waited: list[float]
    refused: list[float]


_SECONDS: Final = {
    "sqlite": ("((julianday(%(expressions)s)) * 86400.0)", ") - julianday("),
    "postgresql": ("EXTRACT(EPOCH FROM (%(expressions)s))::double precision", " - "),
    "mysql": ("(TIMESTAMPDIFF(MICROSECOND, %(expressions)s) / -1000000.0)", ", "),
}
"""SQL by the vendor of the database, and what separates the two times. There is no chart for another vendor."""


class _Seconds(Func):
    """The seconds from the second time to the first one."""

    output_field = FloatField()

    def as_sql(self, compiler: Any, connection: Any, *args: Any, **more: Any) -> Any:
        template, joiner = _SECONDS[connection.vendor]
        return super().as_sql(compiler, connection, template=template, arg_joiner=joiner)


def _count(asked: tuple[str, Span], timeout: float) -> Counts:
    """Return the numbers of a lock, or of all locks if the key is empty. Raises what the database raises."""
    key, (bars, step, _max_age) = asked
    start = (time.time() // step - bars + 1) * step
    first = datetime.fromtimestamp(start, timezone.now().tzinfo)  # naive if the project's times are
    rows = Attempt._default_manager.filter(at__lt=first + timedelta(seconds=bars * step)).order_by()
    rows = rows.filter(key=shortened(key, MAX_TEXT)) if key else rows
    rows = rows.annotate(offset=_Seconds("at", Value(first, DateTimeField())))
    is_long, inside = Q(held__gt=step) | Q(waited__gt=step), F("offset") - F("bar") * step
    short = rows.filter(~is_long, at__gte=first - timedelta(seconds=step)).annotate(bar=Floor(F("offset") / step))
    short = short.values("bar").annotate(
        holds=Sum(Coalesce("held", 0.0)),
        holds_here=Sum(Least(Coalesce("held", 0.0), step - inside)),  # the remainder is in the next bar
        waits=Sum(Coalesce("waited", 0.0)),
        waits_here=Sum(Least(Coalesce("waited", 0.0), inside)),  # the remainder is in the bar before
        refused=Coalesce(Sum("count", filter=Q(outcome=Attempt.TIMED_OUT)), 0),
    )
    long = rows.filter(is_long, at__gte=first - SEARCHED).order_by("-at")
    held, waited, refused = (defaultdict[int, float](float) for _series in range(3))  # seconds, seconds and number
    with transaction.atomic(rows.db):  # an error must not spoil the caller's transaction
        for row in short:
            bar = int(row["bar"])
            held[bar] += row["holds_here"]
            held[bar + 1] += row["holds"] - row["holds_here"]
            waited[bar] += row["waits_here"]
            waited[bar - 1] += row["waits"] - row["waits_here"]
            refused[bar] += row["refused"]
        for offset, hold, wait, outcome in long.values_list("offset", "held", "waited", "outcome")[:MOST_LONG]:
            refused[int(offset // step)] += outcome == Attempt.TIMED_OUT
            for series, begin, end in (held, offset, offset + (hold or 0.0)), (waited, offset - (wait or 0.0), offset):
                for bar in range(max(0, int(begin // step)), min(bars, int(end // step) + 1)):
                    series[bar] += min(end, (bar + 1) * step) - max(begin, bar * step)
    units = (held, step), (waited, step), (refused, 1.0)
    return Counts(start, *([series[bar] / unit for bar in range(bars)] for series, unit in units))


past_counts: Final = Shared(_count, most=50)


def series_of(key: str, locks: Sequence[LockInfo] | None, *, complete: bool = True) -> list[tuple[str, list[Any]]]:
    """
    Return by title the pictures of a lock, or of all if the key is empty: label, bars, path, text. Empty if all are 0.

    `locks` are their present states; None if those are not known. Without `complete`, there may be others.
    """
    series: list[tuple[str, list[Any]]] = [(_("Holders"), []), (_("Waiters"), []), (_("Refusals"), [])]
    present = _present(locks) if locks is not None else None
    of_now = _("%(now)d now") if complete else _("at least %(now)d now")
    for label, span in SPANS.items():
        counts = past_counts.get((key, span), 0.0, span.max_age)
        for index, bars in enumerate(counts[1:3]):
            shown, texts = bars, []
            if present is not None:
                now, ages = present[index]
                shown = _with_present(bars, now, ages, counts.start, span.step)
                texts = [of_now % {"now": now}]
            most = _("the most, %(count)s, at %(time)s")
            texts.append(_text(most, shown, shown.index(max(shown)), counts, span))
            series[index][1].append((label, span.bars, _path(shown), "; ".join(filter(None, texts))))
        bars = counts.refused
        first = next((index for index, count in enumerate(bars) if count), 0)
        text = _text(_("%(sum)s; the first at %(time)s"), bars, first, counts, span)
        series[2][1].append((label, span.bars, _path(bars), text or _("none")))
    return series if any(path for _title, pictures in series for _label, _bars, path, _text in pictures) else []


def _present(locks: Sequence[LockInfo]) -> list[tuple[int, list[float]]]:
    """Return how many hold and how many wait now, with the ages of those that are known."""
    holders = [holder.certain_duration for lock in locks for holder in lock.holders if holder.idle_for is None]
    waits = [waiter.age for lock in locks for waiter in lock.waiters]
    return [(len(holders), holders), (sum(lock.waiting for lock in locks), waits)]


def _with_present(bars: list[float], now: int, ages: Sequence[float], start: float, step: float) -> list[float]:
    """Return the bars with the present ones. Each counts from the bar in which it began; in the last, nothing else."""
    passed = time.time() - start
    begun = Counter(max(0, int((passed - age) // step)) for age in ages)
    return [*map(sum, zip(bars[:-1], accumulate(begun[index] for index in range(len(bars) - 1)), strict=True)), now]


def _text(text: str, bars: list[float], index: int, counts: Counts, span: Span) -> str:
    """Return what the bar at this index says; empty if it is 0. The time is in the zone of the project."""
    began = datetime.fromtimestamp(counts.start + index * span.step, timezone.get_default_timezone())
    count = f"{bars[index]:.0f}" if bars[index] >= 10 or bars[index] % 1 == 0 else f"{max(bars[index], 0.1):.1f}"
    return text % {"count": count, "sum": f"{sum(bars):.0f}", "time": f"{began:%H:%M}"} if bars[index] else ""


def _path(bars: list[float]) -> str:
    """Return the bars as the path of a picture whose unit is the width of a bar."""
    highest = max(bars) / 20  # the height of the picture
    return "".join(f"M{index} 20v-{max(1.0, count / highest):.3g}h.8V20z" for index, count in enumerate(bars) if count)
