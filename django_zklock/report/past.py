"""The past of the locks is one more source of facts: the table of an app that records it, if there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django_zklock.core.log import Logger

if TYPE_CHECKING:
    from types import ModuleType

logger = Logger("django_zklock.dashboard")

UNREADABLE: Final = object()
"""A default that tells a table that cannot be read from one that has nothing."""
source: ModuleType | None = None
"""`contrib.events.table`, or None without that app."""


def ask(name: str, *args: Any, default: Any = None) -> Any:
    """Return what such a function of the source returns; the default without one, or if it cannot read its tables."""
    if source is None:
        return None if default is UNREADABLE else default
    try:
        return getattr(source, name)(*args)
    except Exception:
        logger.exception("the table of events cannot be read")
        return default
