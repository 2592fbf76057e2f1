"""The list of locks in the admin: search, filters, columns, and links to the other pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_zklock.conf.options import LONG_HELD
from django_zklock.dashboard import cards, frame
from django_zklock.dashboard.cards import Cards
from django_zklock.dashboard.changelist import FILTERS, LockQuerySet
from django_zklock.dashboard.views import LockViews, shows_denial
from django_zklock.models import Lock
from django_zklock.names.template import MAX_KEY
from django_zklock.report import formatting, lazy, verdict

TUTORIAL: Final = "https://django-zklock.readthedocs.io/en/latest/tutorial/"
if TYPE_CHECKING:
    from django_zklock.inspection import Snapshot

MAX_BARS: Final = 5
"""Bars for the waiters of a lock."""


class LockAdminMixin(LockViews):
    """
    The pages of the locks, to be listed before a `ModelAdmin` class.

    Each action needs a permission: `zklock.view_lock`, `zklock.break_lock`, `zklock.hold_lock` (hold a lock as an
    operator), `zklock.limit_lock` (set the limit of a semaphore), `zklock.request_release_lock` (send a release
    request), `zklock.show_stack_lock` (see what a holder does). Nothing can be added, changed or deleted in
    the database.
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
        locks = []
        for info in self.snapshot(request).locks:
            locks.append(Lock(key=info.key))
            locks[-1].info = info
        return LockQuerySet(locks=locks)

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

    @admin.display(description=gettext_lazy("lock"), ordering="key")
    def shown_key(self, lock: Lock) -> str:
        return format_html('<span title="{0}">{0}</span>', formatting.key_text(lock.key, 200))

    @admin.display(description=gettext_lazy("state"))
    def state(self, lock: Lock) -> str:
        state = lock.info.state(self.long_held)
        # A long hold needs no colour if nobody waits.
        calm = state == "long" and not lock.info.waiting
        colour = f"{state} zklock-quiet" if calm else state
        shown = format_html(
            '<span class="zklock-state zklock-{}">{}</span>', colour, formatting.state_text(lock.info, state)
        )
        if lock.info.kind == "lock":
            return shown
        return format_html('{} <span class="zklock-work">{}</span>', shown, formatting.kind_text(lock.info))

    @admin.display(description=gettext_lazy("holder"), ordering="holder", empty_value="–")
    def holder(self, lock: Lock) -> str | None:
        holders = lock.info.holders
        if not holders:
            return None
        process, work = formatting.process_of(holders[0]), formatting.use_of(holders[0])
        url = self.host_url(holders[0].host, holders[0].pid)
        link = format_html('<a href="{}">{}</a>', url, process)
        others = len(holders) - 1
        rest = ngettext("and %(count)d more", "and %(count)d more", others) % {"count": others} if others else ""
        return format_html(
            '<span class="zklock-holder" dir="auto" title="{0} · {1}"><span>{3}</span> <span>{2}</span> '
            '<span class="zklock-work">{1}</span></span>',
            process,
            work,
            rest,
            link if holders[0].pid else process,
        )

    @admin.display(description=gettext_lazy("held for"), ordering="-held_for", empty_value="–")
    def held(self, lock: Lock) -> str | None:
        if lock.info.held_for is None:
            return None
        return formatting.age_of(lock.info.holders[0])

    @admin.display(description=gettext_lazy("waiting"), ordering="-waiting")
    def waiters(self, lock: Lock) -> str:
        waiting = lock.info.waiting
        if not waiting:
            return "0"
        bars = "▮" * min(waiting, MAX_BARS)
        return format_html('<span class="zklock-bars" aria-hidden="true">{}</span> {}', bars, waiting)

    @admin.display(description=gettext_lazy("longest wait"), ordering="-longest_wait", empty_value="–")
    def waited(self, lock: Lock) -> str | None:
        return None if lock.info.longest_wait is None else formatting.age(lock.info.longest_wait)

    @admin.action(permissions=["break"], description=gettext_lazy("Break selected locks…"))
    def break_selected(self, request: HttpRequest, queryset: QuerySet[Lock]) -> HttpResponse:
        """Ask for a reason, on a page with one row for each holder."""
        return self.holders_page(request, [lock.key for lock in queryset], "break")

    @admin.action(permissions=["request_release"], description=gettext_lazy("Request release of selected locks…"))
    def request_release_of_selected(self, request: HttpRequest, queryset: QuerySet[Lock]) -> HttpResponse:
        """Ask for a reason, on the same page."""
        return self.holders_page(request, [lock.key for lock in queryset], "ask")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return _Locks

    @shows_denial
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show what needs attention, or the list if the request has a query: `?q=` is all of it."""
        snapshot = self.snapshot(request)
        if not request.GET and request.method != "POST":
            return self._attention(request, snapshot)
        context = {
            **self.context(request),
            "title": _("Locks"),
            "snapshot": snapshot,
            "figures": lazy.inspection.Figures.of(snapshot.locks),
            **(extra_context or {}),
        }
        return super().changelist_view(request, context)  # type: ignore[misc,no-any-return]

    def _attention(self, request: HttpRequest, snapshot: Snapshot) -> HttpResponse:
        servers = verdict.servers_now(self.reply_timeout)
        seen = verdict.look(snapshot, servers, self.long_held)
        lazy.background.last.store(snapshot, servers, seen)
        shown = Cards(seen, snapshot)
        context = {
            "title": _("Attention"),
            "change": True,  # so that there are tools
            "verdict": seen,
            "snapshot": snapshot,
            "figures": lazy.inspection.Figures.of(snapshot.locks),
            "severity": shown.severity,
            "strip": shown.strip(),
            "read_text": cards.read_text(snapshot.total, len(servers.servers)),
            "ends_next": cards.ends_next(snapshot),
            "cards": shown.shown(),
            "hidden": shown.hidden(),
            "tutorial": TUTORIAL,
        }
        return self.page(request, "attention", context)


class _Locks(ChangeList):
    """The list. No link of it, such as the one that clears all filters, leads to the first page instead."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.opts = cast(Any, frame.Named(self.opts))

    def get_query_string(self, *args: Any, **kwargs: Any) -> str:
        query: str = super().get_query_string(*args, **kwargs)
        return query if query != "?" else "?q="


def _text_of(lock: Lock) -> str:
    """Return all texts about the holders of a lock, for the search."""
    texts = [lock.key, formatting.key_text(lock.key, MAX_KEY)]
    for holder in lock.info.holders:
        texts += [formatting.process_of(holder), formatting.work_of(holder), holder.guid, *holder.about.values()]
    return " ".join(texts).casefold()


class LockAdmin(LockAdminMixin, admin.ModelAdmin):  # type: ignore[misc,type-arg]
    """The locks, in Django's own admin."""

    actions_on_top = False  # the locks come first
    actions_on_bottom = True
    change_list_template = "admin/zklock/lock/compact_list.html"
