"""The list of locks in the admin: search, filters, columns; and the first page, which is the list without a query."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar, Final

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_zklock.dashboard.cards import MAX_CARDS, cards
from django_zklock.dashboard.changelist import HostFilter, LockQuerySet, StateFilter, totals
from django_zklock.dashboard.views import LockViews, max_age
from django_zklock.models import Lock
from django_zklock.names.template import MAX_KEY
from django_zklock.report import formatting, lazy, servers, verdict

if TYPE_CHECKING:
    from django.db.models import QuerySet


TUTORIAL: Final = "https://django-zklock.readthedocs.io/en/latest/tutorial/"
UUID: Final = re.compile(r"\b([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
"""An id in a text, and its beginning, which tells it from the others."""


class LockAdminMixin(LockViews):
    """
    The pages of the locks, to be listed before a `ModelAdmin` class.

    Each act needs a permission: `zklock.view_lock`, `zklock.break_lock`, `zklock.hold_lock` (hold a lock as an
    operator), `zklock.limit_lock` (set the limit of a semaphore), `zklock.request_release_lock` (send a release
    request). Nothing can be added, changed or deleted in the database.
    """

    reply_timeout: float = 1.5
    """Seconds that a page waits for ZooKeeper."""
    refresh: int = 5
    """Seconds after which the list is refreshed, until the user chooses another interval; 0: never."""

    list_display = ("shown_key", "state", "holder", "held", "waiters", "waited")
    list_display_links = ("shown_key",)
    list_filter = (StateFilter, HostFilter)
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
        locks, (incidents, _facts) = [], verdict.by_key(self.snapshot(request))
        for info in self.snapshot(request).locks:
            locks.append(Lock(key=info.key))
            locks[-1].info = info
            locks[-1].incident = incidents.get(info.key)
        return LockQuerySet(locks=locks)

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        """Return the order of the list: deadlocks, queues that cannot be read, then the longest waits and holds."""
        return ("-trouble", "key")

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> tuple[Any, bool]:
        """Return the locks that contain each word in the texts about their holders."""
        words = search_term.casefold().split()
        return queryset.selected(lambda lock: all(word in _text_of(lock) for word in words)), False

    @admin.display(description=gettext_lazy("lock"), ordering="key")
    def shown_key(self, lock: Lock) -> str:
        return format_html('<span title="{0}">{0}</span>', formatting.key_text(lock.key, 200))

    @admin.display(description=gettext_lazy("state"))
    def state(self, lock: Lock) -> str:
        state = verdict.state_of(lock.info, lock.incident)
        label = formatting.STATE_LABELS[state]
        shown = format_html('<span class="zklock-state zklock-{}">{}</span>', state, label)
        if lock.info.kind == "lock":
            return shown
        return format_html('{} <span class="zklock-work">{}</span>', shown, formatting.kind_text(lock.info))

    @admin.display(description=gettext_lazy("holder"), empty_value="–")
    def holder(self, lock: Lock) -> str | None:
        """Return the first holder in one line: ids are cut, and shown whole below the mouse and on focus."""
        if not lock.info.holders:
            return None
        first, *others = lock.info.holders
        who, work = formatting.process_of(first), formatting.use_of(first)
        link = format_html('<a href="?{}">{}</a>', urlencode({"host": first.host}), who) if first.pid else who
        return format_html(
            '<span class="zklock-holder" dir="auto" title="{} · {}">{} {} <span class="zklock-work">{}</span></span>',
            who,
            work,
            link,
            f"+{len(others)}" if others else "",
            UUID.sub(r"\1", work),
        )

    @admin.display(description=gettext_lazy("held for"), ordering="-held_for", empty_value="–")
    def held(self, lock: Lock) -> str | None:
        return None if lock.info.held_for is None else formatting.age_of(lock.info.holders[0])

    @admin.display(description=gettext_lazy("waiting"), ordering="-waiting")
    def waiters(self, lock: Lock) -> int:
        return lock.info.waiting

    @admin.display(description=gettext_lazy("longest wait"), ordering="-longest_wait", empty_value="–")
    def waited(self, lock: Lock) -> str | None:
        return None if lock.info.longest_wait is None else formatting.age(lock.info.longest_wait)

    @admin.action(permissions=["break"], description=gettext_lazy("Break selected locks…"))
    def break_selected(self, request: HttpRequest, queryset: QuerySet[Lock]) -> HttpResponse:
        """Ask for a reason, on a page with one row for each holder."""
        return self.act_page(request, "break", [lock.key for lock in queryset])

    @admin.action(permissions=["ask"], description=gettext_lazy("Request release of selected locks…"))
    def request_release_of_selected(self, request: HttpRequest, queryset: QuerySet[Lock]) -> HttpResponse:
        """Ask for a reason, on the same page."""
        return self.act_page(request, "ask", [lock.key for lock in queryset])

    def has_break_permission(self, request: HttpRequest) -> bool:
        return "break" in self.allowed(request)

    def has_ask_permission(self, request: HttpRequest) -> bool:
        return "ask" in self.allowed(request)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return _Locks

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show what needs attention, or the list if the request has a query: `?q=` is all of it."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        snapshot = self.snapshot(request)
        if not request.GET and request.method != "POST":
            return self._attention(request)
        context = {
            "title": _("Locks"),
            "tab": "locks",
            "snapshot": snapshot,
            "totals": totals(snapshot),
            "may": self.allowed(request),
            "zklock_refresh": self.refresh,
            **(extra_context or {}),
        }
        return super().changelist_view(request, context)  # type: ignore[misc,no-any-return]

    def _attention(self, request: HttpRequest) -> HttpResponse:
        snapshot = self.snapshot(request)
        ensemble = lazy.inspection.ensemble(reply_timeout=self.reply_timeout, max_age=max_age(request))
        seen = verdict.look(snapshot, ensemble)
        lazy.background.last.store(seen)
        context = {
            "title": _("Attention"),
            "tab": "attention",
            "change": True,  # so that there are tools
            "verdict": seen,
            "snapshot": snapshot,
            "cards": cards(seen.incidents, snapshot, self.reply_timeout),
            "hidden": max(0, len(seen.incidents) - MAX_CARDS),
            "servers": ensemble.servers,
            "summary": servers.summary(ensemble),
            "tutorial": TUTORIAL,
        }
        return self.page(request, "attention", context)


class _Locks(ChangeList):
    """The list. No link of it, such as the one that clears all filters, leads to the first page instead."""

    def get_query_string(self, *args: Any, **kwargs: Any) -> str:
        query: str = super().get_query_string(*args, **kwargs)
        return query if query != "?" else "?q="


def _text_of(lock: Lock) -> str:
    """Return all texts about the holders of a lock, for the search."""
    texts = [lock.key, formatting.key_text(lock.key, MAX_KEY)]
    for holder in lock.info.holders:
        texts += [formatting.holder_text(holder), holder.guid, *holder.about.values()]
    return " ".join(texts).casefold()


class LockAdmin(LockAdminMixin, admin.ModelAdmin):  # type: ignore[misc,type-arg]
    """The locks, in Django's own admin."""

    actions_on_top = False  # the locks come first
    actions_on_bottom = True
    change_list_template = "admin/zklock/lock/compact_list.html"
