"""The views of the past: the history of one lock, and of all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import unquote
from django.contrib.contenttypes.models import ContentType
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from django_zklock.dashboard import past
from django_zklock.dashboard.formatting import action_text, clean
from django_zklock.dashboard.pages import Breadcrumb, LockPages
from django_zklock.dashboard.past import PastEvent
from django_zklock.models import Lock
from django_zklock.queue.names import MAX_KEY

if TYPE_CHECKING:
    from django_zklock.contrib.events.models import Attempt, OperatorAction

MOST_ENTRIES: Final = 200
"""The most actions, and the most attempts, that a page shows."""


class HistoryViews(LockPages):
    """The history of one lock and of all; a part of `LockAdminMixin`."""

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show what has happened to a lock."""
        self.require(self.has_view_permission(request))
        lock = self.get_object(request, unquote(object_id))
        if lock is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[attr-defined,no-any-return]
        title = _("History of %(lock)s") % {"lock": clean(lock.key, MAX_KEY)}
        context = {"title": title, "original": Breadcrumb(title, pk=lock.key), "key": lock.key}
        return self._history_page(request, lock.key, {**context, **(extra_context or {})})

    def all_history_view(self, request: HttpRequest) -> HttpResponse:
        """Show what has happened to all locks."""
        self.require(self.has_view_permission(request))
        return self._history_page(request, "", {"title": _("History of all locks"), "key": ""})

    def _history_page(self, request: HttpRequest, key: str, context: dict[str, Any]) -> HttpResponse:
        """Show the actions in the tables of `contrib.events`. Without that app, show those in this admin's own log."""
        events: list[PastEvent] = []
        if past.source is None:
            events += map(_of_entry, _entries(key))
        else:
            actions: list[OperatorAction] = []
            attempts: list[Attempt] = []
            events += map(_of_action, past.read(lambda source: source.last_actions(key, MOST_ENTRIES), actions))
            events += map(past.event_of, past.read(lambda source: source.last_attempts(key, MOST_ENTRIES), attempts))
        events.sort(key=lambda event: event.at.timestamp(), reverse=True)
        return self.page(request, "history", {"events": events, "has_past": past.source is not None, **context})


def _of_action(action: OperatorAction) -> PastEvent:
    origins = {"admin": _("admin"), "command": _("command"), "code": _("code")}
    return PastEvent(
        at=action.at,
        key=action.key,
        what=action_text(action),
        by=clean(action.by),
        via=origins.get(action.via, clean(action.via)),
        reason=clean(action.reason, MAX_KEY),
    )


def _of_entry(entry: LogEntry) -> PastEvent:
    what = clean(entry.get_change_message(), MAX_KEY)
    return PastEvent(at=entry.action_time, key=entry.object_id or "", what=what, by=clean(entry.user), via=_("admin"))


def _entries(key: str) -> list[LogEntry]:
    """Return the newest entries of Django's own log about this lock, or about all."""
    entries = LogEntry.objects.filter(content_type=ContentType.objects.get_for_model(Lock, for_concrete_model=False))
    entries = entries.filter(object_id=key) if key else entries
    return list(entries.select_related("user").order_by("-action_time")[:MOST_ENTRIES])
