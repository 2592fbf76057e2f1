"""The past of the locks, which the app `django_zklock.contrib.events` records. Without that app there is none."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from django.utils.translation import gettext as _

from django_zklock.dashboard import lazy
from django_zklock.dashboard.formatting import clean, duration, host_and_pid

if TYPE_CHECKING:
    from django_zklock.contrib.events.models import Attempt
    from django_zklock.inspection import Incident, LockInfo, PastFacts, Snapshot

logger = logging.getLogger("django_zklock.dashboard")

MOST_GRANTS: Final = 20
"""Grants on the page of a lock."""
LEAST_TIMES: Final = 2
"""Ratio to the usual hold from which a hold is highlighted."""
LEAST_SECONDS: Final = 1.0
"""A shorter hold is never highlighted."""
LONG_HELD = 60.0
"""Seconds from which on a lock counts as held long."""
FLAPPING_WITHIN: Final = 1800.0
"""Seconds in which the losses of a host are counted."""
FLAPPING_FROM: Final = 3
"""Losses of a host from which the page of the health names it."""

_T = TypeVar("_T")

source: ModuleType | None = None
"""The module `django_zklock.contrib.events.table`; that app sets it when Django starts."""


def read(ask: Callable[[Any], _T], default: _T) -> _T:
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
    seconds: float | None = read(lambda source: source.usual_hold(template), None)
    return seconds


def present_incidents(
    reply_timeout: float, long_held: float | None = None, snapshot: Snapshot | None = None
) -> tuple[tuple[Incident, ...], Snapshot]:
    """Return what needs attention now, and the snapshot that shows it."""
    inspection: Any = lazy.inspection
    snapshot = snapshot or inspection.snapshot(reply_timeout=reply_timeout, max_waiters=1)
    servers = inspection.ensemble(reply_timeout=reply_timeout) if snapshot.problem else None
    return inspection.incidents(snapshot, servers, _facts(), LONG_HELD if long_held is None else long_held), snapshot


def _facts() -> PastFacts:
    """Return what the tables say about the last half hour."""
    none: dict[str, int] = {}
    return lazy.inspection.PastFacts(
        usual_hold=usual_hold,
        losses=read(lambda source: source.losses(FLAPPING_WITHIN), none),
        unfinished=read(lambda source: source.unfinished(FLAPPING_WITHIN), []),
    )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PastEvent:
    """A row of the history, or of the last grants of a lock."""

    at: datetime
    key: str
    what: str
    by: str
    work: str = ""
    via: str
    reason: str = ""
    waited: str = ""
    lasted: str = ""
    """How long it was held; for a wait that timed out, how long it waited."""


def event_of(attempt: Attempt, held: Collection[int | None] = ()) -> PastEvent:
    """Return a row about an attempt. `held` are the tokens of the present holders."""
    texts = {
        attempt.RELEASED: _("Held and released"),
        attempt.LOST: _("Held and lost"),
        attempt.TIMED_OUT: _("Waited, and not granted"),
    }
    lasted = attempt.waited if attempt.outcome == attempt.TIMED_OUT else attempt.held
    return PastEvent(
        at=attempt.at,
        key=attempt.key,
        what=texts.get(attempt.outcome) or (_("Still held") if attempt.token in held else _("No end was recorded")),
        by=host_and_pid(attempt.host, attempt.pid),
        work=clean(attempt.work),
        via=_("code"),
        reason=clean(attempt.reason),
        waited="" if attempt.waited is None else duration(attempt.waited),
        lasted="" if lasted is None else duration(lasted),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """The past of a lock."""

    grants: tuple[PastEvent, ...]
    summaries: tuple[tuple[str, str], ...]
    """The title and the text of a summary of the holds, and of one of the waits."""
    usual: str
    """The usual hold of its template."""
    times: str
    """The ratio of the present hold to it, as a text; empty for an ordinary hold."""


def past_of(lock: LockInfo) -> Past | None:
    """Return the past of a lock, or None without the app."""
    if source is None:
        return None
    none: list[Attempt] = []
    grants = read(lambda source: source.last_attempts(lock.key, MOST_GRANTS, granted=True), none)
    first = lock.holders[0] if lock.holders else None
    template = first.template if first is not None else grants[0].template if grants else ""
    usual = usual_hold(template)
    tokens = {holder.token for holder in lock.holders}
    return Past(
        grants=tuple(event_of(attempt, tokens) for attempt in grants),
        summaries=_summaries(grants) if len(grants) > 1 else (),
        usual="" if usual is None else duration(usual),
        times="" if first is None else times_usual(first.certain_duration, template),
    )


def _summaries(grants: Sequence[Attempt]) -> tuple[tuple[str, str], ...]:
    return (
        (_("Hold"), _summary([grant.held or 0.0 for grant in grants])),
        (_("Wait"), _summary([grant.waited or 0.0 for grant in grants])),
    )


def _summary(seconds: Sequence[float]) -> str:
    text = _("The last %(count)d: median %(middle)s, longest %(longest)s")
    middle, longest = duration(statistics.median(seconds)), duration(max(seconds))
    return text % {"count": len(seconds), "middle": middle, "longest": longest}
