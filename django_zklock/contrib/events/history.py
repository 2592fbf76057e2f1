"""The history of the locks, from the tables: panels and a page in the admin, and figures for its other pages."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from datetime import timezone as zones
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast

from django import forms
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import Error
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_zklock.contrib.events import chart, facts, table
from django_zklock.contrib.events.models import MAX_TEXT, Attempt, OperatorAction
from django_zklock.core.log import Logger
from django_zklock.core.queue.escaping import shortened
from django_zklock.core.queue.untrusted import LATEST
from django_zklock.names.template import MAX_KEY
from django_zklock.report import formatting, lazy, past, timeline
from django_zklock.report.formatting import action_text, clean, duration, host_and_pid, key_text
from django_zklock.report.incident import times_usual

if TYPE_CHECKING:
    from django_zklock.dashboard.views import LockViews
    from django_zklock.inspection import LockInfo, Snapshot
    from django_zklock.operations.audit import Action

logger = Logger("django_zklock.dashboard")

MOST_GRANTS: Final = 20
"""Grants on the page of a lock."""
HISTORY_ROWS: Final = 50
"""Rows of a page of the history."""
MOST_FOLDED: Final = 500
"""Ordinary releases that a page folds."""
RECENT_ACTIONS: Final = 30
"""Last actions among which the forms look for reasons."""
RECENT_REASONS: Final = 5
CSV_ROWS: Final = 10_000
"""Rows of a download of it; the filter by time reaches the others."""
FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""How a cell begins that a spreadsheet would compute."""
WHAT: Final = {
    "actions": gettext_lazy("Operators' actions"),
    "held": gettext_lazy("Held, no end recorded"),
    "released": gettext_lazy("Held and released"),
    "lost": gettext_lazy("Held and lost"),
    "timed out": gettext_lazy("Waited, and not granted"),
    "deadlock": gettext_lazy("Deadlock"),
    "stale": gettext_lazy("Fenced write refused"),
    "refused": gettext_lazy("Release refused"),
}
"""The kinds of rows of the history, by `PastEvent.kind`."""
_LOCAL_TIME: Final = forms.DateTimeInput(format="%Y-%m-%dT%H:%M", attrs={"type": "datetime-local"})
# Databases do not find a time that is in another year than 1 to 9999 in UTC.
_YEARS: Final = [
    MinValueValidator(datetime(1900, 1, 1, tzinfo=zones.utc)),
    MaxValueValidator(datetime(2999, 1, 1, tzinfo=zones.utc)),
]

_Tokens: TypeAlias = "set[int] | None"


def lock_panel(lock: LockInfo, *, is_current: bool = True) -> Panel:
    """Return the panel of the page of a lock. `is_current`: the state is not an old one."""
    grants = table.last_grants(lock.key, MOST_GRANTS)
    first = lock.holders[0] if lock.holders else None
    is_known = is_current and not lock.problem
    templates = [holder.template for holder in lock.holders] + [grant.template for grant in grants]
    template = templates[0] if templates else ""
    tokens = {holder.token for holder in lock.holders} if is_known else None
    events = _events_of(grants, lambda attempt: tokens)
    content = Past(
        chart=past.ask("chart.series_of", lock.key, [lock] if is_known else None, default=[]),
        bars=_bars(grants, events, tokens),
        grants=tuple(events),
        summaries=(
            *_summary(_("Hold"), [grant.held for grant in grants]),
            *_summary(_("Wait"), [grant.waited for grant in grants]),
        ),
        usual=duration(past.ask("facts.usual_hold", template)),
        times="" if first is None else times_usual(first.certain_duration, template),
    )
    return Panel("admin/zklock/lock/grants.html", content)


def _bars(grants: Sequence[Attempt], events: Sequence[PastEvent], held: _Tokens) -> list[timeline.Bar]:
    """Return the bars of the grants that are over; the queue has the others."""
    pairs = zip(grants, events, strict=True)
    return [_bar(row, event, held) for row, event in pairs if row.token not in (held or ()) or row.outcome != row.HELD]


def _bar(attempt: Attempt, event: PastEvent, held: _Tokens) -> timeline.Bar:
    ago = max(0.0, (timezone.now() - attempt.at).total_seconds())
    is_open = attempt.outcome == Attempt.HELD
    name = f"{event.who} · {event.work}"
    return timeline.Bar(
        name,
        began=ago + (event.waited or 0.0),
        granted=ago,
        ended=max(0.0, ago - (event.lasted or 0.0)),
        is_bad=attempt.outcome == Attempt.LOST or (is_open and held is not None and not _is_recent(attempt)),
        is_shared=attempt.kind != "lock",
        text=timeline.in_words(name, event.waited, event.lasted, event.what),
    )


