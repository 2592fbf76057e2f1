"""The history of the locks: Django's own list, with its search and its filters. Nothing can be changed."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.http import HttpRequest

from django_zklock.contrib.events.models import Event
from django_zklock.report.formatting import clean, duration, host_and_pid, key_text


@admin.register(Event)
class EventAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """The rows, the newest first. Who may see locks may see them."""

    list_display = ("at", "lock", "outcome", "who", "work", "waiting", "holding", "reason")
    list_display_links = None
    list_filter = ("outcome", "at")
    search_fields = ("key", "host__startswith", "work", "by", "reason")
    search_help_text = "A part of a key, work, operator or reason; the beginning of a host."
    ordering: ClassVar = ["-at", "-pk"]
    show_full_result_count = False

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("zklock.view_lock")  # type: ignore[union-attr]

    def _never(self, request: HttpRequest, *args: Any) -> bool:
        return False

    has_add_permission = has_change_permission = has_delete_permission = _never

    @admin.display(ordering="key")
    def lock(self, event: Event) -> str:
        return key_text(event.key)

    @admin.display()
    def who(self, event: Event) -> str:
        return clean(event.by) or host_and_pid(event.host, event.pid)

    @admin.display(ordering="waited")
    def waiting(self, event: Event) -> str:
        return duration(event.waited)

    @admin.display(ordering="held")
    def holding(self, event: Event) -> str:
        return duration(event.held)
