"""The past of the locks is one more source of facts: the table of an app that records it, if there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django_zklock.core.log import Logger

if TYPE_CHECKING:
    from types import ModuleType

logger = Logger("django_zklock.dashboard")

UNREADABLE: Final[list[Any]] = []
"""The answer if the tables cannot be read. It is false."""
source: ModuleType | None = None
"""`contrib.events.table`, or None without that app."""


def ask(name: str, *args: Any) -> Any:
    """Return what such a function of the source returns; None without one, and `UNREADABLE` if it cannot read."""
    if source is None:
        return None
    try:
        return getattr(source, name)(*args)
    except Exception:
        logger.exception("the table of events cannot be read")
        return UNREADABLE