def chart_panel(snapshot: Snapshot) -> Panel | None:
    """Return the panel of the first page and of the list; None if there is nothing to show."""
    locks = None if snapshot.problem else snapshot.locks
    series = chart.series_of("", locks, complete=snapshot.complete)
    return Panel("admin/zklock/lock/chart.html", series) if series else None


def recent_reasons() -> list[str]:
    """Return the last few reasons of operators, for the forms."""
    rows = OperatorAction._default_manager.exclude(reason="").order_by("-at").values_list("reason", flat=True)
    return list(dict.fromkeys(rows[:RECENT_ACTIONS]))[:RECENT_REASONS]


def host_panel(host: str, pid: int, held: Collection[int]) -> Panel:
    """Return the panel of a host, or of a process of it. `held` are the tokens of its present holds."""
    attempts = table.last_losses(host, pid, MOST_GRANTS + len(held))
    rows = [attempt for attempt in attempts if attempt.token not in held and not _is_recent(attempt)][:MOST_GRANTS]
    return Panel("admin/zklock/lock/losses.html", by_day(_events_of(rows, lambda attempt: set(held))))


def page(pages: LockViews, request: HttpRequest, key: str, extra_context: dict[str, Any] | None = None) -> HttpResponse:
    """Show the rows of a lock, or of all if the key is empty, that the filter selects; or send them as CSV."""
    from django_zklock.dashboard.views import UNAVAILABLE, Breadcrumb  # noqa: PLC0415 - a project may have no admin

    title = _("History of %(lock)s") % {"lock": key_text(key, MAX_KEY)} if key else _("History of all locks")
    form = HistoryForm(request.GET)
    context = {"title": title, "key": key, "filters": form, "query": request.GET, **(extra_context or {})}
    if key:
        context.setdefault("original", Breadcrumb(title, pk=key))
    if not form.is_valid():
        return pages.page(request, "history", context, status=400)
    is_csv = request.GET.get("format") == "csv"
    wanted = {**form.cleaned_data, "key": key}
    try:
        most = CSV_ROWS if is_csv else HISTORY_ROWS
        folds = not (is_csv or wanted["what"])
        rows, older = history(most, reply_timeout=pages.reply_timeout, folds=folds, **wanted)
    except Error:
        logger.exception("the table of events cannot be read")
        return pages.page(request, "history", {**context, "unreadable": True}, status=UNAVAILABLE)
    if is_csv:
        return _csv(rows)
    days = by_day(rows, folds=folds)
    return pages.page(request, "history", {**context, "days": days, "older": older, "kinds": WHAT.items()})


def history(
    most: int, *, reply_timeout: float, folds: bool = False, **wanted: Any
) -> tuple[list[PastEvent], Attempt | OperatorAction | None]:
    """
    Return the newest rows, and the first one of the next page; None after the last one. `wanted` selects rows.

    If the page `folds` ordinary releases, those between its rows are added, `MOST_FOLDED` at most. Raises what the
    database raises.
    """
    rows = table.history(most + 1, without=Attempt.RELEASED if folds else "", **wanted)
    older = rows[most] if len(rows) > most else None
    rows = rows[:most]
    if folds:
        since = wanted.get("since") if older is None else older.at
        rows += table.history(MOST_FOLDED, **{**wanted, "what": Attempt.RELEASED, "since": since})
        rows.sort(key=lambda row: row.at, reverse=True)
    is_open = any(isinstance(row, Attempt) and row.outcome == row.HELD for row in rows)
    held, others = _held_now(reply_timeout) if is_open else ({}, None)
    return _events_of(rows, lambda attempt: held.get(attempt.key, others)), older


