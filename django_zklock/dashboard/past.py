"""The past of the locks, which the app `django_zklock.contrib.events` records. Without that app there is none."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_zklock.core.log import Logger
from django_zklock.core.queue.escaping import shortened
from django_zklock.dashboard import lazy
from django_zklock.dashboard.formatting import action_text, clean, duration, host_and_pid
from django_zklock.names.template import MAX_KEY

if TYPE_CHECKING:
    from django_zklock.contrib.events.models import Attempt, OperatorAction
    from django_zklock.inspection import LockInfo

logger = Logger("django_zklock.dashboard")

MOST_GRANTS: Final = 20
"""Grants on the page of a lock."""
LEAST_TIMES: Final = 2
"""Ratio to the usual hold from which a hold is highlighted."""
LEAST_SECONDS: Final = 1.0
"""A shorter hold is never highlighted."""
WHAT: Final = {
    "actions": gettext_lazy("Operators' actions"),
    "held": gettext_lazy("Held, no end recorded"),
    "released": gettext_lazy("Held and released"),
    "lost": gettext_lazy("Held and lost"),
    "timed out": gettext_lazy("Waited, and not granted"),
}
"""The kinds of rows of the history, by `PastEvent.kind`."""

_T = TypeVar("_T")
_Tokens: TypeAlias = "set[int] | None"

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


def event_of(attempt: Attempt, held: _Tokens = None) -> PastEvent:
    """Return a row about an attempt. `held` are the tokens of the lock's present holders; None if they are unknown."""
    lasted = attempt.waited if attempt.outcome == attempt.TIMED_OUT else attempt.held
    return PastEvent(
        at=attempt.at,
        key=attempt.key,
        kind=attempt.outcome,
        what=_since_then(attempt, held) if attempt.outcome == attempt.HELD else str(WHAT[attempt.outcome]),
        by=host_and_pid(attempt.host, attempt.pid),
        work=clean(attempt.work),
        reason=clean(_(attempt.reason)),
        waited="" if attempt.waited is None else duration(attempt.waited),
        lasted="" if lasted is None else duration(lasted),
    )


def _since_then(attempt: Attempt, held: _Tokens) -> str:
    """Return what is known of a hold without an end. The row of an end is written about a second after it."""
    if held is None:
        return _("Granted; no end is recorded")
    return _("Held since then") if attempt.token in held else _("No longer held; no end is recorded")


def page(most: int, *, reply_timeout: float, **wanted: Any) -> tuple[list[PastEvent], Attempt | OperatorAction | None]:
    """
    Return the newest rows, and the first one of the next page; None after the last one. `wanted` selects rows.

    Needs the app. Raises what the database raises.
    """
    assert source is not None
    rows = source.history(most + 1, **wanted)
    is_open = any(isinstance(row, source.Attempt) and row.outcome == row.HELD for row in rows)
    held, others = _held_now(source.MAX_TEXT, reply_timeout) if is_open else ({}, None)
    events = [
        event_of(row, held.get(row.key, others)) if isinstance(row, source.Attempt) else _of_action(row) for row in rows
    ]
    return events[:most], rows[most] if len(rows) > most else None


def _held_now(column: int, reply_timeout: float) -> tuple[dict[str, _Tokens], _Tokens]:
    """Return the tokens of the holders by key in a column of this size, and of other keys; None if unknown."""
    now = lazy.inspection.snapshot(reply_timeout=reply_timeout, max_waiters=1)
    if now.problem:
        return {}, None
    locks = {shortened(lock.key, column): lock for lock in now.locks}
    held: dict[str, _Tokens] = {
        key: None if lock.problem else {holder.token for holder in lock.holders} for key, lock in locks.items()
    }
    return held, set() if now.total == len(now.locks) else None


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


def losses_of(host: str, pid: int, held: Collection[int]) -> list[PastEvent] | None:
    """Return what a host, or a process of it, has lost or has not released; None without the app."""
    if source is None:
        return None
    attempts: list[Attempt] = read(lambda source: source.last_losses(host, pid, MOST_GRANTS + len(held)), [])
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
    grants: list[Attempt] = read(lambda source: source.last_grants(lock.key, MOST_GRANTS), [])
    first = lock.holders[0] if lock.holders else None
    template = first.template if first is not None else grants[0].template if grants else ""
    usual = usual_hold(template)
    tokens = {holder.token for holder in lock.holders} if is_current and not lock.problem else None
    return Past(
        grants=tuple(event_of(attempt, tokens) for attempt in grants),
        summaries=(
            *_summary(_("Hold"), [grant.held for grant in grants]),
            *_summary(_("Wait"), [grant.waited for grant in grants]),
        ),
        usual="" if usual is None else duration(usual),
        times="" if first is None else times_usual(first.certain_duration, template),
    )


def _summary(title: str, values: Sequence[float | None]) -> list[tuple[str, str]]:
    """Return the figures, if there are two or more. A hold without an end has no duration, and is left out."""
    seconds = [value for value in values if value is not None]
    if len(seconds) < 2:
        return []
    middle, longest = duration(statistics.median(seconds)), duration(max(seconds))
    text = _("The last %(count)d: median %(middle)s, longest %(longest)s")
    return [(title, text % {"count": len(seconds), "middle": middle, "longest": longest})]
