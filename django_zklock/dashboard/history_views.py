"""The views of the past: the history of one lock, and of all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote, unquote
from django.contrib.contenttypes.models import ContentType
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.translation import gettext as _

from django_zklock.dashboard import lazy
from django_zklock.dashboard.formatting import clean, duration, host_and_pid
from django_zklock.dashboard.pages import Breadcrumb, LockPages
from django_zklock.dashboard.past import has_past, last_attempts
from django_zklock.exceptions import ZkLockError
from django_zklock.models import Lock
from django_zklock.queue.names import MAX_KEY

if TYPE_CHECKING:
    from django_zklock.contrib.events.models import Attempt
    from django_zklock.operations import Action

MOST_ENTRIES: Final = 200
"""Entries of the admin's own history, and attempts, that a page shows at most."""
SAME: Final = 10.0
"""Seconds after an action within which the admin writes its own entry of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastEvent:
    """A row of the history."""

    at: datetime
    key: str
    url: str
    what: str
    by: str
    work: str = ""
    via: str
    reason: str = ""
    lasted: str = ""


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
        problem = ""
        actions: tuple[Action, ...] = ()
        try:
            actions = lazy.operations.recent_actions(key, reply_timeout=self.reply_timeout)
        except ZkLockError as error:
            problem = clean(error)
        events = [
            *(self._of_action(each) for each in actions),
            *(self._of_entry(each) for each in _without(actions, _entries(key))),
            *(self._of_attempt(each) for each in last_attempts(key, MOST_ENTRIES)),
        ]
        events.sort(key=lambda event: event.at.timestamp(), reverse=True)
        more = {"events": events, "problem": problem, "has_past": has_past()}
        return self.page(request, "history", {**more, **context})

    def _of_action(self, action: Action) -> PastEvent:
        holder = " · ".join(filter(None, (action.host, str(action.pid or ""), action.work))) or "?"
        values = {"who": clean(holder), "limit": action.limit, "time": duration(action.seconds)}
        texts = {
            "broken": _("Broken; it was held by %(who)s"),
            "held": _("Held by an operator for %(time)s"),
            "hold ended": _("Operator hold ended"),
            "limit set": _("Limit set to %(limit)d"),
            "limit cleared": _("Limit cleared"),
            "release requested": _("Release requested of %(who)s"),
        }
        what = texts[action.what] % values if action.what in texts else clean(action.what)
        origins = {"admin": _("admin"), "command": _("command"), "code": _("code")}
        return PastEvent(
            at=datetime.fromtimestamp(action.at, timezone.now().tzinfo),
            key=clean(action.key, MAX_KEY),
            url=self._url_of(action.key),
            what=what if action.sure else _("%(what)s (perhaps: the answer was lost)") % {"what": what},
            by=clean(action.by),
            via=origins.get(action.via, clean(action.via)),
            reason=clean(action.reason, MAX_KEY),
        )

    def _of_entry(self, entry: LogEntry) -> PastEvent:
        return PastEvent(
            at=entry.action_time,
            key=clean(entry.object_id, MAX_KEY),
            url=self._url_of(entry.object_id or ""),
            what=clean(entry.get_change_message(), MAX_KEY),
            by=clean(entry.user),
            via=_("admin"),
        )

    def _of_attempt(self, attempt: Attempt) -> PastEvent:
        texts = {
            attempt.RELEASED: _("Held and released"),
            attempt.LOST: _("Held and lost"),
            attempt.TIMED_OUT: _("Waited, and not granted"),
        }
        lasted = attempt.waited if attempt.outcome == attempt.TIMED_OUT else attempt.held
        return PastEvent(
            at=attempt.at,
            key=clean(attempt.key, MAX_KEY),
            url=self._url_of(attempt.key),
            what=texts.get(attempt.outcome, _("Granted; no end was recorded")),
            by=host_and_pid(attempt.host, attempt.pid),
            work=clean(attempt.work),
            via=_("code"),
            reason=clean(attempt.reason),
            lasted="" if lasted is None else duration(lasted),
        )

    def _url_of(self, key: str) -> str:
        return self.url("change", quote(key)) if key else ""


def _entries(key: str) -> list[LogEntry]:
    """Return the newest entries of the admin's own history of this lock, or of all."""
    found = LogEntry.objects.filter(content_type=ContentType.objects.get_for_model(Lock, for_concrete_model=False))
    found = found.filter(object_id=key) if key else found
    return list(found.select_related("user").order_by("-action_time")[:MOST_ENTRIES])


def _without(actions: Iterable[Action], entries: Iterable[LogEntry]) -> list[LogEntry]:
    """Return the entries without those of actions on the list, which the admin writes just after them."""
    written = [each for each in actions if each.via == "admin"]
    left = []
    for entry in entries:
        user, at = clean(entry.user.get_username(), 150), entry.action_time.timestamp()
        same = [each for each in written if (each.key, each.by) == (entry.object_id, user) and 0 <= at - each.at < SAME]
        if same:
            written.remove(max(same, key=lambda action: action.at))
        else:
            left.append(entry)
    return left