class HistoryForm(forms.Form):
    """Which rows of the history to show."""

    part = forms.CharField(label=gettext_lazy("Lock"), required=False)
    what = forms.ChoiceField(required=False, choices=[("", ""), *WHAT.items()], widget=forms.HiddenInput)
    """The page has links for it."""
    who = forms.CharField(label=gettext_lazy("Who, or which work"), required=False)
    host = forms.CharField(label=gettext_lazy("Host"), required=False)
    since = forms.DateTimeField(label=gettext_lazy("From"), required=False, widget=_LOCAL_TIME, validators=_YEARS)
    until = forms.DateTimeField(label=gettext_lazy("Until"), required=False, widget=_LOCAL_TIME, validators=_YEARS)
    before = forms.DateTimeField(required=False, widget=forms.HiddenInput, validators=_YEARS)
    row = forms.IntegerField(required=False, widget=forms.HiddenInput)
    """Where the page begins: the time of its first row, and the primary key."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for field in self.fields.values():
            field.widget.attrs["form"] = "zklock-filter"  # the fields are inside of another form element


@dataclass(frozen=True, slots=True, kw_only=True)
class PastEvent:
    """A row of the history, or of the last grants of a lock."""

    at: datetime
    key: str
    kind: str
    """A key of `WHAT`."""
    what: str
    host: str = ""
    pid: int = 0
    by: str = ""
    """The operator of an action."""
    work: str = ""
    via: str = ""
    """The origin of an operator's action."""
    reason: str = ""
    waited: float | None = None
    """Seconds."""
    lasted: float | None = None
    """Seconds for which it was held; for a wait that timed out, for which it waited."""

    @property
    def who(self) -> str:
        """Return the process, or the operator."""
        return self.by or host_and_pid(self.host, self.pid)

    def as_json(self) -> dict[str, Any]:
        """Return the fields for JSON and CSV. The time is in UTC, and what is absent is null."""
        known = {**asdict(self), "at": self.at.astimezone(zones.utc).isoformat(), "pid": self.pid or None}
        return {name: None if value == "" else value for name, value in known.items()}


class Entry(NamedTuple):
    """A row of the page: an event, or ordinary releases that follow each other, newest first."""

    events: list[PastEvent]

    @property
    def keys(self) -> list[str]:
        """Return the locks."""
        return list(dict.fromkeys(event.key for event in self.events))

    @property
    def since(self) -> datetime:
        """Return the time of the oldest one."""
        return self.events[-1].at

    @property
    def who(self) -> str:
        """Return the processes, or the operator."""
        names = list(dict.fromkeys(event.who for event in self.events))
        return ", ".join(names[:2]) + (" …" if names[2:] else "")

    @property
    def lasted(self) -> str:
        """Return how long, or the shortest and the longest time."""
        spans = sorted(event.lasted for event in self.events if event.lasted is not None)
        return " – ".join(dict.fromkeys(duration(span) for span in (*spans[:1], *spans[-1:])))


def by_day(events: Sequence[PastEvent], *, folds: bool = False) -> list[tuple[datetime, list[Entry]]]:
    """
    Return the rows of each day, with its newest time.

    Ordinary releases of a lock that follow each other are one row; if the page `folds`, those of all locks.
    """
    days: list[tuple[datetime, list[Entry]]] = []
    for event in events:
        if not days or formatting.local(days[-1][0]).date() != formatting.local(event.at).date():
            days.append((event.at, []))
        entries = days[-1][1]
        before = entries[-1].events if entries else [event]
        is_ordinary = event.kind == before[0].kind == Attempt.RELEASED
        if entries and is_ordinary and (folds or event.key == before[0].key):
            before.append(event)
        else:
            entries.append(Entry([event]))
    return days


def _events_of(records: Sequence[Attempt | OperatorAction], held: Callable[[Attempt], _Tokens]) -> list[PastEvent]:
    """Return rows about these records. `held` returns the tokens of a lock's present holders; None if unknown."""
    attempts = [record for record in records if isinstance(record, Attempt)]
    broken: dict[tuple[str, int | None], str] = past.ask("table.broken_by", attempts, default={})
    open_rows = [row for row in attempts if row.outcome == row.HELD and (row.key, row.token) not in broken]
    over = [row for row in open_rows if (tokens := held(row)) is not None and row.token not in tokens]
    past.ask("facts.settle", over)
    return [
        _of_attempt(record, held(record), broken.get((record.key, record.token), ""))
        if isinstance(record, Attempt)
        else _of_action(record)
        for record in records
    ]


def _of_attempt(attempt: Attempt, held: _Tokens, broken_by: str) -> PastEvent:
    lasted = attempt.waited if attempt.outcome in {attempt.TIMED_OUT, attempt.DEADLOCK} else attempt.held
    return PastEvent(
        at=attempt.at,
        key=attempt.key,
        kind=attempt.outcome,
        what=_since_then(attempt, held, broken_by) if attempt.outcome == attempt.HELD else _end_of(attempt),
        host=clean(attempt.host),
        pid=attempt.pid,
        work=clean(attempt.work),
        reason=clean(_(attempt.reason)) if attempt.outcome != attempt.DEADLOCK else "",
        waited=_span(attempt.waited),
        lasted=_span(lasted),
    )


