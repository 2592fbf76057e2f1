"""The views that change nothing: the page of one lock, groups, the history, and all locks as JSON."""

from __future__ import annotations

import csv
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, fields
from typing import TYPE_CHECKING, Any, Final

from django.contrib.admin.utils import unquote
from django.contrib.auth.decorators import login_not_required, permission_required
from django.db import Error
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, JsonResponse
from django.urls import path, re_path
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from django_zklock.dashboard import incidents, lazy, past
from django_zklock.dashboard.changelist.filters import GROUPINGS, grouped
from django_zklock.dashboard.formatting import CONNECTION_LABELS, clean
from django_zklock.dashboard.forms import HistoryForm
from django_zklock.dashboard.holder_views import HolderViews
from django_zklock.dashboard.operator_views import OperatorViews
from django_zklock.dashboard.pages import UNAVAILABLE, Breadcrumb, logger
from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.names.template import MAX_KEY

if TYPE_CHECKING:
    from django_zklock.inspection import LockInfo, Snapshot


HISTORY_ROWS: Final = 50
"""Rows of a page of the history."""
CSV_ROWS: Final = 10_000
"""Rows of a download of it; the filter by time reaches the others."""
FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""How a cell begins that a spreadsheet would compute."""


class LockViews(HolderViews, OperatorViews):
    """All views; a part of `LockAdminMixin`."""

    def get_urls(self) -> list[Any]:
        view, action = self.admin_site.admin_view, self._action_view
        own = [
            path("groups/", view(self.groups_view), name="zklock_lock_groups"),
            path("health/", view(self.health_view), name="zklock_lock_health"),
            path("history/", view(self.all_history_view), name="zklock_lock_all_history"),
            path("data.json", view(self.json_view), name="zklock_lock_json"),
            path("host/", action(self.holders_view), name="zklock_lock_host"),
            path("break/", action(self.holders_view), name="zklock_lock_break"),
            path("hold/", action(self.hold_view), name="zklock_lock_hold"),
            path("limit/", action(self.limit_view), name="zklock_lock_limit"),
        ]
        # Themes link `original` to its page. A `Breadcrumb` without a lock links to the list, which comes first here.
        no_lock = re_path("^(?P<object_id>)$", view(self.change_view), name="zklock_lock_change")
        return [*own, *super().get_urls(), no_lock]  # type: ignore[misc]

    def _action_view(self, view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
        """Return a view of the admin that records its operations as those of the user."""

        @functools.wraps(view)
        def run(request: HttpRequest) -> HttpResponse:
            with lazy.operations.acting_via("admin") as actions:
                try:
                    return view(request)
                finally:
                    for action in actions:
                        self.record_action(request, action)

        return self.admin_site.admin_view(run)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the holders and waiters of one lock, and the possible actions."""
        self.require(self.has_view_permission(request))
        if request.method not in {"GET", "HEAD"}:
            return HttpResponseNotAllowed(["GET", "HEAD"])
        lock = self.get_object(request, unquote(object_id))
        if lock is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)
        shown = self.read_lock(lock.key)
        context = {
            "title": clean(lock.key, MAX_KEY),
            "subtitle": None,
            "original": Breadcrumb(lock.key, pk=lock.key),
            "change": True,
            "show_history": True,
            "lock": shown,
            "past": past.past_of(shown.info, is_current=not shown.problem),
            **(extra_context or {}),
        }
        return self.page(request, "detail", context)

    def groups_view(self, request: HttpRequest) -> HttpResponse:
        """Show the locks in groups: by path, template or host."""
        self.require(self.has_view_permission(request))
        by = request.GET.get("by", "path")
        if by not in GROUPINGS:
            by = "path"
        within = request.GET.get("in", "") if by == "path" else ""
        snapshot = self.snapshot(request)
        here = self.url("groups")
        context = {
            "title": clean(within, MAX_KEY) or _("Groups of locks"),
            "by": by,
            "groupings": [(name, label, f"{here}?{urlencode({'by': name})}") for name, label in GROUPINGS.items()],
            "groups": self._group_rows(grouped(snapshot.locks, by, within), by),
            "problem": clean(snapshot.problem),
            "age": snapshot.age,
        }
        return self.page(request, "groups", context)

    def _group_rows(self, groups: Mapping[str, list[LockInfo]], by: str) -> list[dict[str, Any]]:
        """Return the groups with their figures, those with the longest wait and then the longest hold first."""
        figures = {name: lazy.inspection.Figures.of(locks) for name, locks in sorted(groups.items())}
        rows = []
        for name in sorted(figures, key=lambda name: figures[name].trouble, reverse=True):
            list_url = f"{self.url('changelist')}?{urlencode({by: name})}"
            deeper = by == "path" and name.endswith("/")
            url = f"{self.url('groups')}?{urlencode({'by': by, 'in': name})}" if deeper else list_url
            url = self.host_url(name) if by == "host" and name else url
            shown = clean(name, 200) or _("(none)")
            rows.append({"name": shown, "figures": figures[name], "url": url, "list_url": list_url})
        return rows

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
            rows, older = past.page(CSV_ROWS if is_csv else HISTORY_ROWS, reply_timeout=self.reply_timeout, **wanted)
        except Error:
            logger.exception("the table of events cannot be read")
            return self.page(request, "history", {**context, "unreadable": True}, status=UNAVAILABLE)
        return _csv(rows) if is_csv else self.page(request, "history", {**context, "events": rows, "older": older})

    def health_view(self, request: HttpRequest) -> HttpResponse:
        """Show the servers of the ensemble, and what is wrong with them."""
        self.require(self.has_view_permission(request))
        report = lazy.inspection.ensemble(reply_timeout=self.reply_timeout)
        connection = lazy.inspection.connection()
        context = {
            "title": _("Health of ZooKeeper"),
            "connection": connection,
            "connection_label": CONNECTION_LABELS[connection.state],
            "servers": report.servers,
            "findings": report.findings,
        }
        return self.page(request, "health", context)

    def json_view(self, request: HttpRequest) -> HttpResponse:
        self.require(self.has_view_permission(request))
        return _json(self.snapshot(request))


@never_cache
@require_safe
@permission_required("zklock.view_lock", raise_exception=True)
def locks_json(request: HttpRequest) -> HttpResponse:
    """Return all locks as JSON, or 403 without the permission `zklock.view_lock`; for a project's own `urls.py`."""
    return _json(lazy.inspection.snapshot(max_waiters=1))


@never_cache
@require_safe
@permission_required("zklock.view_lock", raise_exception=True)
def incidents_json(request: HttpRequest) -> HttpResponse:
    """Return what needs attention as JSON: 200 if nothing does, else 503; 403 without the permission to view locks."""
    report = incidents.report(1.5)
    return JsonResponse(report, status=200 if report["healthy"] else UNAVAILABLE)


@login_not_required
@never_cache
@require_safe
def health_json(request: HttpRequest) -> HttpResponse:
    """Return 200 if a quorum of ZooKeeper's servers answers, else 503; for a project's own `urls.py`, without login."""
    try:
        lazy.inspection.check_quorum()
    except ZooKeeperUnavailable:
        return JsonResponse({"healthy": False}, status=503, headers={"Retry-After": "1"})
    return JsonResponse({"healthy": True})


def _json(snapshot: Snapshot) -> JsonResponse:
    from django_zklock.inspection.serialize import to_json  # noqa: PLC0415 - imports kazoo

    return JsonResponse(to_json(snapshot))


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
