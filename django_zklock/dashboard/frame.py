"""The frame of all pages: tabs with counts, and the state of ZooKeeper. It asks nothing: it shows the last look."""

from __future__ import annotations

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
    "attention": "attention",
    "acknowledge": "attention",
    "groups": "groups",
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


@dataclass(frozen=True, slots=True)
class Look:
    """The figures of the last look of this process."""

    at: float
    incidents: int
    locks: int
    running: int
    servers: int
    state: str


class LastLook:
    """The last look of this process at all locks and servers."""

    def __init__(self) -> None:
        self.clear()
        fork.in_child(self.clear)  # its thread is not in the child

    def clear(self) -> None:
        """Forget it."""
        self._look: Look | None = None
        self._renewed = 0.0
        self._thread: threading.Thread | None = None  # that renews it
        self._mutex = threading.Lock()  # only one thread is started

    def store(self, snapshot: Snapshot, servers: EnsembleReport, seen: Verdict) -> None:
        """Remember a look that a page has taken."""
        running = max(sum(server.serves for server in servers.servers), int(snapshot.answers))
        self._renewed = now = clock.now()
        self._look = Look(now, len(seen.incidents), snapshot.total, running, len(servers.servers), snapshot.state)

    def get(self, long_held: float = LONG_HELD) -> Look | None:
        """
        Return it at once, unless it is too old. A thread renews it for the next page.

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
        return self._look if self._look and now - self._look.at < SHOWN_FOR else None

    def _renew(self, long_held: float) -> None:
        try:
            snapshot = lazy.inspection.snapshot(max_waiters=1)
            servers = verdict.servers_now(1.5)
            self.store(snapshot, servers, verdict.look(snapshot, servers, long_held))
        except Exception:
            logger.debug("the locks could not be looked at for the admin", exc_info=True)
        finally:
            connections.close_all()  # those of this thread


last: Final = LastLook()


def _named() -> str:
    look = last.get()
    if look is None or not look.incidents:
        return _("locks")
    text = ngettext("locks (%(count)d needs attention)", "locks (%(count)d need attention)", look.incidents)
    return text % {"count": look.incidents}


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
    of_host = page == "host" or (page == "groups" and request.GET.get("by") == "host")
    is_list = page == "changelist" and (request.GET or request.method == "POST")
    of_first = page == "changelist" and not is_list
    current = "hosts" if of_host else "attention" if of_first else _TAB_OF.get(page, "locks")
    counts = {"attention": "", "locks": "", "servers": ""}
    is_short = False
    if look is not None:
        is_short = look.running < look.servers
        servers = f"{look.running}/{look.servers} !" if is_short else str(look.servers)
        counts = {"attention": str(look.incidents or ""), "locks": str(look.locks), "servers": servers}
    if snapshot is not None:
        counts["locks"] = str(snapshot.total)
    tabs = [
        Tab("attention", _("Attention"), url("changelist"), counts["attention"], bool(counts["attention"])),
        Tab("locks", _("Locks"), f"{url('changelist')}?q=", counts["locks"]),
        Tab("groups", _("Groups"), url("groups")),
        Tab("hosts", _("Hosts"), f"{url('groups')}?by=host"),
        Tab("history", _("History"), url("all_history")),
        Tab("servers", _("Servers"), url("health"), counts["servers"], is_short),
    ]
    state = snapshot.state if snapshot is not None else look.state if look is not None else ""
    return {
        "tabs": tabs,
        "current": current,
        "is_page": page in {"changelist", "groups", "all_history", "health"},
        "refreshes": page in {"changelist", "change", "groups", "health"},
        "state": state,
        "state_label": CONNECTION_LABELS.get(state, ""),
    }
