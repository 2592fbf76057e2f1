"""The frame of all pages: tabs with counts, and the state of ZooKeeper. It asks nothing: it shows the last look."""

from __future__ import annotations

import math
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django.db import connections
from django.utils.functional import lazy as deferred
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_zklock.conf.options import LONG_HELD
from django_zklock.core import clock, fork
from django_zklock.core.log import Logger
from django_zklock.report import lazy, verdict
from django_zklock.report.formatting import CONNECTION_LABELS

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.http import HttpRequest

    from django_zklock.inspection import EnsembleReport, Snapshot
    from django_zklock.report.verdict import Verdict

logger = Logger("django_zklock.dashboard")

LOOK_EVERY: float = 15.0
"""Seconds between the looks that pages without one of their own have taken, in a thread, for the next page."""
SHOWN_FOR: Final = 120.0
"""Seconds for which the counts of a look are shown."""
_TAB_OF: Final = {
    "acknowledge": "attention",
    "groups": "groups",
    "host": "hosts",
    "all_history": "history",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The figures of the last look of this process, as the tabs show them. Without one, nothing is known."""

    at: float = -math.inf
    incidents: int = 0
    locks: str = ""
    servers: str = ""
    is_short: bool = False
    """Whether some servers do not run."""
    state: str = ""


class LastLook:
    """The last look of this process at all locks and servers."""

    def __init__(self) -> None:
        self.clear()
        fork.in_child(self.clear)  # its thread is not in the child

    def clear(self) -> None:
        """Forget it."""
        self._look = Look()
        self._renewed = 0.0
        self._thread: threading.Thread | None = None  # that renews it
        self._mutex = threading.Lock()  # only one thread is started

    def store(self, snapshot: Snapshot, servers: EnsembleReport, seen: Verdict) -> None:
        """Remember a look that a page has taken."""
        running = max(sum(server.serves for server in servers.servers), int(snapshot.answers))
        count = len(servers.servers)
        self._renewed = now = clock.now()
        self._look = Look(
            at=now,
            incidents=len(seen.incidents),
            locks=str(snapshot.total),
            servers=f"{running}/{count} !" if running < count else str(count),
            is_short=running < count,
            state=snapshot.state,
        )

    def get(self, long_held: float = LONG_HELD) -> Look:
        """
        Return it at once; an empty one if it is too old. A thread renews it for the next page.

        If that thread hangs, as in a query to the tables of events, no second one is started.
        """
        fork.notice()
        now = clock.now()
        with self._mutex:
            if now - self._renewed >= LOOK_EVERY and not (self._thread and self._thread.is_alive()):
                self._renewed = now
                self._thread = threading.Thread(target=self._renew, args=(long_held,), name="zklock-look", daemon=True)
                with suppress(RuntimeError):  # there is no room for another thread
                    self._thread.start()
        return self._look if now - self._look.at < SHOWN_FOR else Look()

    def _renew(self, long_held: float) -> None:
        try:
            snapshot = lazy.inspection.snapshot()
            servers = verdict.servers_now(1.5)
            self.store(snapshot, servers, verdict.look(snapshot, servers, long_held))
        except Exception:
            logger.debug("the locks could not be looked at for the admin", exc_info=True)
        finally:
            connections.close_all()  # those of this thread


last: Final = LastLook()


def _named() -> str:
    count = last.get().incidents
    if not count:
        return _("locks")
    return ngettext("locks (%(count)d needs attention)", "locks (%(count)d need attention)", count) % {"count": count}


plural_name: Final = deferred(_named, str)()
"""The name of the locks in the index of the admin. The models of a migration have another one."""


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
    look = last.get(long_held)
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
        Tab("history", _("History"), url("all_history")),
        Tab("servers", _("Servers"), url("health"), look.servers, look.is_short),
    ]
    return {
        "tabs": tabs,
        "current": current,
        "is_page": page in {"changelist", "groups", "all_history", "health"},
        "refreshes": page in {"changelist", "change", "groups", "health"},
        "state": state,
        "state_label": CONNECTION_LABELS.get(state, ""),
    }
