"""A lock in a picture: its last holds in one lane, those who wait as an area, and now at the right edge."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from django_zklock.report.formatting import duration, process_of, use_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_zklock.inspection import LockInfo

MOST_BARS: Final = 20
MOST_LANES: Final = 6
"""Lanes of a lock that can be shared."""
WIDTH: Final = 1000
"""The width of the picture, and the height of the area, in units of their own."""
HEIGHT: Final = 20
NARROWEST: Final = 4
"""Units: a hold of a moment must be seen, too."""
MOST_TICKS: Final = 4
SECOND: Final = 1
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
UNITS: Final = (
    (DAY, gettext_noop("%(count)d d")),
    (HOUR, gettext_noop("%(count)d h")),
    (MINUTE, gettext_noop("%(count)d min")),
    (SECOND, gettext_noop("%(count)d s")),
)
STEPS: Final = (
    *(SECOND, 2 * SECOND, 5 * SECOND, 10 * SECOND, 20 * SECOND),
    *(MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 20 * MINUTE),
    *(HOUR, 2 * HOUR, 4 * HOUR, 8 * HOUR),
    *(DAY, 2 * DAY, 5 * DAY, 10 * DAY, 20 * DAY, 50 * DAY, 100 * DAY, 200 * DAY),
)


class Bar(NamedTuple):
    """A grant, or somebody who waits. The times are in seconds before now."""

    name: str
    began: float
    """When it began to wait."""
    granted: float | None = None
    """None: not yet."""
    ended: float = 0.0
    is_bad: bool = False
    """Whether it is held for too long, was lost, or no end is recorded."""
    is_shared: bool = False
    """Whether others may hold the lock at the same time."""
    text: str = ""
    """All of it in words."""


class Part(NamedTuple):
    """A hold in a lane."""

    what: str
    x: int
    width: int
    text: str


class Lane(NamedTuple):
    """Holds that follow each other. Its name is that of the last one."""

    name: str
    parts: list[Part]
    ended: float


class Timeline(NamedTuple):
    """A picture of `WIDTH` units. `area` is the path of those who wait; empty if nobody did."""

    label: str
    lanes: list[Lane]
    area: str
    ticks: list[tuple[str, str]]
    """The place of each, in percent from the left edge, and its text."""


def present(lock: LockInfo, *, is_bad: bool) -> list[Bar]:
    """Return the bars of the present queue, the last to come first. `is_bad`: it is held for too long."""
    bars = []
    for who in reversed((*lock.holders[:MOST_BARS], *lock.waiters)):
        name = " · ".join(filter(None, (process_of(who), use_of(who))))
        held = who.duration if who.holds else None
        text = in_words(name, max(0.0, who.age - (held or 0.0)), held, _("now"))
        bars.append(Bar(name, who.age, held, is_bad=is_bad, is_shared=who.kind != "lock", text=text))
    return bars


def in_words(who: str, waited: float | None, held: float | None, what: str) -> str:
    """Return the text of a bar."""
    spans = [(_("waited %(time)s"), waited), (_("held %(time)s"), held)]
    return ", ".join([who, *(text % {"time": duration(span)} for text, span in spans if span is not None), what])


def picture(bars: Sequence[Bar]) -> Timeline | None:
    """Return the picture of these bars, of which the newest is first; None without any."""
    granted = [bar for bar in bars if bar.granted is not None][:MOST_BARS]
    shown = granted + [bar for bar in bars if bar.granted is None]
    if not shown:
        return None
    span = 1.03 * max(5.0, _span(sorted((bar.began for bar in shown), reverse=True)))
    label = _("The last grants, from %(time)s ago until now. The tables of this page have the same in words.")
    return Timeline(label % {"time": duration(span)}, _lanes(granted, span), _area(shown, span), _ticks(span))


def _x(ago: float, span: float) -> int:
    return round(WIDTH - WIDTH * min(ago, span) / span)


def _lanes(bars: Sequence[Bar], span: float) -> list[Lane]:
    """Return the holds in as few lanes as they need. A lock that cannot be shared has one, whatever the clocks say."""
    lanes: list[Lane] = []
    for bar in sorted(bars, key=lambda bar: -(bar.granted or 0.0)):
        granted, ended = bar.granted or 0.0, _until_free(bar, bars)
        if ended >= span:
            continue
        width = max(_x(ended, span) - _x(granted, span), NARROWEST)
        part = Part("lost" if bar.is_bad else "hold", min(_x(granted, span), WIDTH - width), width, bar.text)
        indexes = [index for index, lane in enumerate(lanes) if not bar.is_shared or lane.ended >= granted]
        if not indexes and len(lanes) < MOST_LANES:
            lanes.append(Lane(bar.name, [part], ended))
        else:
            index = indexes[0] if indexes else -1
            lanes[index] = Lane(bar.name, [*lanes[index].parts, part], ended)
    return lanes


def _until_free(bar: Bar, bars: Sequence[Bar]) -> float:
    """Return when a hold ended. After a loss, the lock is free for certain only when the next one has got it."""
    later = [other.granted for other in bars if other.granted is not None and other.granted < bar.ended]
    return max(later, default=bar.ended) if bar.is_bad else bar.ended


def _area(bars: Sequence[Bar], span: float) -> str:
    """Return a path: the number of those who wait, at each time."""
    changes: list[tuple[int, int]] = []
    for bar in bars:
        begin, end = _x(bar.began, span), _x(bar.granted or 0.0, span)
        if begin < end:
            changes += [(begin, 1), (end, -1)]
    changes.sort()
    counts = list(accumulate(change for _x, change in changes))
    most = max(counts, default=0)
    steps = [f"H{x}V{HEIGHT - HEIGHT * count / most:.3g}" for (x, _change), count in zip(changes, counts, strict=True)]
    return f"M0 {HEIGHT}{''.join(steps)}Z" if steps else ""


def _ticks(span: float) -> list[tuple[str, str]]:
    step = next((step for step in STEPS if span / step <= MOST_TICKS), STEPS[-1])
    # Not next to the word "now", which is long in some languages.
    shown = [ago for ago in range(step, int(0.93 * span) + 1, step) if ago > 0.28 * span]
    return [(f"{100 - 100 * ago / span:.2f}%", _ago(ago)) for ago in shown]


def _span(ages: list[float]) -> float:
    """Return the seconds to show. A few old ones are left out if all others are tenfold as wide without them."""
    cuts = (index for index in range(len(ages) // 3, 0, -1) if ages[index] < ages[index - 1] / 10)
    return ages[next(cuts, 0)]


def _ago(seconds: int) -> str:
    unit, text = next((unit, text) for unit, text in UNITS if seconds >= unit)
    return "-" + _(text) % {"count": seconds // unit}
