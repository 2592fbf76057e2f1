"""The past of the locks, which the app `django_zklock.contrib.events` records. Without that app there is none."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_zklock.dashboard import lazy
from django_zklock.dashboard.formatting import action_text, clean, duration, host_and_pid
from django_zklock.queue.escaping import shortened
from django_zklock.queue.names import MAX_KEY

if TYPE_CHECKING:
    from django.contrib.admin.models import LogEntry

    from django_zklock.contrib.events.models import Attempt, OperatorAction
    from django_zklock.inspection import LockInfo, Snapshot

logger = logging.getLogger("django_zklock.dashboard")

MOST_GRANTS: Final = 20
"""Grants on the page of a lock."""
LEAST_TIMES: Final = 2
"""Ratio to the usual hold from which a hold is highlighted."""
LEAST_SECONDS: Final = 1.0
"""A shorter hold is never highlighted."""
WRITTEN_AFTER: Final = 3.0
"""Seconds that the end of a hold may take to reach the table. A younger row without an end says nothing."""
WHAT: Final = {
    "actions": gettext_lazy("Operators' actions"),
    "held": gettext_lazy("Held, no end recorded"),
    "released": gettext_lazy("Held and released"),
    "lost": gettext_lazy("Held and lost"),
    "timed out": gettext_lazy("Waited, and not granted"),
}
"""The kinds of rows of the history, by `PastEvent.kind`."""

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


def times_usual(seconds: float, template: str) -> str:
    """Return how many times as long as usual a hold lasts, as a text; empty if that is nothing special or unknown."""
    usual = usual_hold(template) if seconds >= LEAST_SECONDS else None
    times = int(seconds / max(usual, 0.001)) if usual is not None else 0
    return _("%(times)d x its usual time") % {"times": times} if times >= LEAST_TIMES else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastEvent:
    """A row of the history, or of the last grants of a lock."""

    at: datetime
    key: str
    kind: str
    """A key of `WHAT`."""
    what: str
    by: str
    work: str = ""
    via: str = ""
    """The origin of an operator's action."""
    reason: str = ""
    waited: str = ""
    lasted: str = ""
    """How long it was held; for a wait that timed out, how long it waited."""


def event_of(attempt: Attempt, held: Collection[int | None] | None = None) -> PastEvent:
    """Return a row about an attempt. `held` are the tokens of the lock's present holders; None if they are unknown."""
    lasted = attempt.waited if attempt.outcome == attempt.TIMED_OUT else attempt.held
    return PastEvent(
        at=attempt.at,
        key=attempt.key,
        kind=attempt.outcome,
        what=_since_then(attempt, held) if attempt.outcome == attempt.HELD else str(WHAT[attempt.outcome]),
        by=host_and_pid(attempt.host, attempt.pid),
        work=clean(attempt.work),
        reason=clean(attempt.reason),
        waited="" if attempt.waited is None else duration(attempt.waited),
        lasted="" if lasted is None else duration(lasted),
    )


