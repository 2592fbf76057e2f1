"""The pages of the locks but for the list, and the acts: one class, which `LockAdminMixin` extends by the list."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, ClassVar, Final

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
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from django_zklock.core import clock
from django_zklock.core.log import Logger
from django_zklock.dashboard.acts import ACTS, MAX_TARGETS, Act, Target
from django_zklock.dashboard.detail import Detail, Row, read_details
from django_zklock.exceptions import ZkLockError, ZooKeeperUnavailable
from django_zklock.models import Lock
from django_zklock.names.template import MAX_KEY, is_key
from django_zklock.report import lazy, past, verdict
from django_zklock.report.formatting import MAX_ERROR, clean, key_text, keys_text
from django_zklock.report.incident import MAX_NAMED

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from django.contrib.admin import AdminSite
    from django.forms import Form

    from django_zklock.inspection import Snapshot
    from django_zklock.operations.audit import Action

logger = Logger("django_zklock.dashboard")

CONFLICT: Final = 409
UNAVAILABLE: Final = 503
INTERVALS: Final = {"2", "5", "15"}
"""Seconds between the refreshes of a page, as the script sends them."""
REFRESH_SHARE: Final = 0.8
"""How old the snapshot of a refresh may be, as a part of its interval. A page that is open alone gets a new one."""
ANY_AGE: Final = 7 * 24 * 3600.0
"""Seconds: how old a snapshot may be while ZooKeeper does not answer."""
MAX_TIME: Final = 15.0
"""Seconds after which a page begins nothing more. Web servers end requests that take longer."""
MOST_GRANTS: Final = 20
"""Grants on the page of a lock."""
PROBE_TIMEOUT: Final = 5.0
"""Seconds that the probe of incidents waits for ZooKeeper. It reads all locks."""


def max_age(request: HttpRequest) -> float:
    """Return how old a look may be, in seconds, so that the refreshes of all open pages share one."""
    interval = request.headers.get("X-ZkLock-Refresh", "")
    return REFRESH_SHARE * int(interval) if interval in INTERVALS else 1.0


class Breadcrumb:
    """The last part of the breadcrumbs. Themes show only an object there, and link it to the lock with the key `pk`."""

    _meta: ClassVar = Lock._meta

    def __init__(self, text: str, pk: str = "") -> None:
        self.text, self.pk = text, pk

    def __str__(self) -> str:
        return format_html("<bdi>{}</bdi>", clean(self.text, MAX_KEY))  # `capfirst` leaves a key as it is


class LockViews:
    """The pages and the acts; a part of `LockAdminMixin`."""

    admin_site: AdminSite
    opts: Any
    formfield_overrides: Mapping[Any, Mapping[str, Any]]
    reply_timeout: float
    refresh: int

    def _never(self, request: HttpRequest, *args: Any) -> bool:
        return False  # there is nothing in the database

    has_add_permission = has_change_permission = has_delete_permission = _never

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("zklock.view_lock")  # type: ignore[union-attr]

    def allowed(self, request: HttpRequest) -> list[str]:
        """Return the names of the acts of this user. A user who may not see locks may not act on them."""
        sees = self.has_view_permission(request)
        return [name for name, act in ACTS.items() if sees and request.user.has_perm(f"zklock.{act.permission}")]  # type: ignore[union-attr]

    def url(self, name: str, *args: str) -> str:
        """Return the address of a page, in the admin site that this one belongs to."""
        return reverse(f"admin:zklock_lock_{name}", args=args, current_app=self.admin_site.name)

    def snapshot(self, request: HttpRequest) -> Snapshot:
        """Return the snapshot of this request. The refreshes of all open pages that this process serves share one."""
        snapshot: Snapshot | None = getattr(request, "zklock_snapshot", None)
        if snapshot is None:
            snapshot = lazy.inspection.snapshot(reply_timeout=self.reply_timeout, max_age=max_age(request))
            request.zklock_snapshot = snapshot  # type: ignore[attr-defined]
        return snapshot

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Lock | None:
        """Return the lock with this key, free or not, without a request to ZooKeeper: the history needs none."""
        return Lock(key=object_id) if is_key(object_id) else None

    def read_locks(self, keys: Collection[str]) -> list[Detail]:
        """Return the states of some locks; if ZooKeeper does not answer, the last known ones, with the problem."""
        try:
            return read_details(keys, reply_timeout=self.reply_timeout)
        except ZooKeeperUnavailable as error:
            last = lazy.inspection.snapshot(reply_timeout=0.0, max_age=ANY_AGE)
            infos = {lock.key: lock for lock in last.locks}
            return [Detail(key, infos.get(key), last, age=last.age, problem=str(error)) for key in keys]

    def page(self, request: HttpRequest, name: str, context: dict[str, Any], status: int = 200) -> HttpResponse:
        """
        Return a page within the admin site that this one belongs to.

        A refresh shows no messages, so that they wait for the next page that is opened.
        """
        request.current_app = self.admin_site.name
        common = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "may": self.allowed(request),
            "tab": "locks",
            "zklock_refresh": self.refresh,
            "media": self.media,  # type: ignore[attr-defined]
            "has_view_permission": True,
            "original": Breadcrumb(context["title"]),
            **({"messages": ()} if "X-ZkLock-Refresh" in request.headers else {}),
        }
        form = context.get("form")
        if form is not None:
            common["adminform"] = AdminForm(form, [(None, {"fields": [*form.fields]})], {}, model_admin=self)  # type: ignore[arg-type]
            common["errors"] = AdminErrorList(form, [])
        return TemplateResponse(request, f"admin/zklock/lock/{name}.html", {**common, **context}, status=status)

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view
        own = [
            path("data.json", view(self.json_view), name="zklock_lock_json"),
            path("act/<slug:name>/", view(self.act_view), name="zklock_lock_act"),
        ]
        # Themes link `original` to its page. A `Breadcrumb` without a lock links to the list, which comes first here.
        no_lock = re_path("^(?P<object_id>)$", view(self.change_view), name="zklock_lock_change")
        return [*own, *super().get_urls(), no_lock]  # type: ignore[misc]

    def _require(self, request: HttpRequest, *names: str) -> None:
        if not (self.has_view_permission(request) and set(names) <= set(self.allowed(request))):
            raise PermissionDenied

    def json_view(self, request: HttpRequest) -> HttpResponse:
        self._require(request)
        return JsonResponse(lazy.inspection.info.to_json(self.snapshot(request)))

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the holders and waiters of one lock, and the possible acts."""
        self._require(request)
        if request.method not in {"GET", "HEAD"}:
            return HttpResponseNotAllowed(["GET", "HEAD"])
        lock = self.get_object(request, unquote(object_id))
        if lock is None:
            return HttpResponseRedirect(self.url("changelist"))
        (shown,) = self.read_locks([lock.key])
        context = {
            "title": key_text(lock.key, MAX_KEY),
            "original": Breadcrumb(key_text(lock.key, MAX_KEY), pk=lock.key),
            "change": True,
            "lock": shown,
            "past": past.ask("timeline", shown.info, MOST_GRANTS),
            **(extra_context or {}),
        }
        return self.page(request, "detail", context)

    # --- Acts: a form that names each holder, a reason, and one message for each result ------------------------------

    def act_view(self, request: HttpRequest, name: str) -> HttpResponse:
        """Act on exactly the ticked holders, or on one lock."""
        self._require(request, name)
        keys = [key for key in dict.fromkeys(request.GET.getlist("key")) if is_key(key)]
        return self.act_page(request, name, keys[:MAX_TARGETS])

    def act_page(self, request: HttpRequest, name: str, keys: Collection[str]) -> HttpResponse:
        """Return the form of an act on the locks with these keys, or act if it was sent and is valid."""
        act = ACTS[name]
        data = request.POST if name in request.POST else None
        form = act.form(data, self.formfield_overrides, needs_key=not (keys or act.of_holders))
        targets = self._targets(request, act, form, keys)
        if form.is_valid():
            keys = self._act(request, act, targets, form.cleaned_data)
            if not keys:
                return HttpResponseRedirect(self._after(targets))
        status = CONFLICT if form.is_valid() else 200
        locks = self.read_locks(keys) if keys else []
        rows = _rows(locks, targets)
        is_away = any(lock.problem for lock in locks)
        context = {
            "title": f"{act.label}: {', '.join(map(key_text, keys))}" if keys else act.label,
            "name": name,
            "act": act,
            "form": form,
            "form_url": f"{self.url('act', name)}?{urlencode({'key': keys}, doseq=True)}",
            "locks": locks,
            "is_away": is_away,
            "rows": rows[:MAX_TARGETS],
            "hidden": max(0, len(rows) - MAX_TARGETS),
        }
        return self.page(request, "act", context, UNAVAILABLE if is_away else status)

    def _targets(self, request: HttpRequest, act: Act, form: Form, keys: Collection[str]) -> list[Target]:
        """Return the ticked holders, or the lock that the page is about or that was typed. One at least is needed."""
        if not act.of_holders:
            typed = form.cleaned_data.pop("key", "") if form.is_valid() else ""
            return [Target(typed or next(iter(keys), ""))]
        parsed = map(Target.parse, request.POST.getlist("target")[:MAX_TARGETS])
        targets = [target for target in parsed if target is not None]
        if form.is_bound and not targets:
            form.add_error(None, _("No holder was chosen, so nothing was done."))
        return targets

    def _after(self, targets: list[Target]) -> str:
        """Return the address of the page after an act that was done."""
        keys = {target.key for target in targets}
        return self.url("change", quote(keys.pop())) if len(keys) == 1 else self.url("changelist")

    def _act(self, request: HttpRequest, act: Act, targets: list[Target], values: dict[str, Any]) -> list[str]:
        """Act on each target until the time is over; show the results. Return the keys of those that were not done."""
        deadline = clock.now() + MAX_TIME
        by, done = clean(request.user.get_username(), 150), str(act.done)
        results: defaultdict[tuple[str, str], list[str]] = defaultdict(list)  # keys, by text and error
        with lazy.operations.acting_via("admin") as actions:
            for target in targets:
                text, error = _("The time was too short, so nothing was done yet: %(lock)s. Try again."), ""
                if clock.now() <= deadline:
                    try:
                        act.run(target, by=by, **values)
                        text = done
                    except ZooKeeperUnavailable as unanswered:
                        text, error = _("It is unknown whether it was done: %(lock)s. %(error)s"), str(unanswered)
                        deadline = 0.0  # the others would fail as slowly
                    except (ZkLockError, ValueError) as refusal:
                        text, error = _("Nothing was done: %(lock)s. %(error)s"), str(refusal)
                results[text, error].append(target.key)
        for action in actions:
            self._log(request, action)
        for (text, error), keys in results.items():
            shown = text % {"lock": keys_text([*dict.fromkeys(keys)], MAX_NAMED), "error": error}
            level = messages.SUCCESS if text == done else messages.ERROR
            self.message_user(request, clean(shown, MAX_ERROR), level, fail_silently=True)  # type: ignore[attr-defined]
        results.pop((done, ""), None)
        return [*dict.fromkeys(key for keys in results.values() for key in keys)]

    def _log(self, request: HttpRequest, action: Action) -> None:
        """Write an action to Django's own log. It is in the audit log by then, so a failure is only logged."""
        text = f"{action}: {action.reason}"
        try:
            with transaction.atomic():
                LogEntry.objects.log_actions(  # type: ignore[call-overload]
                    request.user.pk, [Lock(key=action.key)], CHANGE, text, single_object=True
                )
        except Exception:
            logger.exception("an action on the lock %r is not in the history: %r", action.key, text)


def _rows(locks: Collection[Detail], targets: Collection[Target]) -> list[tuple[Detail, Row, bool]]:
    """Return the holders, and whether each is ticked: those that were chosen, else those that do not wait."""
    chosen = {str(target) for target in targets}
    holders = [(lock, row) for lock in locks for row in lock.holders]
    return [(lock, row, row.target in chosen if chosen else not row.waits) for lock, row in holders]


@never_cache
@require_safe
@permission_required("zklock.view_lock", raise_exception=True)
def locks_json(request: HttpRequest) -> HttpResponse:
    """Return all locks as JSON, or 403 without the permission `zklock.view_lock`; for a project's own `urls.py`."""
    return JsonResponse(lazy.inspection.info.to_json(lazy.inspection.snapshot()))


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
