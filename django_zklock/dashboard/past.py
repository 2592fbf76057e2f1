"""The past of the locks, which the app `django_zklock.contrib.events` records. Without that app there is none."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from django.utils.translation import gettext as _

from django_zklock.dashboard.formatting import clean, duration, host_and_pid

if TYPE_CHECKING:
    from django_zklock.contrib.events.models import Attempt, OperatorAction
    from django_zklock.dashboard.detail import Detail

logger = logging.getLogger("django_zklock.dashboard")

MOST_GRANTS: Final = 20
"""Grants on the page of a lock."""
LEAST_TIMES: Final = 2
"""Ratio to the usual hold from which a hold is highlighted."""
LEAST_SECONDS: Final = 1.0
"""A shorter hold is never highlighted."""
FLAPPING_WITHIN: Final = 1800.0
"""Seconds in which the losses of a host are counted."""
FLAPPING_FROM: Final = 3
"""Losses of a host from which the page of the health names it."""
BAR: Final = 10
"""Units from one bar of a chart to the next."""
HEIGHT: Final = 40
"""Units of the highest bar."""

_T = TypeVar("_T")


class PastSource(Protocol):
    """The functions of `contrib.events.table`."""

    def last_attempts(self, key: str, most: int, *, granted: bool = False) -> list[Attempt]:
        """Return the last attempts to acquire this lock, or any lock if `key` is empty; newest first."""

    def last_actions(self, key: str, most: int) -> list[OperatorAction]:
        """Return the last actions of operators on this lock, or on any lock if `key` is empty; newest first."""

    def usual_hold(self, template: str) -> float | None:
        """Return for how many seconds locks of this template are usually held; None if that is not known."""

    def losses(self, seconds: float) -> dict[str, int]:
        """Return by host how many locks were lost that were granted within the last so many seconds."""


source: PastSource | None = None
"""The tables of `django_zklock.contrib.events`; that app sets it when Django starts."""


def read(ask: Callable[[PastSource], _T], default: _T) -> _T:
    """Return what `ask` reads from the tables, or the default if they cannot be read or do not exist."""
    if source is None:
        return default
    try:
        return ask(source)
    except Exception:
        logger.exception("the table of events cannot be read")
        return default


def usual_hold(template: str) -> float | None:
    """Return for how many seconds locks of this template are usually held; None if that is not known."""
    if not template:
        return None
    return read(lambda source: source.usual_hold(template), None)


def times_usual(seconds: float, template: str) -> str:
    """Return how many times as long as usual a hold lasts, as a text; empty if that is nothing special or unknown."""
    usual = usual_hold(template) if seconds >= LEAST_SECONDS else None
    times = int(seconds / max(usual, 0.001)) if usual is not None else 0
    return _("%(times)d x its usual time") % {"times": times} if times >= LEAST_TIMES else ""


def flapping() -> list[str]:
    """Return a sentence for each host that has lost several locks within the last minutes."""
    none: dict[str, int] = {}
    losses = read(lambda source: source.losses(FLAPPING_WITHIN), none)
    text = _(
        "%(host)s has lost %(count)d locks within %(time)s. Its connections to ZooKeeper break, or its processes "
        "pause: look at its network, its load and its memory."
    )
    return [
        text % {"host": clean(host), "count": count, "time": duration(FLAPPING_WITHIN)}
        for host, count in sorted(losses.items())
        if count >= FLAPPING_FROM
    ]


# --- the page of a lock -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PastGrant:
    """A row of the table of grants."""

    at: datetime
    who: str
    work: str
    waited: str
    held: str
    end: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a chart, in units of its picture."""

    x: int
    y: int
    height: int
    hollow: bool
    """True for a hold without a normal end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart of the last grants, the oldest on the left."""

    title: str
    text: str
    width: int
    height: int
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """The past of a lock."""

    grants: tuple[PastGrant, ...]
    charts: tuple[Chart, ...]
    usual: str
    """The usual hold of its template."""
    times: str
    """The ratio of the present hold to it, as a text; empty for an ordinary hold."""


def past_of(lock: Detail) -> Past | None:
    """Return the past of a lock, or None without the app."""
    if source is None:
        return None
    none: list[Attempt] = []
    grants = read(lambda source: source.last_attempts(lock.key, MOST_GRANTS, granted=True), none)
    first = lock.holders[0] if lock.holders else None
    template = first.info.template if first is not None else grants[0].template if grants else ""
    usual = usual_hold(template)
    tokens = {holder.info.token for holder in lock.holders}
    return Past(
        grants=tuple(_grant(attempt, tokens) for attempt in grants),
        charts=_charts(grants[::-1]) if len(grants) > 1 else (),
        usual="" if usual is None else duration(usual),
        times="" if first is None else times_usual(first.duration, template),
    )


def _grant(attempt: Attempt, tokens: Collection[int | None]) -> PastGrant:
    return PastGrant(
        at=attempt.at,
        who=host_and_pid(attempt.host, attempt.pid),
        work=clean(attempt.work),
        waited="" if attempt.waited is None else duration(attempt.waited),
        held="" if attempt.held is None else duration(attempt.held),
        end=_end(attempt, tokens),
    )


def _end(attempt: Attempt, tokens: Collection[int | None]) -> str:
    if attempt.outcome == attempt.LOST:
        return _("Lost: %(reason)s") % {"reason": clean(attempt.reason)}
    if attempt.outcome == attempt.RELEASED:
        return _("Released")
    return _("Still held") if attempt.token in tokens else _("No end was recorded")


def _charts(attempts: Sequence[Attempt]) -> tuple[Chart, ...]:
    hollow = [attempt.outcome != attempt.RELEASED for attempt in attempts]
    return (
        _chart(_("Hold"), [attempt.held or 0.0 for attempt in attempts], hollow),
        _chart(_("Wait"), [attempt.waited or 0.0 for attempt in attempts], [False] * len(attempts)),
    )


def _chart(title: str, seconds: Sequence[float], hollow: Sequence[bool]) -> Chart:
    longest = max(seconds)
    heights = [max(1, round(HEIGHT * value / longest)) if longest else 1 for value in seconds]
    values = {"count": len(seconds), "middle": duration(statistics.median(seconds)), "longest": duration(longest)}
    return Chart(
        title=title,
        text=_("The last %(count)d: median %(middle)s, longest %(longest)s") % values,
        width=BAR * len(seconds),
        height=HEIGHT + 2,
        bars=tuple(
            Bar(BAR * index + 1, HEIGHT + 1 - height, height, hollow[index]) for index, height in enumerate(heights)
        ),
    )
