"""The frame of all pages: tabs with counts, and the state of ZooKeeper. It asks nothing: it shows the last look."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_zklock.report import lazy, past
from django_zklock.report.formatting import CONNECTION_LABELS

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.http import HttpRequest

    from django_zklock.inspection import Snapshot

LOOK_EVERY: float = 15.0
"""Seconds between the looks that pages without one of their own have taken, in a thread, for the next page."""
_TAB_OF: Final = {
    "acknowledge": "attention",
    "groups": "groups",
    "host": "hosts",
    "health": "servers",
}
"""The tab of a page, by the name of its URL. All others are below the list of locks."""


class Tab(NamedTuple):
    """A link of the frame."""

    name: str
    label: str
    url: str
    shown: str = ""
    """A count."""
    alarm: bool = False


def plural_name() -> str:
    """Return the name of the locks in the index of the admin. The models of a migration have another one."""
    count = lazy.background.last.recent(LOOK_EVERY).incidents
    if not count:
        return _("locks")
    return ngettext("locks (%(count)d needs attention)", "locks (%(count)d need attention)", count) % {"count": count}


class Named:
    """The options of the model for the pages of the locks themselves, which have the count elsewhere."""

    verbose_name_plural = gettext_lazy("locks")

    def __init__(self, options: Any) -> None:
        self._options = options

    def __getattr__(self, name: str) -> Any:
        return getattr(self._options, name)


def context(
    url: Callable[..., str], request: HttpRequest, long_held: float, snapshot: Snapshot | None = None
) -> dict[str, Any]:
    """Return what a page shows around its contents. `snapshot` is what it shows of the locks, if it does."""
    look = lazy.background.last.recent(LOOK_EVERY, long_held)
    page = str(request.resolver_match and request.resolver_match.url_name).removeprefix("zklock_lock_")
    current = _TAB_OF.get(page, "locks")
    if page == "groups" and request.GET.get("by") == "host":
        current = "hosts"
    elif page == "changelist" and not (request.GET or request.method == "POST"):
        current = "attention"
    locks, state = (look.locks, look.state) if snapshot is None else (str(snapshot.total), snapshot.state)
    tabs = [
        Tab("attention", _("Attention"), url("changelist"), str(look.incidents or ""), look.incidents > 0),
        Tab("locks", _("Locks"), f"{url('changelist')}?q=", locks),
        Tab("groups", _("Groups"), url("groups")),
        Tab("hosts", _("Hosts"), f"{url('groups')}?by=host"),
        *([Tab("history", _("History"), reverse("admin:zklock_events_event_changelist"))] if past.source else []),
        Tab("servers", _("Servers"), url("health"), look.servers, look.is_short),
    ]
    return {
        "tabs": tabs,
        "current": current,
        "is_page": page in {"changelist", "groups", "health"},
        "refreshes": page in {"changelist", "change", "groups", "health"},
        "state": state,
        "state_label": CONNECTION_LABELS.get(state, ""),
    }
