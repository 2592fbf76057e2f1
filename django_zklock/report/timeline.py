"""The last grants of a lock as a picture: a bar for each, and now at the right edge. Tables have the same in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from django_zklock.report.formatting import duration, process_of, use_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_zklock.inspection import LockInfo

MOST_BARS: Final = 20
MOST_WAITERS: Final = 5
PITCH: Final = 10
"""Pixels from one bar to the next."""
NARROWEST: Final = 0.5
"""Percent: a hold of a moment must be seen, too."""
MOST_TICKS: Final = 4
UNITS: Final = (
    (86400, gettext_noop("%(count)d d")),
    (3600, gettext_noop("%(count)d h")),
    (60, gettext_noop("%(count)d min")),
    (1, gettext_noop("%(count)d s")),
)
STEPS: Final = [factor * unit for unit, factors in (
    (1, (1, 2, 5, 10, 20)), (60, (1, 2, 5, 10, 20)), (3600, (1, 2, 4, 8)), (86400, (1, 2, 5, 10, 20, 50, 100, 200)),
) for factor in factors]  # fmt: skip


class Bar(NamedTuple):
    """A grant, or somebody who waits. The times are in seconds before now."""

    text: str
    began: float
    """When it began to wait."""
    granted: float | None = None
    """None: not yet."""
    ended: float = 0.0
    is_bad: bool = False
    """Whether the lock was lost, or no end is recorded."""


class Timeline(NamedTuple):
    """The numbers are texts, as no language may write them with a comma: percent from the left edge, and pixels."""

    height: int
    label: str
    bars: list[tuple[str, int, list[tuple[str, str, str]]]]
    """The text of each, its pixels from the upper edge, and its parts: what it is, where it begins, its width."""
    ticks: list[tuple[str, str]]


def present(lock: LockInfo) -> list[Bar]:
    """Return the bars of the present queue, the last to come first."""
    bars = []
    for who in reversed((*lock.holders[:MOST_BARS], *lock.waiters[:MOST_WAITERS])):
        named = " · ".join(filter(None, (process_of(who), use_of(who))))
        held = who.duration if who.holds else None
        waited = max(0.0, who.age - (held or 0.0))
        bars.append(Bar(in_words(named, waited, held, _("now")), who.age, held))
    return bars


def in_words(who: str, waited: float | None, held: float | None, what: str) -> str:
    """Return the text of a bar."""
    spans = [(_("waited %(time)s"), waited), (_("held %(time)s"), held)]
    return ", ".join([who, *(text % {"time": duration(span)} for text, span in spans if span is not None), what])


def picture(bars: Sequence[Bar]) -> Timeline | None:
    """Return the picture of the newest bars; None without any."""
    bars = bars[:MOST_BARS]
    if not bars:
        return None
    span = 1.03 * max(5.0, _span(sorted((bar.began for bar in bars), reverse=True)))

    def part(what: str, begin: float, end: float) -> list[tuple[str, str, str]]:
        begin = min(begin, span)
        width = max(100 * (begin - end) / span, NARROWEST)
        return [(what, f"{min(100 - 100 * begin / span, 100 - width):.2f}%", f"{width:.2f}%")] if end < span else []

    rows = []
    for index, bar in enumerate(bars):
        waits = part("wait", bar.began, bar.granted or 0.0) if bar.began > (bar.granted or 0.0) else []
        held = part("lost" if bar.is_bad else "hold", bar.granted, bar.ended) if bar.granted is not None else []
        rows.append((bar.text, index * PITCH, waits + held))
    step = next((step for step in STEPS if span / step <= MOST_TICKS), STEPS[-1])
    # Not next to the word "now", which is long in some languages.
    shown = [ago for ago in range(step, int(0.93 * span) + 1, step) if ago > 0.28 * span]
    ticks = [(f"{100 - 100 * ago / span:.2f}%", _ago(ago)) for ago in shown]
    label = _("The last grants, from %(time)s ago until now. The tables of this page have the same in words.")
    return Timeline(len(rows) * PITCH, label % {"time": duration(span)}, rows, ticks)


def _span(ages: list[float]) -> float:
    """Return the seconds to show. A few old ones are left out if all others are tenfold as wide without them."""
    cuts = (index for index in range(len(ages) // 3, 0, -1) if ages[index] < ages[index - 1] / 10)
    return ages[next(cuts, 0)]


def _ago(seconds: int) -> str:
    unit, text = next((unit, text) for unit, text in UNITS if seconds >= unit)
    return "-" + _(text) % {"count": seconds // unit}
