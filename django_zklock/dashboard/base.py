"""The list of locks in the admin: permissions, search, filters, and the way to the other pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_zklock.dashboard import words
from django_zklock.dashboard.columns import Columns
from django_zklock.dashboard.filters import FILTERS
from django_zklock.dashboard.listing import LockList
from django_zklock.dashboard.pages import Pages
from django_zklock.dashboard.steps import MOST_KEYS
from django_zklock.dashboard.strip import STALE, strip
from django_zklock.models import Lock

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from django_zklock.inspection import LockInfo


class LockAdminMixin(Columns, Pages):
    """
    The pages of the locks, to go before a `ModelAdmin` class.

    Seeing needs the permission `zklock.view_lock`, breaking `zklock.break_lock`, taking a lock as an operator
    `zklock.hold_lock`, setting the limit of a semaphore `zklock.limit_lock`, requesting a release
    `zklock.request_release_lock`; nothing here can be added, changed or deleted in the database.
    """

    long_held: float = 60.0
    """Seconds from which on a lock counts as held long."""
    patience: float = 1.5
    """Seconds that a page waits for ZooKeeper."""
    refresh: int = 5
    """Seconds between two looks of the page's script, until its reader chooses others; 0: none."""

    list_display = ("shown_key", "state", "holder", "held", "waiters", "token")
    list_display_links = ("shown_key",)
    list_filter = FILTERS
    list_per_page = 50
    list_max_show_all = 200
    search_fields = ("key",)
    ordering = ("key",)
    show_facets = admin.ShowFacets.NEVER  # they would count in the database
    actions = ("break_selected",)

    class Media:
        """All in files, so that no policy has to allow anything inline."""

        css: ClassVar = {"all": ["zklock/dashboard.css"]}
        js: ClassVar = ["zklock/dashboard.js"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Lock]:
        return LockList(Lock, locks=[lock_of(info) for info in self.snapshot(request).locks])

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Lock], search_term: str
    ) -> tuple[QuerySet[Lock], bool]:
        """Look for locks that have every word somewhere."""
        wanted = search_term.casefold().split()
        if not wanted or not isinstance(queryset, LockList):
            return queryset, False
        return queryset.narrowed(lambda lock: all(word in _text_of(lock) for word in wanted)), False

    @admin.action(permissions=["break"], description=gettext_lazy("Break selected locks…"))
    def break_selected(self, request: HttpRequest, queryset: QuerySet[Lock]) -> HttpResponse | None:
        """Go to the page that asks for a confirmation; nothing is broken here."""
        keys = [lock.key for lock in queryset]
        if len(keys) > MOST_KEYS:
            self.message_user(  # type: ignore[attr-defined]
                request, _("Please choose %(count)d locks at most.") % {"count": MOST_KEYS}, messages.WARNING
            )
            return None
        return HttpResponseRedirect(f"{self.url('break')}?{urlencode({'key': keys}, doseq=True)}")

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        self.demand(self.has_view_permission(request))
        context = {
            "title": _("Locks"),
            "zklock": strip(self.snapshot(request)),
            "zklock_stale": self.snapshot(request).age > STALE,
            "zklock_refresh": self.refresh,
            "zklock_hold_url": self.url("hold") if self.has_hold_permission(request) else "",
            "zklock_limit_url": self.url("limit") if self.has_limit_permission(request) else "",
            "zklock_json_url": self.url("json"),
            **(extra_context or {}),
        }
        return super().changelist_view(request, context)  # type: ignore[misc,no-any-return]


def lock_of(info: LockInfo) -> Lock:
    """Return what was seen as an object of the admin."""
    lock = Lock(key=info.key)
    lock.info = info
    return lock


def _text_of(lock: Lock) -> str:
    holders = lock.info.holders if lock.info else ()
    words_of = (
        (each.host, str(each.pid), each.what, each.guid, words.place(each), words.work(each), *each.about.values())
        for each in holders
    )
    return " ".join([lock.key, *(word for found in words_of for word in found)]).casefold()
