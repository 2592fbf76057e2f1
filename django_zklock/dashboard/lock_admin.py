"""The list of locks in the admin: search, filters, columns, and links to the other pages."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_zklock.conf.options import LONG_HELD
from django_zklock.dashboard import incidents, lazy
from django_zklock.dashboard.changelist.columns import Columns
from django_zklock.dashboard.changelist.filters import FILTERS
from django_zklock.dashboard.changelist.queryset import LockQuerySet
from django_zklock.dashboard.formatting import CONNECTION_LABELS, process_of, work_of
from django_zklock.dashboard.views import LockViews
from django_zklock.models import Lock

MAX_CARDS: Final = 20
"""Incidents on the page."""


class LockAdminMixin(Columns, LockViews):
    """
    The pages of the locks, to be listed before a `ModelAdmin` class.

    Each action needs a permission: `zklock.view_lock`, `zklock.break_lock`, `zklock.hold_lock` (hold a lock as an
    operator), `zklock.limit_lock` (set the limit of a semaphore), `zklock.request_release_lock` (send a release
    request). Nothing can be added, changed or deleted in the database.
    """

    long_held: float = LONG_HELD
    """Seconds from which on a lock counts as held long."""
    reply_timeout: float = 1.5
    """Seconds that a page waits for ZooKeeper."""
    refresh: int = 5
    """Seconds after which the list is refreshed, until the user chooses another interval; 0: never."""

    list_display = ("shown_key", "state", "holder", "held", "waiters", "waited")
    list_display_links = ("shown_key",)
    list_filter = FILTERS
    list_per_page = 50
    list_max_show_all = 200
    search_fields = ("key",)
    show_facets = admin.ShowFacets.NEVER  # they would count in the database
    actions = ("break_selected", "request_release_of_selected")

    class Media:
        """Files, so that a Content-Security-Policy does not have to allow inline styles or scripts."""

        css: ClassVar = {"all": ["zklock/dashboard.css"]}
        js: ClassVar = ["zklock/dashboard.js"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Lock]:
        locks = [Lock(key=info.key) for info in self.snapshot(request).locks]
        for lock, info in zip(locks, self.snapshot(request).locks, strict=True):
            lock.info = info
        return LockQuerySet(Lock, locks=locks)

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        """Return the order of the list: deadlocks, queues that cannot be read, then the longest waits and holds."""
        return ("-trouble", "key")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Lock], search_term: str
    ) -> tuple[QuerySet[Lock], bool]:
        """Return the locks that contain each word in chosen text."""
        words = search_term.casefold().split()
        if not words or not isinstance(queryset, LockQuerySet):
            return queryset, False
        return queryset.selected(lambda lock: all(word in _text_of(lock) for word in words)), False

    @admin.action(permissions=["break"], description=gettext_lazy("Break selected locks…"))
    def break_selected(self, request: HttpRequest, queryset: QuerySet[Lock]) -> HttpResponse:
        """Ask for a reason, on a page with one row for each holder."""
        return self.holders_page(request, [lock.key for lock in queryset])

    @admin.action(permissions=["request_release"], description=gettext_lazy("Request release of selected locks…"))
    def request_release_of_selected(self, request: HttpRequest, queryset: QuerySet[Lock]) -> HttpResponse:
        """Ask for a reason, on the same page."""
        return self.holders_page(request, [lock.key for lock in queryset])

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        self.require(self.has_view_permission(request))
        snapshot = self.snapshot(request)
        landing = not request.GET and request.method != "POST"  # a query, even an empty one, asks for the list
        present = incidents.report(self.reply_timeout, self.long_held, snapshot)["incidents"] if landing else []
        context = {
            **self.context(request),
            "title": _("Needs attention") if present else _("Locks"),
            "calm": landing and not snapshot.problem,
            "snapshot": snapshot,
            "connection_label": CONNECTION_LABELS[snapshot.connection.state],
            "figures": lazy.inspection.Figures.of(snapshot.locks),
            **(extra_context or {}),
        }
        if present:
            context |= {"cards": present[:MAX_CARDS], "hidden": len(present[MAX_CARDS:])}
            return self.page(request, "attention", context)
        return super().changelist_view(request, context)  # type: ignore[misc,no-any-return]


def _text_of(lock: Lock) -> str:
    """Return all texts about the holders of a lock, for the search."""
    texts = [lock.key]
    for holder in lock.info.holders:
        texts += [process_of(holder), work_of(holder), holder.guid, *holder.about.values()]
    return " ".join(texts).casefold()