def _since_then(attempt: Attempt, held: Collection[int | None] | None) -> str:
    if held is not None and attempt.token in held:
        return _("Held since then")
    if held is None or time.time() - attempt.at.timestamp() < WRITTEN_AFTER:
        return _("Granted; no end is recorded")
    return _("Process ended without releasing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """The rows of the history to show; an empty value selects all."""

    key: str = ""
    part: str = ""
    """A part of keys."""
    what: str = ""
    """A key of `WHAT`."""
    who: str = ""
    """A part of the work, or of the operator's name."""
    host: str = ""
    since: datetime | None = None
    until: datetime | None = None


def page(wanted: Filter, most: int, *, reply_timeout: float) -> tuple[list[PastEvent], datetime | None]:
    """
    Return the newest rows, and `until` of the next page; None after the last one. Raises what the database raises.

    Without `contrib.events`, they are the actions in Django's own log.
    """
    events = _events(wanted, most + 1, reply_timeout)
    if len(events) <= most:
        return events, None
    until = events[-1].at
    # Rows of one moment stay together, so that none is missing between two pages.
    earlier = [event for event in events if event.at > until]
    return (earlier, until) if earlier else (events[:most], until - timedelta(microseconds=1))


def scope() -> str:
    """Return which rows the history has."""
    if source is not None:
        return _(
            "The actions of operators on all hosts, and the times that locks were granted, or not in time. Older rows "
            "are deleted after some days."
        )
    return _(
        "The actions in this admin. The app django_zklock.contrib.events also records those of commands and code, "
        "grants and releases. The log zklock.audit has all actions."
    )


def _events(wanted: Filter, most: int, reply_timeout: float) -> list[PastEvent]:
    if source is None:
        return [_of_entry(entry) for entry in _entries(wanted, most)]
    rows = source.history(most, **asdict(wanted))
    is_open = any(isinstance(row, source.Attempt) and row.outcome == row.HELD for row in rows)
    now = lazy.inspection.snapshot(reply_timeout=reply_timeout, max_waiters=1) if is_open else None
    locks = {shortened(lock.key, source.MAX_TEXT): lock for lock in now.locks} if now is not None else {}
    return [
        event_of(row, _tokens(now, locks.get(row.key))) if isinstance(row, source.Attempt) else _of_action(row)
        for row in rows
    ]


def _tokens(now: Snapshot | None, lock: LockInfo | None) -> Collection[int] | None:
    """Return the tokens of the holders of a lock, or None if the snapshot does not tell."""
    if now is None or now.problem or (lock.problem if lock is not None else now.total != len(now.locks)):
        return None
    return [holder.token for holder in lock.holders] if lock is not None else []


def _of_action(action: OperatorAction) -> PastEvent:
    origins = {"admin": _("admin"), "command": _("command"), "code": _("code")}
    return PastEvent(
        at=action.at,
        key=action.key,
        kind="actions",
        what=action_text(action),
        by=clean(action.by),
        via=origins.get(action.via, clean(action.via)),
        reason=clean(action.reason, MAX_KEY),
    )


def _of_entry(entry: LogEntry) -> PastEvent:
    what, key = clean(entry.get_change_message(), MAX_KEY), entry.object_id or ""
    return PastEvent(at=entry.action_time, key=key, kind="actions", what=what, by=clean(entry.user), via=_("admin"))


def _entries(wanted: Filter, most: int) -> list[LogEntry]:
    """Return the newest entries of Django's own log. It has neither attempts nor hosts."""
    from django.contrib.admin.models import LogEntry  # noqa: PLC0415 - only if the admin is installed

    texts = {"object_id": wanted.key, "object_id__contains": wanted.part, "user__username__icontains": wanted.who}
    times = {"action_time__gte": wanted.since, "action_time__lte": wanted.until}
    entries = LogEntry.objects.filter(content_type__app_label="zklock", content_type__model="lock")
    if wanted.host or wanted.what not in {"", "actions"}:
        return []
    chosen = {name: value for name, value in {**texts, **times}.items() if value}
    return list(entries.filter(**chosen).select_related("user").order_by("-action_time")[:most])


def losses_of(host: str, pid: int, held: Collection[int]) -> list[PastEvent] | None:
    """Return what a host, or a process of it, has lost or has not released; None without the app."""
    if source is None:
        return None
    none: list[Attempt] = []
    attempts = read(lambda source: source.last_losses(host, pid, MOST_GRANTS + len(held)), none)
    return [event_of(attempt) for attempt in attempts if attempt.token not in held][:MOST_GRANTS]


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


def past_of(lock: LockInfo, *, is_current: bool = True) -> Past | None:
    """Return the past of a lock, or None without the app. `is_current`: the state is not an old one."""
    if source is None:
        return None
    none: list[Attempt] = []
    grants = read(lambda source: source.last_attempts(lock.key, MOST_GRANTS, granted=True), none)
    first = lock.holders[0] if lock.holders else None
    template = first.template if first is not None else grants[0].template if grants else ""
    usual = usual_hold(template)
    tokens = {holder.token for holder in lock.holders} if is_current and not lock.problem else None
    return Past(
        grants=tuple(event_of(attempt, tokens) for attempt in grants),
        summaries=_summaries(grants),
        usual="" if usual is None else duration(usual),
        times="" if first is None else times_usual(first.certain_duration, template),
    )


def _summaries(grants: Sequence[Attempt]) -> tuple[tuple[str, str], ...]:
    """Return the figures. A hold without an end has no duration, and is left out."""
    held = [grant.held for grant in grants if grant.held is not None]
    waited = [grant.waited for grant in grants if grant.waited is not None]
    figures = ((_("Hold"), held), (_("Wait"), waited))
    return tuple((title, _summary(seconds)) for title, seconds in figures if len(seconds) > 1)


def _summary(seconds: Sequence[float]) -> str:
    text = _("The last %(count)d: median %(middle)s, longest %(longest)s")
    middle, longest = duration(statistics.median(seconds)), duration(max(seconds))
    return text % {"count": len(seconds), "middle": middle, "longest": longest}
