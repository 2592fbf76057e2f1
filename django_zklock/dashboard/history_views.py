"""The views of the past: the history of one lock and of all, as pages and as CSV."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import astuple, fields
from typing import Any, Final

from django.contrib.admin.utils import unquote
from django.db import Error
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from django_zklock.dashboard import past
from django_zklock.dashboard.formatting import clean
from django_zklock.dashboard.forms import HistoryForm
from django_zklock.dashboard.pages import UNAVAILABLE, Breadcrumb, LockPages, logger
from django_zklock.queue.names import MAX_KEY

PAGE: Final = 50
"""Rows of a page."""
CSV_ROWS: Final = 10_000
"""Rows of a download; the filter by time reaches the others."""
FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""How a cell begins that a spreadsheet would compute."""


class HistoryViews(LockPages):
    """The history of one lock and of all; a part of `LockAdminMixin`."""

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show what has happened to a lock. Without `contrib.events`, show the actions in Django's own log."""
        self.require(self.has_view_permission(request))
        lock = self.get_object(request, unquote(object_id))
        if lock is None or past.source is None:
            return super().history_view(request, object_id, extra_context)  # type: ignore[misc,no-any-return]
        title = _("History of %(lock)s") % {"lock": clean(lock.key, MAX_KEY)}
        context = {"title": title, "original": Breadcrumb(title, pk=lock.key), "key": lock.key}
        return self._history_page(request, lock.key, {**context, **(extra_context or {})})

    def all_history_view(self, request: HttpRequest) -> HttpResponse:
        """Show what has happened to all locks."""
        self.require(self.has_view_permission(request))
        return self._history_page(request, "", {"title": _("History of all locks"), "key": ""})

    def _history_page(self, request: HttpRequest, key: str, context: dict[str, Any]) -> HttpResponse:
        """Show the rows that the filter selects, or send them as CSV."""
        if past.source is None:
            return self.page(request, "history", context)
        form = HistoryForm(request.GET)
        context |= {"filters": form, "has_past": True, "query": request.GET}
        if not form.is_valid():
            return self.page(request, "history", context, status=400)
        is_csv = request.GET.get("format") == "csv"
        wanted = {**form.cleaned_data, "key": key}
        try:
            rows, older = past.page(CSV_ROWS if is_csv else PAGE, reply_timeout=self.reply_timeout, **wanted)
        except Error:
            logger.exception("the table of events cannot be read")
            return self.page(request, "history", {**context, "unreadable": True}, status=UNAVAILABLE)
        return _csv(rows) if is_csv else self.page(request, "history", {**context, "events": rows, "older": older})


def _csv(events: Sequence[past.PastEvent]) -> HttpResponse:
    """Return the rows as a file. No text begins like a formula."""
    headers = {"Content-Disposition": 'attachment; filename="locks.csv"', "Cache-Control": "no-store"}
    response = HttpResponse(content_type="text/csv; charset=utf-8", headers=headers)
    writer = csv.writer(response)
    writer.writerow([field.name for field in fields(past.PastEvent)])
    for event in events:
        cells = map(str, astuple(event))
        writer.writerow([f"'{cell}" if cell.startswith(FORMULA) else cell for cell in cells])
    return response
