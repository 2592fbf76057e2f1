"""The point at which an app adds a page of its own to the pages of the locks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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