def _span(seconds: float | None) -> float | None:
    """Return a number that JSON can have: the table may have any."""
    return None if seconds is None else round(min(max(0.0, seconds), LATEST), 3)


def _end_of(attempt: Attempt) -> str:
    if attempt.outcome == Attempt.TIMED_OUT and not attempt.waited:
        text = ngettext("Refused at once: %(count)d try", "Refused at once: %(count)d tries", attempt.count)
        return text % {"count": attempt.count}
    if attempt.outcome == Attempt.DEADLOCK:
        ended = attempt.waited is not None
        text = _("Deadlock: held %(key)s; its wait was ended") if ended else _("Deadlock: held %(key)s")
        return text % {"key": key_text(attempt.reason)}
    return str(WHAT.get(attempt.outcome) or clean(attempt.outcome))  # another release knows more outcomes


def _is_recent(attempt: Attempt) -> bool:
    """Return whether a hold is so young that its end may not be in the table yet."""
    return attempt.outcome == attempt.HELD and attempt.at > table.ago(facts.LATE)


def _since_then(attempt: Attempt, held: _Tokens, broken_by: str) -> str:
    """Return what is known of a hold without an end. The row of an end is written about a second after it."""
    if held is not None and attempt.token in held:
        return _("Held since then")
    if broken_by:
        return _("Broken by %(name)s; no end of its work is recorded") % {"name": clean(broken_by)}
    if held is None:
        return _("Granted; its end is not known")
    return _("Released a moment ago") if _is_recent(attempt) else _("Process ended, no end is recorded")


def _held_now(reply_timeout: float) -> tuple[dict[str, _Tokens], _Tokens]:
    """Return the tokens of the holders by key as in the tables, and of other keys; None if unknown."""
    now = lazy.inspection.snapshot(reply_timeout=reply_timeout)
    if now.problem:
        return {}, None
    locks = {shortened(lock.key, MAX_TEXT): lock for lock in now.locks}
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
        what=action_text(cast("Action", action)),  # the row has its fields
        by=clean(action.by),
        via=origins.get(action.via, clean(action.via)),
        reason=clean(action.reason, MAX_KEY),
    )


class Panel(NamedTuple):
    """A part of a page. The template gets its content as `content`."""

    template: str
    content: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """The past of a lock."""

    chart: Sequence[tuple[str, Sequence[Any]]]
    bars: list[timeline.Bar]
    """Those that are over, newest first."""
    grants: tuple[PastEvent, ...]
    summaries: tuple[tuple[str, str], ...]
    """The title and the text of a summary of the holds, and of one of the waits."""
    usual: str
    """The usual hold of its template."""
    times: str
    """The ratio of the present hold to it, as a text; empty for an ordinary hold."""

    @property
    def released(self) -> list[PastEvent]:
        """Return the grants that were simply released."""
        return [grant for grant in self.grants if grant.kind == Attempt.RELEASED]

    @property
    def others(self) -> list[PastEvent]:
        """Return the other grants."""
        return [grant for grant in self.grants if grant.kind != Attempt.RELEASED]


def _summary(title: str, values: Sequence[float | None]) -> list[tuple[str, str]]:
    """Return the figures, if there are two or more. A hold without an end has no duration, and is left out."""
    seconds = [value for value in values if value is not None]
    if len(seconds) < 2:
        return []
    middle, longest = duration(statistics.median(seconds)), duration(max(seconds))
    text = _("The last %(count)d: median %(middle)s, longest %(longest)s")
    return [(title, text % {"count": len(seconds), "middle": middle, "longest": longest})]


def _csv(events: Sequence[PastEvent]) -> HttpResponse:
    """Return the rows as a file. No text begins like a formula."""
    headers = {"Content-Disposition": 'attachment; filename="locks.csv"', "Cache-Control": "no-store"}
    response = HttpResponse(content_type="text/csv; charset=utf-8", headers=headers)
    writer = csv.writer(response)
    writer.writerow([field.name for field in fields(PastEvent)])
    for event in events:
        cells = ("" if value is None else str(value) for value in event.as_json().values())
        writer.writerow([f"'{cell}" if cell.startswith(FORMULA) else cell for cell in cells])
    return response
