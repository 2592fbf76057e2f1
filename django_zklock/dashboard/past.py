"""The past of a lock, as the app `django_zklock.contrib.events` has recorded it. Without that app there is none."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from django.apps import apps
from django.utils.translation import gettext as _

from django_zklock import clock
from django_zklock.dashboard.formatting import clean, duration, host_and_pid

if TYPE_CHECKING:
    from django_zklock.contrib.events.models import Attempt
    from django_zklock.dashboard.detail import Detail

logger = logging.getLogger("django_zklock.dashboard")

MOST_GRANTS: Final = 20
"""Grants on the page of a lock."""
LEAST_TIMES: Final = 2
"""A hold that has lasted for fewer times the usual one is nothing special."""
LEAST_SECONDS: Final = 1.0
"""Nor is a shorter one."""
FLAPPING_WITHIN: Final = 1800.0
"""Seconds in which the losses of a host are counted."""
FLAPPING_FROM: Final = 3
"""Losses of a host that are no accident."""
CACHED: Final = 60.0
"""Seconds for which a usual hold is remembered."""
MOST_CACHED: Final = 1000
BAR: Final = 10
"""Units from one bar of a chart to the next."""
HEIGHT: Final = 40
"""Units of the highest bar."""


def last_attempts(key: str, most: int, *, granted: bool = False) -> list[Attempt]:
    """Return the last attempts to acquire this lock, or any lock if `key` is empty; newest first."""
    found: list[Attempt] | None = _ask("last_attempts", key, most, granted=granted)
    return found or []


def last_grants(key: str, most: int = MOST_GRANTS) -> list[Attempt]:
    """Return the last grants of this lock, newest first."""
    return last_attempts(key, most, granted=True)


_usual: dict[str, tuple[float, float | None]] = {}  # by template: until when it counts, and the seconds; any thread


def usual_hold(template: str) -> float | None:
    """Return for how many seconds locks of this template are usually held; None if that is not known."""
    if not template or not has_past():
        return None
    until, found = _usual.get(template, (0.0, None))
    now = clock.now()
    if now >= until:
        found = _ask("usual_hold", template)
        if len(_usual) >= MOST_CACHED:
            _usual.clear()
        _usual[template] = now + CACHED, found
    return found


def times_usual(seconds: float, template: str) -> str:
    """Return how many times as long as usual a hold lasts, as a text; empty if that is nothing special or unknown."""
    usual = usual_hold(template) if seconds >= LEAST_SECONDS else None
    times = int(seconds / max(usual, 0.001)) if usual is not None else 0
    return _("%(times)d x its usual time") % {"times": times} if times >= LEAST_TIMES else ""


def flapping() -> list[str]:
    """Return a sentence for each host that has lost several locks within the last minutes."""
    losses: dict[str, int] = _ask("losses", FLAPPING_WITHIN) or {}
    text = _(
        "%(host)s has lost %(count)d locks within %(time)s. Its connections to ZooKeeper break, or its processes "
        "pause: look at its network, its load and its memory."
    )
    return [
        text % {"host": clean(host), "count": count, "time": duration(FLAPPING_WITHIN)}
        for host, count in sorted(losses.items())
        if count >= FLAPPING_FROM
    ]


def has_past() -> bool:
    """Return whether the app is installed."""
    return apps.is_installed("django_zklock.contrib.events")


def _ask(name: str, *args: Any, **kwargs: Any) -> Any:
    """Return what this method of the app returns; None without the app, or if the table cannot be read."""
    if not has_past():
        return None
    try:
        return getattr(apps.get_app_config("zklock_events"), name)(*args, **kwargs)
    except Exception:
        logger.exception("the table of events cannot be read")
        return None


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
    """Whether it stands for a hold without a normal end."""


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
    """How many times that the present hold lasts, if it is long."""


def past_of(lock: Detail) -> Past | None:
    """Return the past of a lock, or None without the app."""
    if not has_past():
        return None
    found = last_grants(lock.key)
    first = lock.holders[0] if lock.holders else None
    template = first.info.template if first is not None else found[0].template if found else ""
    usual = usual_hold(template)
    tokens = {holder.info.token for holder in lock.holders}
    return Past(
        grants=tuple(_grant(each, tokens) for each in found),
        charts=_charts(found[::-1]) if len(found) > 1 else (),
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
    hollow = [each.outcome != each.RELEASED for each in attempts]
    return (
        _chart(_("Hold"), [each.held or 0.0 for each in attempts], hollow),
        _chart(_("Wait"), [each.waited or 0.0 for each in attempts], [False] * len(attempts)),
    )


def _chart(title: str, seconds: Sequence[float], hollow: Sequence[bool]) -> Chart:
    longest = max(seconds)
    heights = [max(1, round(HEIGHT * each / longest)) if longest else 1 for each in seconds]
    values = {"count": len(seconds), "middle": duration(statistics.median(seconds)), "longest": duration(longest)}
    return Chart(
        title=title,
        text=_("The last %(count)d: median %(middle)s, longest %(longest)s") % values,
        width=BAR * len(seconds),
        height=HEIGHT + 2,
        bars=tuple(
            Bar(BAR * place + 1, HEIGHT + 1 - height, height, hollow[place]) for place, height in enumerate(heights)
        ),
    )
