"""The pages of the locks but for the list, and their actions: one class, which `LockAdminMixin` extends by the list."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from datetime import timedelta
from functools import partial, partialmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from django import forms
from django.contrib import messages
from django.contrib.admin.helpers import AdminErrorList, AdminForm
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import quote, unquote
from django.contrib.auth.decorators import login_not_required, permission_required
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect, JsonResponse
from django.template.response import TemplateResponse
from django.urls import path, re_path, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from django_zklock import conf
from django_zklock.core.log import Logger
from django_zklock.dashboard import frame, stacks
from django_zklock.dashboard.changelist import GROUPINGS, grouped
from django_zklock.dashboard.detail import Detail, read_detail
from django_zklock.dashboard.forms import (
    MAX_TARGETS,
    TIMES,
    AcknowledgeForm,
    HoldForm,
    LimitForm,
    ReasonForm,
    Target,
    focus_first_error,
    use_widgets,
)
from django_zklock.dashboard.holders import ACTIONS, HoldersPage, Process, Results
from django_zklock.exceptions import ZkLockError, ZooKeeperUnavailable
from django_zklock.models import Lock
from django_zklock.names.template import MAX_KEY, is_key
from django_zklock.report import lazy, past, servers, verdict
from django_zklock.report.facts import Facts
from django_zklock.report.formatting import (
    CONNECTION_LABELS,
    MAX_ERROR,
    clean,
    key_text,
    limit_text,
    time_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from django.contrib.admin import AdminSite

    from django_zklock.inspection import LockInfo, Snapshot
    from django_zklock.operations.audit import Action

    _View: TypeAlias = Callable[..., HttpResponse]

logger = Logger("django_zklock.dashboard")

VIEW: Final = "zklock.view_lock"
DONE: Final = 302
FORBIDDEN: Final = 403
CONFLICT: Final = 409
UNAVAILABLE: Final = 503
INTERVALS: Final = {"2", "5", "15"}
"""Seconds between the refreshes of a page, as the script sends them."""
REFRESH_SHARE: Final = 0.8
"""How old the snapshot of a refresh may be, as a part of its interval. A page that is open alone gets a new one."""
MOST_GRANTS: Final = 20
"""Grants on the page of a lock."""
ANY_AGE: Final = 7 * 24 * 3600.0
"""Seconds: how old a snapshot may be while ZooKeeper does not answer."""
FIGURES: Final = {
    "locks": gettext_lazy("Locks"),
    "held": gettext_lazy("Held"),
    "contended": gettext_lazy("Contended"),
    "waiting": gettext_lazy("Waiting"),
    "longest_wait": gettext_lazy("Longest wait"),
    "longest_hold": gettext_lazy("Longest hold"),
}
"""By which the groups can be sorted."""
PROBE_TIMEOUT: Final = 5.0
"""Seconds that the probe of incidents waits for ZooKeeper. It reads all locks."""

_DENIED: Final = {
    "view_lock": gettext_lazy("You may not see locks."),
    "break_lock": gettext_lazy("You may see locks but not break them."),
    "request_release_lock": gettext_lazy("You may see locks but not request their release."),
    "hold_lock": gettext_lazy("You may see locks but not hold them."),
    "limit_lock": gettext_lazy("You may see locks but not set their limits."),
    "show_stack_lock": gettext_lazy("You may see locks but not what their holders do."),
}
"""The text for a user without this permission."""


class Denied(PermissionDenied):
    """The user lacks this permission."""


def shows_denial(view: _View) -> _View:
    """Return a view for users who may see locks. It shows within the admin which permission the user lacks."""

    @functools.wraps(view)
    def run(pages: LockViews, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        needed = "view_lock"
        try:
            if pages.has_view_permission(request):
                return view(pages, request, *args, **kwargs)
        except Denied as denied:
            needed = str(denied)
        context = {"title": _("Not allowed"), "text": _DENIED[needed], "permission": needed}
        return pages.page(request, "denied", context, FORBIDDEN)

    return run


@dataclass(frozen=True, slots=True)
class Breadcrumb:
    """
    The last part of the breadcrumbs: a text, with a link to the lock with the key `pk`, else to the list.

    Themes show only an object there, not a text. The text begins with a tag, so that `capfirst`, which themes use,
    leaves the first letter of a key as it is.
    """

    text: str
    pk: str = ""
    _meta: ClassVar = Lock._meta

    def __str__(self) -> str:
        return format_html("<bdi>{}</bdi>", clean(self.text, MAX_KEY))


class LockViews:
    """The pages and the actions; a part of `LockAdminMixin`."""

    admin_site: AdminSite
    opts: Any
    _get_obj_does_not_exist_redirect: _View
    reply_timeout: float
    long_held: float
    refresh: int
    formfield_overrides: Mapping[Any, Mapping[str, Any]]

    def _never(self, request: HttpRequest, *args: Any) -> bool:
        return False  # there is nothing in the database

    has_add_permission = has_change_permission = has_delete_permission = _never

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm(VIEW)  # type: ignore[union-attr]

    def _may(self, action: str, request: HttpRequest) -> bool:
        """Return True if a user may do this. A user who may not see locks may not act on them."""
        return request.user.has_perms((VIEW, f"zklock.{action}"))  # type: ignore[union-attr]

    has_break_permission = partialmethod(_may, "break_lock")
    has_hold_permission = partialmethod(_may, "hold_lock")
    has_limit_permission = partialmethod(_may, "limit_lock")
    has_request_release_permission = partialmethod(_may, "request_release_lock")
    has_show_stack_permission = partialmethod(_may, "show_stack_lock")

    def allowed(self, request: HttpRequest) -> list[str]:
        """Return the names of the actions that this user may carry out, as the templates and the buttons use them."""
        checks = {
            "ask": self.has_request_release_permission,
            "break": self.has_break_permission,
            "end": self.has_hold_permission,
            "limit": self.has_limit_permission,
        }
        if conf.current().stacks:
            checks["stack"] = self.has_show_stack_permission
        return [name for name, check in checks.items() if check(request)]

    def require(self, allowed: bool, permission: str) -> None:
        """Raise `Denied` unless this is allowed."""
        if not allowed:
            raise Denied(permission)

    def url(self, name: str, *args: str) -> str:
        """Return the address of a page, in the admin site that this one belongs to."""
        return reverse(f"admin:zklock_lock_{name}", args=args, current_app=self.admin_site.name)

    def host_url(self, host: str, pid: int = 0) -> str:
        """Return the address of the page of a host, or of one of its processes."""
        return f"{self.url('host')}?{urlencode({'host': host, 'pid': pid or ''})}"

    def snapshot(self, request: HttpRequest) -> Snapshot:
        """Return the snapshot of this request. The refreshes of all open pages that this process serves share one."""
        snapshot: Snapshot | None = getattr(request, "zklock_snapshot", None)
        if snapshot is None:
            interval = request.headers.get("X-ZkLock-Refresh", "")
            age: dict[str, Any] = {"max_age": REFRESH_SHARE * int(interval)} if interval in INTERVALS else {}
            snapshot = lazy.inspection.snapshot(reply_timeout=self.reply_timeout, **age)
            request.zklock_snapshot = snapshot  # type: ignore[attr-defined]
        return snapshot

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Lock | None:
        """Return the lock with this key, free or not, without a request to ZooKeeper: the history needs none."""
        return Lock(key=object_id) if is_key(object_id) else None

    def read_lock(self, key: str) -> Detail:
        """Return the state of one lock. If ZooKeeper does not answer, return the last known one, with the problem."""
        try:
            return read_detail(key, reply_timeout=self.reply_timeout, long_held=self.long_held)
        except ZooKeeperUnavailable as error:
            last = lazy.inspection.snapshot(reply_timeout=0.0, max_age=ANY_AGE)
            info = next((lock for lock in last.locks if lock.key == key), None)
            return Detail(key, info, last, long_held=self.long_held, age=last.age, problem=str(error))

    def context(self, request: HttpRequest) -> dict[str, Any]:
        """
        Return what the templates of all pages need.

        A refresh shows no messages, so that they wait for the next page that is opened: the script shows nothing of a
        refreshed page but its live parts, and several pages of one user may be open.
        """
        kept = {"messages": ()} if "X-ZkLock-Refresh" in request.headers else {}
        snapshot = getattr(request, "zklock_snapshot", None)
        around: dict[str, Any] = {"opts": frame.Named(self.opts)}
        if self.has_view_permission(request):
            around["frame"] = frame.context(self.url, request, self.long_held, snapshot)
        return {"may": self.allowed(request), "zklock_refresh": self.refresh, **around, **kept}

    def page(self, request: HttpRequest, name: str, context: dict[str, Any], status: int = 200) -> HttpResponse:
        """Return a page within the admin site that this one belongs to."""
        request.current_app = self.admin_site.name
        common = {
            **self.admin_site.each_context(request),
            **self.context(request),
            "media": self.media,  # type: ignore[attr-defined]
            "has_view_permission": self.has_view_permission(request),
            "original": Breadcrumb(context["title"]),
        }
        form: forms.Form | None = context.get("form")
        if form is not None:
            use_widgets(form, self.formfield_overrides)
            focus_first_error(form)
            shown = [name for name, field in form.fields.items() if not field.widget.is_hidden]
            common["adminform"] = AdminForm(form, [(None, {"fields": shown})], {}, model_admin=self)  # type: ignore[arg-type]
            common["errors"] = AdminErrorList(form, [])  # type: ignore[arg-type]
        template = f"admin/zklock/lock/{name}.html"
        return TemplateResponse(request, template, {**common, **context}, status=status)

    def redirect_to(self, keys: Collection[str] = ()) -> HttpResponseRedirect:
        """Redirect to the page of one lock, or to the list if there are others."""
        (key,) = keys if len(keys) == 1 else ("",)
        return HttpResponseRedirect(self.url("change", quote(key)) if key else self.url("changelist"))

    def show_message(self, request: HttpRequest, text: str, level: int) -> None:
        self.message_user(request, text, level, fail_silently=True)  # type: ignore[attr-defined]

    def record_action(self, request: HttpRequest, action: Action) -> None:
        """
        Write an action to Django's own log.

        The action is done by then and is in the audit log, so an error of the database is only logged.
        """
        message = f"{action}: {action.reason}" if action.reason else str(action)
        user: Any = request.user
        try:
            with transaction.atomic():
                LogEntry.objects.log_actions(user.pk, [Lock(key=action.key)], CHANGE, message, single_object=True)
        except Exception:
            logger.exception("an action on the lock %r is not in the history: %r", action.key, message)

    # --- The pages of the locks, and the forms of one lock ----------------------------------------------------------

    def get_urls(self) -> list[Any]:
        view, action = self.admin_site.admin_view, self._action_view
        own = [
            path("groups/", view(self.groups_view), name="zklock_lock_groups"),
            path("health/", view(self.health_view), name="zklock_lock_health"),
            path("data.json", view(self.json_view), name="zklock_lock_json"),
            path("host/", action(self.holders_view), name="zklock_lock_host"),
            path("break/", action(self.holders_view), name="zklock_lock_break"),
            path("hold/", action(self.hold_view), name="zklock_lock_hold"),
            path("acknowledge/", action(self.acknowledge_view), name="zklock_lock_acknowledge"),
            path("limit/", action(self.limit_view), name="zklock_lock_limit"),
            path("stack/", action(self.stack_view), name="zklock_lock_stack"),
        ]
        # Themes link `original` to its page. A `Breadcrumb` without a lock links to the list, which comes first here.
        no_lock = re_path("^(?P<object_id>)$", view(self.change_view), name="zklock_lock_change")
        return [*own, *super().get_urls(), no_lock]  # type: ignore[misc]

    def _action_view(self, view: _View) -> _View:
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

    @shows_denial
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the holders and waiters of one lock, and the possible actions."""
        if request.method not in {"GET", "HEAD"}:
            return HttpResponseNotAllowed(["GET", "HEAD"])
        lock = self.get_object(request, unquote(object_id))
        if lock is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)
        shown = self.read_lock(lock.key)
        grants = past.ask("last_grants", lock.key, MOST_GRANTS, default=())
        context = {
            "title": key_text(lock.key, MAX_KEY),
            "subtitle": None,
            "original": Breadcrumb(key_text(lock.key, MAX_KEY), pk=lock.key),
            "change": True,
            "show_history": True,
            "lock": shown,
            "grants": grants,
            **(extra_context or {}),
        }
        return self.page(request, "detail", context)

    @shows_denial
    def groups_view(self, request: HttpRequest) -> HttpResponse:
        """Show the locks in groups: by path, template or host."""
        by = request.GET.get("by", "path")
        if by not in GROUPINGS:
            by = "path"
        within = request.GET.get("in", "") if by == "path" else ""
        snapshot = self.snapshot(request)
        here, order = self.url("groups"), request.GET.get("o", "")
        context = {
            "title": key_text(within, MAX_KEY) or _("Groups of locks"),
            "by": by,
            "groupings": [(name, label, f"{here}?{urlencode({'by': name})}") for name, label in GROUPINGS.items()],
            "groups": self._group_rows(grouped(snapshot.locks, by, within), by, order),
            "order": order,
            "columns": FIGURES.items(),
            "problem": clean(snapshot.problem),
            "incomplete": snapshot.answers,
            "age": snapshot.age,
        }
        return self.page(request, "groups", context)

    def _group_rows(self, groups: Mapping[str, list[LockInfo]], by: str, order: str) -> list[dict[str, Any]]:
        """Return the groups, the greatest in the figure `order` first, else the longest wait, then the longest hold."""
        figures = {name: lazy.inspection.Figures.of(locks) for name, locks in sorted(groups.items())}
        order = order if order in FIGURES else "trouble"
        names = sorted(figures, key=lambda name: getattr(figures[name], order) or 0, reverse=True)
        return [
            {
                "name": key_text(name, 200) or _("(none)"),
                "url": self._group_url(by, name),
                "list_url": f"{self.url('changelist')}?{urlencode({by: name})}",
                "figures": figures[name],
                "processes": len(
                    {holder.pid for lock in groups[name] for holder in lock.holders if holder.host == name}
                ),
            }
            for name in names
        ]

    def _group_url(self, by: str, name: str) -> str:
        """Return the address of the host, of the groups in this one, or of its locks."""
        if by == "host" and name:
            return self.host_url(name)
        if by == "path" and name.endswith("/"):
            return f"{self.url('groups')}?{urlencode({'by': by, 'in': name})}"
        return f"{self.url('changelist')}?{urlencode({by: name})}"

    @shows_denial
    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the rows of an app that records events. Without one, show the actions in Django's own log."""
        if past.source is None:
            return super().history_view(request, object_id, extra_context)  # type: ignore[misc,no-any-return]
        query = urlencode({"q": unquote(object_id)})
        return HttpResponseRedirect(f"{reverse('admin:zklock_events_event_changelist')}?{query}")

    @shows_denial
    def hold_view(self, request: HttpRequest) -> HttpResponse:
        """Hold a lock for the user, with a reason and an end."""
        self.require(self.has_hold_permission(request), "hold_lock")
        asked = request.GET.get("key", "")
        form = HoldForm(request.POST or None, initial={"key": asked if is_key(asked) else ""})

        def hold(key: str, minutes: float, reason: str, wait: float) -> None:
            by = user_name(request)
            held = lazy.operations.hold_lock(key, seconds=minutes * 60, reason=reason, by=by, wait=wait)
            text = _("You hold the lock '%(lock)s' until %(until)s.")
            values = {"lock": key_text(key), "until": time_text(held.until)}
            self.show_message(request, text % values, messages.SUCCESS)

        status = carry_out(form, hold)
        if status == DONE:
            return self.redirect_to({form.cleaned_data["key"]})
        title = _("Hold %(lock)s?") % {"lock": key_text(asked)} if form.initial["key"] else _("Hold a lock")
        now = self.read_lock(asked) if form.initial["key"] and status != UNAVAILABLE else None
        return self.page(request, "hold", {"title": title, "form": form, "lock": now}, status)

    @shows_denial
    def acknowledge_view(self, request: HttpRequest) -> HttpResponse:
        """Acknowledge a present incident for a time, with a reason; 0 minutes withdraw that."""
        self.require(self.has_break_permission(request), "break_lock")
        identity = request.POST.get("identity") or request.GET.get("identity", "")
        snapshot = lazy.inspection.snapshot(reply_timeout=self.reply_timeout, max_age=0.0)
        seen = verdict.look(snapshot, verdict.servers_now(self.reply_timeout), self.long_held)
        card = next((incident.describe() for incident in seen.incidents if incident.identity == identity), None)
        if card is None:
            text = _("This incident is over. Nothing was recorded.") if seen.complete else str(seen)
            self.show_message(request, text, messages.WARNING)
            status = CONFLICT if seen.complete else UNAVAILABLE
            over = {"title": _("Acknowledge this incident?"), "back_url": self.url("changelist")}
            return self.page(request, "acknowledge", over, status)
        form = AcknowledgeForm(request.POST or None)
        status = carry_out(form, partial(self._acknowledge, request, identity, card["title"]))
        if status == DONE:
            return self.redirect_to()
        withdraws = request.GET.get("minutes") == "0"
        context = {
            "title": _("Withdraw the acknowledgement?") if withdraws else _("Acknowledge this incident?"),
            "form": form,
            "card": card,
            "times": [(0, _("Withdraw"))] if withdraws else TIMES,
        }
        return self.page(request, "acknowledge", context, status)

    def _acknowledge(self, request: HttpRequest, identity: str, title: str, minutes: float, reason: str) -> None:
        seconds = minutes * 60
        lazy.operations.acknowledge(identity, title=title, seconds=seconds, reason=reason, by=user_name(request))
        until = time_text(timezone.now() + timedelta(seconds=seconds))
        text = _("Acknowledged until %(until)s: %(title)s.") if seconds else _("Withdrawn: %(title)s.")
        withdraw = f"{self.url('acknowledge')}?{urlencode({'identity': identity, 'minutes': '0'})}"
        link = format_html(' <a href="{}">{}</a>', withdraw, _("Withdraw…")) if seconds else ""
        shown = format_html("{}{}", text % {"until": until, "title": title}, link)
        self.show_message(request, shown, messages.SUCCESS)

    @shows_denial
    def stack_view(self, request: HttpRequest) -> HttpResponse:
        """Ask the holders of a lock what they run now, and show it."""
        self.require("stack" in self.allowed(request), "show_stack_lock")
        key = request.POST.get("key", "")
        if not is_key(key):  # or a GET
            return self.redirect_to()
        try:
            shown = stacks.ask_twice(key, by=user_name(request))
        except ZkLockError as error:
            self.show_message(request, clean(error, MAX_ERROR), messages.ERROR)
            return self.redirect_to({key})
        title = _("What the holder of %(lock)s does") % {"lock": key_text(key, MAX_KEY)}
        return self.page(request, "stack", {"title": title, "key": key, "stacks": shown})

    @shows_denial
    def limit_view(self, request: HttpRequest) -> HttpResponse:
        """Set the limit of a semaphore for all processes, or clear it. Show the present one."""
        self.require(self.has_limit_permission(request), "limit_lock")
        key, clear = request.GET.get("key", ""), "clear" in request.POST
        form = LimitForm(request.POST or None, clear=clear, initial={"key": key if is_key(key) else ""})
        status = carry_out(form, partial(self._change_limit, request, clear=clear))
        if status == DONE:
            return self.redirect_to({form.cleaned_data["key"]})
        key = form.cleaned_data.get("key", "") if form.is_bound else form.initial["key"]
        title = _("Set the limit of %(lock)s?") % {"lock": key_text(key)} if key else _("Set a limit")
        context: dict[str, Any] = {"title": title, "form": form, "key": key}
        if key and status != UNAVAILABLE:
            try:
                limit = lazy.operations.limit_of(key, reply_timeout=self.reply_timeout)
                context["limit"] = limit and limit_text(limit)
            except (ZkLockError, ValueError) as error:
                context["problem"] = clean(error, MAX_ERROR)
                status = UNAVAILABLE if isinstance(error, ZooKeeperUnavailable) else status
        return self.page(request, "limit", context, status)

    def _change_limit(self, request: HttpRequest, key: str, permits: int | None, reason: str, *, clear: bool) -> None:
        by = user_name(request)
        values = {"limit": permits, "lock": key_text(key)}
        if permits is not None and not clear:
            lazy.operations.set_limit(key, permits, reason=reason, by=by)
            text, level = _("The limit of %(lock)s is now %(limit)d, for all processes."), messages.SUCCESS
        elif lazy.operations.clear_limit(key, reason=reason, by=by):
            text = _("The limit of %(lock)s was cleared. Each process uses the limit in its code again.")
            level = messages.SUCCESS
        else:
            text, level = _("No limit was set for the lock '%(lock)s'."), messages.WARNING
        self.show_message(request, text % values, level)

    @shows_denial
    def health_view(self, request: HttpRequest) -> HttpResponse:
        """Show the servers of the ensemble, and what is wrong with them."""
        snapshot = self.snapshot(request)
        report = verdict.servers_now(self.reply_timeout)
        connection = lazy.inspection.connection()
        context = {
            "title": _("Health of ZooKeeper"),
            "connection": connection,
            "connection_label": CONNECTION_LABELS[connection.state],
            "servers": report.servers,
            "summary": servers.summary(report),
            "split": any(finding.splits for finding in report.findings),
            "findings": [incident.describe() for incident in verdict.found(Facts(snapshot, report), servers.CAUSES)],
            "unasked": [finding.text for finding in report.findings if not finding.cause],
        }
        return self.page(request, "health", context)

    @shows_denial
    def json_view(self, request: HttpRequest) -> HttpResponse:
        return _json(self.snapshot(request))

    # --- Holders: break their locks, ask them to release, end their holds -------------------------------------------

    @shows_denial
    def holders_view(self, request: HttpRequest) -> HttpResponse:
        """Show the holders of a host or of some locks. A POST acts on exactly the ticked ones."""
        process = self._process(request)
        pressed = next((name for name in ACTIONS if name in request.POST), "")
        meant = pressed or request.GET.get("do", "")
        needed = ACTIONS[meant].permission if meant in ACTIONS else "break_lock"
        allowed = [name for name in ACTIONS if name in self.allowed(request)]
        self.require(bool(allowed or process.host), needed)
        if request.method != "POST":
            return self.holders_page(request, request.GET.getlist("key"), meant)
        self.require(pressed in ("", *allowed), needed)
        return self._act(request, process, pressed)

    def holders_page(
        self, request: HttpRequest, keys: Collection[str], meant: str, status: int = 200, **failed: Any
    ) -> HttpResponse:
        """Return the page of the holders that a request names, or of the locks with these keys; see `HoldersPage`."""
        page = HoldersPage(self, request, self._process(request), keys, meant, **failed)
        if page.is_empty:
            self.show_message(request, _("No lock was chosen, so nothing was done."), messages.WARNING)
            return self.redirect_to()
        return self.page(request, "holders", page.context(), UNAVAILABLE if page.is_away else status)

    def _process(self, request: HttpRequest) -> Process:
        """Return the host and the process that the request names."""
        if request.path != self.url("host"):  # the filters of the list have the same names
            return Process()
        pid = request.GET.get("pid", "")
        return Process(request.GET.get("host", "").strip(), int(pid) if pid.isdecimal() and len(pid) < 10 else 0)

    def _act(self, request: HttpRequest, process: Process, name: str) -> HttpResponse:
        """Carry out an action on the ticked holders. Show the page again if something is wrong or remains."""
        ticked = request.POST.getlist("target")[:MAX_TARGETS] if name else []
        targets = [target for text in ticked if (target := Target.parse(text)) is not None]
        keys = {target.key for target in targets}
        back = HttpResponseRedirect(self.host_url(*process)) if process.host else self.redirect_to(keys)
        if not targets:
            self.show_message(request, _("No holder was chosen, so nothing was done."), messages.WARNING)
            return back
        form = ReasonForm(request.POST, word=process.word(len(targets)) if name == "break" else "")
        if not form.is_valid():
            return self.holders_page(request, keys, name, form=form)
        results = Results(ACTIONS[name])
        results.act(targets, reason=form.cleaned_data["reason"], by=user_name(request))
        for text, level in results.messages():
            self.show_message(request, text, level)
        remaining = results.keys("stale", "failed", "untried")
        if not remaining:
            return back
        stale = results.keys("stale")
        return self.holders_page(request, remaining, name, CONFLICT, form=form, stale=stale, back_url=back.url)


def user_name(request: HttpRequest) -> str:
    """Return the name of the user, for the audit log."""
    return clean(request.user.get_username(), 150)


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
    """
    Return what needs attention as JSON; 403 without the permission to view locks.

    It is 200 if nothing does and all locks and servers were looked at, else 503: a probe may see only the status.
    """
    report = verdict.as_json(PROBE_TIMEOUT)
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


def carry_out(form: forms.Form, act: Callable[..., None]) -> int:
    """Act with the values of a form if they are valid; return `DONE`, or the status of the page that says why not."""
    if not form.is_valid():
        return 200
    try:
        act(**form.cleaned_data)
    except (ZkLockError, ValueError) as error:
        form.add_error(None, clean(error, MAX_ERROR))
        return UNAVAILABLE if isinstance(error, ZooKeeperUnavailable) else CONFLICT
    return DONE


def _json(snapshot: Snapshot) -> JsonResponse:
    return JsonResponse(lazy.inspection.info.to_json(snapshot))
