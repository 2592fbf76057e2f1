"""The views of the past: the history of one lock and of all, as pages and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import astuple, fields, replace
from datetime import timedelta
from typing import Any, Final

from django.contrib.admin.utils import unquote
from django.db import Error
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.utils.http import urlencode
from django.utils.translation import get_language, override
from django.utils.translation import gettext as _

from django_zklock.dashboard import past
from django_zklock.dashboard.formatting import clean
from django_zklock.dashboard.forms import HistoryForm
from django_zklock.dashboard.pages import UNAVAILABLE, Breadcrumb, LockPages, logger
from django_zklock.queue.names import MAX_KEY

PAGE: Final = 50
"""Rows of a page."""
MOST_ACTIONS: Final = 10
"""Earlier actions of operators below the first page."""
CSV_ROWS: Final = 500
"""Rows of a download that are read together."""
FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""How a cell begins that a spreadsheet would compute."""


class HistoryViews(LockPages):
    """The history of one lock and of all; a part of `LockAdminMixin`."""

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse | StreamingHttpResponse:
        """Show what has happened to a lock."""
        self.require(self.has_view_permission(request))
        lock = self.get_object(request, unquote(object_id))
        if lock is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[attr-defined,no-any-return]
        title = _("History of %(lock)s") % {"lock": clean(lock.key, MAX_KEY)}
        context = {"title": title, "original": Breadcrumb(title, pk=lock.key), "key": lock.key}
        return self._history_page(request, lock.key, {**context, **(extra_context or {})})

    def all_history_view(self, request: HttpRequest) -> HttpResponse | StreamingHttpResponse:
        """Show what has happened to all locks."""
        self.require(self.has_view_permission(request))
        return self._history_page(request, "", {"title": _("History of all locks"), "key": ""})

    def _history_page(
        self, request: HttpRequest, key: str, context: dict[str, Any]
    ) -> HttpResponse | StreamingHttpResponse:
        """Show the rows that the filter selects, or send them as CSV."""
        form = HistoryForm(request.GET)
        if key:
            del form.fields["part"]
        wanted = replace(form.wanted(), key=key)
        context |= {"filters": form, "has_past": past.source is not None, "scope": past.scope()}
        if not form.is_valid():
            return self.page(request, "history", context, status=400)
        try:
            context["events"], older = past.page(wanted, PAGE, reply_timeout=self.reply_timeout)
            if request.GET.get("format") == "csv":
                rows = _csv(replace(wanted, until=form.cleaned_data["until"]), self.reply_timeout, get_language())
                headers = {"Content-Disposition": 'attachment; filename="locks.csv"', "Cache-Control": "no-store"}
                return StreamingHttpResponse(rows, content_type="text/csv; charset=utf-8", headers=headers)
            if older is not None and not wanted.what and not form.cleaned_data["before"]:
                until = context["events"][-1].at - timedelta(microseconds=1)
                earlier = replace(wanted, what="actions", until=until)
                context["actions"], _more = past.page(earlier, MOST_ACTIONS, reply_timeout=self.reply_timeout)
        except Error:
            logger.exception("the table of events cannot be read")
            return self.page(request, "history", {**context, "unreadable": True}, status=UNAVAILABLE)
        given = {name: str(value) for name, value in request.GET.dict().items() if name in form.fields}
        context["csv_query"] = _query({**given, "before": "", "format": "csv"})
        context["newest_query"] = _query({**given, "before": ""}) if form.cleaned_data["before"] else ""
        context["older_query"] = _query({**given, "before": older.isoformat()}) if older is not None else ""
        return self.page(request, "history", context)


def _query(values: dict[str, str]) -> str:
    return "?" + urlencode({name: value for name, value in values.items() if value})


def _csv(wanted: past.Filter, reply_timeout: float, language: str | None) -> Iterator[str]:
    """Return the lines of all rows. A text never begins like a formula."""
    yield _line([field.name for field in fields(past.PastEvent)])
    while True:
        with override(language):  # the server may ask for the next lines in another thread
            events, until = past.page(wanted, CSV_ROWS, reply_timeout=reply_timeout)
        yield "".join(_line([event.at.isoformat(), *astuple(event)[1:]]) for event in events)
        if until is None:
            return
        wanted = replace(wanted, until=until)


def _line(cells: list[str]) -> str:
    line = io.StringIO()
    csv.writer(line).writerow([f"'{cell}" if cell.startswith(FORMULA) else cell for cell in cells])
    return line.getvalue()
