"""The page of one lock, and the addresses of all pages. Each page asks for its permission before anything else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from django.contrib.admin.helpers import AdminErrorList, AdminForm
from django.contrib.admin.utils import unquote
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, JsonResponse
from django.template.response import TemplateResponse
from django.urls import path, re_path, reverse
from django.utils.html import format_html

from django_zklock.dashboard import core, words
from django_zklock.dashboard.detail import Detail, detail
from django_zklock.dashboard.exporting import as_json
from django_zklock.dashboard.forms import ReleaseRequestForm, focus_first_error, use_widgets
from django_zklock.dashboard.sharing import Sharing
from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.models import LONGEST_KEY, Lock

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django import forms

    from django_zklock.dashboard.detail import Row
    from django_zklock.inspection import Snapshot

ANY_AGE: Final = 7 * 24 * 3600.0
"""Seconds that a snapshot may be old where nothing newer is to be had."""


def is_key(text: str) -> bool:
    """Tell whether this can be the key of a lock: segments with slashes between them, and nothing that is reserved."""
    return (
        0 < len(text) <= LONGEST_KEY
        and text.isprintable()
        and all(segment and segment not in {".", ".."} and segment[0] != "!" for segment in text.split("/"))
    )


@dataclass(frozen=True, slots=True)
class Crumb:
    """
    The last part of the breadcrumbs: a text, and a link to the lock whose key `pk` is, or else to the list.

    Themes show only an object there, not a text. The text begins with a tag. So `capfirst`, which themes use, leaves
    the first letter of a key as it is.
    """

    text: str
    pk: str = ""
    _meta: ClassVar = Lock._meta

    def __str__(self) -> str:
        return format_html("<bdi>{}</bdi>", words.clean(self.text, LONGEST_KEY))


class Pages(Sharing):
    """The pages beside the list; a part of `LockAdminMixin`."""

    patience: float
    long_held: float
    formfield_overrides: Mapping[Any, Mapping[str, Any]]

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view  # type: ignore[attr-defined]
        own = [
            path("data.json", view(self.json_view), name="zklock_lock_json"),
            path("break/", view(self.break_view), name="zklock_lock_break"),
            path("hold/", view(self.hold_view), name="zklock_lock_hold"),
            path("request-release/", view(self.request_release_view), name="zklock_lock_request_release"),
            path("limit/", view(self.limit_view), name="zklock_lock_limit"),
            path("end-hold/", view(self.end_view), name="zklock_lock_end"),
        ]
        # Themes link `original` to its page. A `Crumb` that is no lock leads to the list, which comes first here.
        no_lock = re_path("^(?P<object_id>)$", view(self.change_view), name="zklock_lock_change")
        return [*own, *super().get_urls(), no_lock]  # type: ignore[misc]

    def url(self, name: str, *args: str) -> str:
        """Return the address of one of these pages, in the admin site that this one belongs to."""
        site = self.admin_site.name  # type: ignore[attr-defined]
        return reverse(f"admin:zklock_lock_{name}", args=args, current_app=site)

    def snapshot(self, request: HttpRequest) -> Snapshot:
        """Return what this request shows: one snapshot, however often it is asked for."""
        found: Snapshot | None = getattr(request, "_zklock_snapshot", None)
        if found is None:
            found = core.inspection.snapshot(patience=self.patience, max_waiters=1)
            request._zklock_snapshot = found  # type: ignore[attr-defined]
        return found

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Lock | None:
        """Return the lock with this key, held or not, without a look at ZooKeeper: history needs none."""
        return Lock(key=object_id) if is_key(object_id) else None

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show one lock: who holds it, who waits, and what can be done."""
        self.demand(self.has_view_permission(request))
        if request.method not in {"GET", "HEAD"}:
            return HttpResponseNotAllowed(["GET", "HEAD"])
        lock = self.get_object(request, unquote(object_id))
        if lock is None:
            return self._get_obj_does_not_exist_redirect(  # type: ignore[attr-defined,no-any-return]
                request,
                self.opts,  # type: ignore[attr-defined]
                object_id,
            )
        shown = self.look(lock.key)
        may_request = self.has_request_release_permission(request)
        context = {
            "title": shown.shown_key,
            "subtitle": None,
            "original": Crumb(lock.key, pk=lock.key),
            "change": True,
            "show_history": True,
            "lock": shown,
            "holders": [(each, self._ask(each) if may_request and each.hears else None) for each in shown.holders],
            "break_url": self.url("break") if self.has_break_permission(request) else "",
            "hold_url": self.url("hold") if self.has_hold_permission(request) else "",
            "end_url": self.url("end") if self.has_hold_permission(request) else "",
            "request_release_url": self.url("request_release"),
            "limit_url": self.url("limit") if self.has_limit_permission(request) else "",
            **(extra_context or {}),
        }
        return self.page(request, "detail", context)

    def _ask(self, holder: Row) -> ReleaseRequestForm:
        """Return the form of a release request. Its field names the form, because it is not inside of it."""
        name = f"zklock-ask-{holder.number}"
        form = ReleaseRequestForm(auto_id=f"{name}-%s")
        use_widgets(form, self.formfield_overrides)
        form.fields["reason"].widget.attrs["form"] = name
        return form

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show what was done to a lock here."""
        lock = self.get_object(request, unquote(object_id))
        context = {**({"object": Crumb(lock.key, pk=lock.key)} if lock else {}), **(extra_context or {})}
        return super().history_view(request, object_id, context)  # type: ignore[misc,no-any-return]

    def json_view(self, request: HttpRequest) -> HttpResponse:
        """Give the list as JSON, for other dashboards."""
        self.demand(self.has_view_permission(request))
        return JsonResponse(as_json(self.snapshot(request)))

    def look(self, key: str) -> Detail:
        """Look at one lock; while ZooKeeper is away, say so and show what was seen last."""
        try:
            return detail(key, core.inspection.look_at(key, patience=self.patience), long_held=self.long_held)
        except ZooKeeperUnavailable as error:
            last = core.inspection.snapshot(patience=0.0, max_age=ANY_AGE, max_waiters=1)
            info = next((each for each in last.locks if each.key == key), None)
            return detail(key, info, long_held=self.long_held, age=last.age, problem=str(error))

    def page(self, request: HttpRequest, name: str, context: dict[str, Any], status: int = 200) -> HttpResponse:
        """Return a page within the admin site that this belongs to."""
        site = self.admin_site  # type: ignore[attr-defined]
        request.current_app = site.name
        common = {
            **site.each_context(request),
            "opts": self.opts,  # type: ignore[attr-defined]
            "media": self.media,  # type: ignore[attr-defined]
            "list_url": self.url("changelist"),
            "has_view_permission": self.has_view_permission(request),
            "original": Crumb(context["title"]),
        }
        form: forms.Form | None = context.get("form")
        if form is not None:
            use_widgets(form, self.formfield_overrides)
            focus_first_error(form)
            common["adminform"] = AdminForm(form, [(None, {"fields": list(form.fields)})], {}, model_admin=self)  # type: ignore[arg-type]
            common["errors"] = AdminErrorList(form, [])  # type: ignore[arg-type]
        template = f"admin/zklock/lock/{name}.html"
        return TemplateResponse(request, template, {**common, **context}, status=status)
