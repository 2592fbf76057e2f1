"""The history of the locks: Django's own list, with its search and its filters. Nothing can be changed."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from django.contrib import admin
from django.contrib.admin.utils import quote
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from django_zklock.contrib.events.models import MAX_TEXT, Event
from django_zklock.contrib.events.table import ago
from django_zklock.report.formatting import duration, key_text, time_text

MOST_COUNTED: Final = 10_000
"""Rows of a list: to count 60 million of them would take minutes. The filters lead to the others."""
SEARCHED: Final = 86400.0
"""Seconds in which a part of a text is searched, unless a filter says otherwise. No index finds it."""


class BoundedPaginator(Paginator):  # type: ignore[type-arg]
    """The pages of the newest rows."""

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        return int(rows[:MOST_COUNTED].count())


@admin.register(Event)
class EventAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """The rows, the newest first, for all who may see locks. `?key=KEY` and `?host=HOST` show some of them."""

    list_display = ("time", "lock", "outcome", "count", "who", "work", "waiting", "holding", "reason")
    list_display_links = None
    list_filter = ("outcome", "at")
    search_fields = ("key", "host", "work", "by", "reason")
    search_help_text = _(
        "A part of a key, host, work, operator or reason: in the last 24 hours, or in the time of the filter."
    )
    ordering: ClassVar = ["-at", "-pk"]
    sortable_by = ()
    paginator = BoundedPaginator
    show_full_result_count = False
    list_max_show_all = 0

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("zklock.view_lock")  # type: ignore[union-attr]

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def _never(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    has_add_permission = has_change_permission = has_delete_permission = _never

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        names_time = any(name.startswith("at__") for name in request.GET)
        if search_term and "key" not in request.GET and not names_time:
            queryset = queryset.filter(at__gte=ago(SEARCHED))
        return super().get_search_results(request, queryset, search_term)

    @admin.display(description=_("When"))
    def time(self, event: Event) -> str:
        return time_text(event.at)

    @admin.display(description=_("Lock"))
    def lock(self, event: Event) -> str:
        text = key_text(event.key)
        if len(event.key) == MAX_TEXT:  # a key that was cut
            return text
        try:
            address = reverse("admin:zklock_lock_change", args=[quote(event.key)], current_app=self.admin_site.name)
        except NoReverseMatch:  # a site without the locks
            return text
        return format_html('<a href="{}">{}</a>', address, text)

    @admin.display(description=_("Who"))
    def who(self, event: Event) -> str:
        return event.who

    @admin.display(description=_("Waited"))
    def waiting(self, event: Event) -> str:
        return duration(event.waited)

    @admin.display(description=_("Held"))
    def holding(self, event: Event) -> str:
        return duration(event.held)
