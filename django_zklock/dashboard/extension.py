"""
The point at which an app adds panels, pages and figures to the pages of the locks.

`django_zklock.contrib.events` adds what it has recorded. Nothing else in `dashboard` knows of a past. Any app may add
a page of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from django.http import HttpRequest, HttpResponse

    from django_zklock.dashboard.incidents import Incident
    from django_zklock.dashboard.views import LockViews
    from django_zklock.inspection import LockInfo, Snapshot


@dataclass(frozen=True, slots=True)
class Panel:
    """A part of a page. The template gets its content as `content`."""

    template: str
    content: Any


class Extension:
    """Adds nothing to the pages. An app passes an object of a subclass to `install`, to add what it has."""

    def chart(self, snapshot: Snapshot) -> Panel | None:
        """Return a panel for the first page and the list; None if there is nothing to show."""
        return None

    def lock_panel(self, lock: LockInfo, *, is_current: bool = True) -> Panel | None:
        """Return a panel for the page of a lock. `is_current`: the state is not an old one."""
        return None

    def host_panel(self, host: str, pid: int, held: Collection[int]) -> Panel | None:
        """Return a panel for the page of a host, or of a process of it. `held` are the tokens of its present holds."""
        return None

    def history_page(
        self, pages: LockViews, request: HttpRequest, key: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse | None:
        """Return the page of the history of a lock, or of all locks if `key` is empty."""
        return None

    def history(self, most: int, *, reply_timeout: float, **wanted: Any) -> tuple[Sequence[Any], Any] | None:
        """Return the newest rows of the history that are `wanted`, and the first one of the next page, or None."""
        return None

    def usual_hold(self, template: str) -> float | None:
        """Return for how many seconds locks of this template are usually held; None if that is not known."""
        return None

    def times_usual(self, seconds: float, template: str) -> str:
        """Return how many times as long as usual a hold lasts, as a text; empty if that is nothing special."""
        return ""

    def find(self, snapshot: Snapshot, *, sure: bool) -> tuple[Sequence[Incident], Sequence[str]]:
        """Return the incidents that the past shows, and what was not looked at. With `sure`, it may wait to know."""
        return (), ()


installed = Extension()


def install(extension: Extension) -> None:
    """Add this to the pages, in place of what was installed before."""
    global installed
    installed = extension


@dataclass(frozen=True, slots=True)
class ExtraPage:
    """A page that an app adds, with a button above the list of locks."""

    name: str
    """Of its address, and of its URL after `zklock_lock_`."""
    label: Any
    module: str
    """
    Is imported when it is first used, as it may import kazoo. It has two functions.

    `view(pages, request)` returns the page; the actions of operators in it are recorded. `links(words, lock=None,
    reply_timeout=...)` returns texts about what it has with these words, or of this lock, each with the query to show.
    """


pages: dict[str, ExtraPage] = {}
"""The pages by name. Apps add theirs while Django starts."""
