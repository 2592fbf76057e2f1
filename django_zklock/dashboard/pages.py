"""The base of all pages: permissions, addresses, the snapshot of a request, the frame, messages and the history."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partialmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final

from django import forms
from django.contrib.admin.helpers import AdminErrorList, AdminForm
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import quote
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.translation import gettext as _

from django_zklock.core.log import Logger
from django_zklock.dashboard import lazy
from django_zklock.dashboard.detail import Detail, detail, read_detail
from django_zklock.dashboard.formatting import action_text, clean
from django_zklock.dashboard.forms import focus_first_error, use_widgets
from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.models import Lock
from django_zklock.names.template import MAX_KEY, is_key

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from django.contrib.admin import AdminSite

    from django_zklock.inspection import Snapshot
    from django_zklock.operations.audit import Action

logger = Logger("django_zklock.dashboard")

VIEW: Final = "zklock.view_lock"
CONFLICT: Final = 409
UNAVAILABLE: Final = 503
ANY_AGE: Final = 7 * 24 * 3600.0
"""Seconds: how old a snapshot may be while ZooKeeper does not answer."""


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


class LockPages:
    """The base of all pages; a part of `LockAdminMixin`."""

    admin_site: AdminSite
    opts: Any
    _get_obj_does_not_exist_redirect: Callable[..., HttpResponse]
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

    def allowed(self, request: HttpRequest) -> list[str]:
        """Return the names of the actions that this user may carry out, as the templates and the buttons use them."""
        checks = {
            "ask": self.has_request_release_permission,
            "break": self.has_break_permission,
            "end": self.has_hold_permission,
            "limit": self.has_limit_permission,
        }
        return [name for name, check in checks.items() if check(request)]

    def require(self, allowed: bool) -> None:
        """Raise `PermissionDenied` unless this is allowed."""
        if not allowed:
            raise PermissionDenied(_("You may not do this."))

    def url(self, name: str, *args: str) -> str:
        """Return the address of a page, in the admin site that this one belongs to."""
        return reverse(f"admin:zklock_lock_{name}", args=args, current_app=self.admin_site.name)

    def host_url(self, host: str, pid: int = 0) -> str:
        """Return the address of the page of a host, or of one of its processes."""
        return f"{self.url('host')}?{urlencode({'host': host, 'pid': pid or ''})}"

    def snapshot(self, request: HttpRequest) -> Snapshot:
        """Return the snapshot of this request. It is made once. A search for a key looks at all locks."""
        snapshot: Snapshot | None = getattr(request, "zklock_snapshot", None)
        if snapshot is None:
            snapshot = lazy.inspection.snapshot(reply_timeout=self.reply_timeout, max_waiters=1)
            words = " ".join([request.GET.get("q", ""), request.GET.get("path", "")]).strip()
            if words and snapshot.total > len(snapshot.locks):
                snapshot = lazy.inspection.snapshot(reply_timeout=self.reply_timeout, max_waiters=1, words=words)
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
            last = lazy.inspection.snapshot(reply_timeout=0.0, max_age=ANY_AGE, max_waiters=1)
            info = next((lock for lock in last.locks if lock.key == key), None)
            return detail(key, info, last, long_held=self.long_held, age=last.age, problem=str(error))

    def context(self, request: HttpRequest) -> dict[str, Any]:
        """
        Return what the templates of all pages need.

        A refresh shows no messages, so that they wait for the next page that is opened: the script shows nothing of a
        refreshed page but its live parts, and several pages of one user may be open.
        """
        kept = {"messages": ()} if "X-ZkLock-Refresh" in request.headers else {}
        return {"may": self.allowed(request), "zklock_refresh": self.refresh, **kept}

    def page(self, request: HttpRequest, name: str, context: dict[str, Any], status: int = 200) -> HttpResponse:
        """Return a page within the admin site that this one belongs to."""
        request.current_app = self.admin_site.name
        common = {
            **self.admin_site.each_context(request),
            **self.context(request),
            "opts": self.opts,
            "media": self.media,  # type: ignore[attr-defined]
            "has_view_permission": self.has_view_permission(request),
            "original": Breadcrumb(context["title"]),
        }
        form: forms.Form | None = context.get("form")
        if form is not None:
            use_widgets(form, self.formfield_overrides)
            focus_first_error(form)
            common["adminform"] = AdminForm(form, [(None, {"fields": list(form.fields)})], {}, model_admin=self)  # type: ignore[arg-type]
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
        text = action_text(action)
        message = f"{text}: {action.reason}" if action.reason else text
        user: Any = request.user
        try:
            with transaction.atomic():
                LogEntry.objects.log_actions(user.pk, [Lock(key=action.key)], CHANGE, message, single_object=True)
        except Exception:
            logger.exception("an action on the lock %r is not in the history: %r", action.key, message)


def user_name(request: HttpRequest) -> str:
    """Return the name of the user, for the audit log."""
    return clean(request.user.get_username(), 150)
