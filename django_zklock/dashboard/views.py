"""The views of a lock, of groups, of the health and of JSON, and those to hold a lock and to set a limit."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.contrib.auth.decorators import login_not_required, permission_required
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, JsonResponse
from django.urls import path, re_path
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from django_zklock.dashboard import extension, incidents, lazy
from django_zklock.dashboard.changelist import GROUPINGS, grouped
from django_zklock.dashboard.formatting import CONNECTION_LABELS, MAX_ERROR, clean, limit_text, time_text
from django_zklock.dashboard.forms import HoldForm, LimitForm
from django_zklock.dashboard.holder_views import HolderViews
from django_zklock.dashboard.pages import CONFLICT, UNAVAILABLE, Breadcrumb, user_name
from django_zklock.exceptions import ZkLockError, ZooKeeperUnavailable
from django_zklock.names.template import MAX_KEY, is_key

if TYPE_CHECKING:
    from django_zklock.inspection import LockInfo, Snapshot


class LockViews(HolderViews):
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
            "panel": extension.installed.lock_panel(shown.info, is_current=not shown.problem),
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
        """Show the history of a lock that an app adds. Without one, show the actions in Django's own log."""
        self.require(self.has_view_permission(request))
        lock = self.get_object(request, unquote(object_id))
        page = extension.installed.history_page(self, request, lock.key, extra_context) if lock is not None else None
        return page or super().history_view(request, object_id, extra_context)  # type: ignore[misc]

    def all_history_view(self, request: HttpRequest) -> HttpResponse:
        """Show the history of all locks that an app adds. Without one, say what to install."""
        self.require(self.has_view_permission(request))
        page = extension.installed.history_page(self, request, "")
        return page or self.page(request, "no_history", {"title": _("History of all locks")})

    def hold_view(self, request: HttpRequest) -> HttpResponse:
        """Hold a lock for the user, with a reason and an end."""
        self.require(self.has_hold_permission(request))
        form = HoldForm(request.POST or None, initial={"key": request.GET.get("key", "")[:MAX_KEY]})
        status = 200
        if form.is_valid():
            given = form.cleaned_data
            key, seconds, by = given["key"], given["minutes"] * 60, user_name(request)
            try:
                hold = lazy.operations.hold_lock(
                    key, seconds=seconds, reason=given["reason"], by=by, wait=given["wait"]
                )
            except (ZkLockError, ValueError) as error:
                status = _refuse(form, error)
            else:
                text = _("You hold the lock '%(lock)s' until %(until)s.")
                values = {"lock": clean(key), "until": time_text(hold.until)}
                self.show_message(request, text % values, messages.SUCCESS)
                return self.redirect_to({key})
        return self.page(request, "hold", {"title": _("Hold a lock"), "form": form}, status)

    def limit_view(self, request: HttpRequest) -> HttpResponse:
        """Set the limit of a semaphore for all processes, or clear it. Show the present one."""
        self.require(self.has_limit_permission(request))
        key, clear, status = request.GET.get("key", ""), "clear" in request.POST, 200
        form = LimitForm(request.POST or None, clear=clear, initial={"key": key if is_key(key) else ""})
        if form.is_valid():
            given = form.cleaned_data
            try:
                self._change_limit(request, given["key"], None if clear else given["permits"], given["reason"])
            except (ZkLockError, ValueError) as error:
                status = _refuse(form, error)
            else:
                return self.redirect_to({given["key"]})
        key = form.cleaned_data.get("key", "") if form.is_bound else form.initial["key"]
        context: dict[str, Any] = {"title": _("Set a limit"), "form": form, "key": key}
        if key and status != UNAVAILABLE:
            try:
                limit = lazy.operations.limit_of(key, reply_timeout=self.reply_timeout)
            except (ZkLockError, ValueError) as error:
                context["problem"] = clean(error, MAX_ERROR)
                status = UNAVAILABLE if isinstance(error, ZooKeeperUnavailable) else status
            else:
                context["limit"] = limit and limit_text(limit)
        return self.page(request, "limit", context, status)

    def _change_limit(self, request: HttpRequest, key: str, limit: int | None, reason: str) -> None:
        by = user_name(request)
        values = {"limit": limit, "lock": clean(key)}
        if limit is not None:
            lazy.operations.set_limit(key, limit, reason=reason, by=by)
            text, level = _("The limit of %(lock)s is now %(limit)d, for all processes."), messages.SUCCESS
        elif lazy.operations.clear_limit(key, reason=reason, by=by):
            text = _("The limit of %(lock)s was cleared. Each process uses the limit in its code again.")
            level = messages.SUCCESS
        else:
            text, level = _("No limit was set for the lock '%(lock)s'."), messages.WARNING
        self.show_message(request, text % values, level)

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


def _refuse(form: forms.Form, error: Exception) -> int:
    """Show in a form why nothing was done; return the status of the page."""
    form.add_error(None, clean(error, MAX_ERROR))
    return UNAVAILABLE if isinstance(error, ZooKeeperUnavailable) else CONFLICT


def _json(snapshot: Snapshot) -> JsonResponse:
    from django_zklock.inspection.info import to_json  # noqa: PLC0415 - imports kazoo

    return JsonResponse(to_json(snapshot))
