"""
Locks for Celery: decorated tasks, unique tasks, events, and several beats for one schedule.

Nothing here imports Celery before the process does. Parts that a process does not use are not imported.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from django.core.exceptions import ImproperlyConfigured

if TYPE_CHECKING:
    from django_zklock.decorators.context import CallContext

__all__ = ["CeleryLibrary", "connect"]

_LISTENERS: Final = ("worker", "leaks", "events", "task_reservations")
"""The modules here that connect to Celery's signals when they are imported."""


def connect() -> None:
    """Connect to Celery's signals; repeating it is harmless."""
    for name in _LISTENERS:
        import_module(f"{__name__}.{name}")


class CeleryLibrary:
    """Celery, as a `TaskLibrary` of the decorator."""

    module: Final = "celery"

    def connect(self, *, unique: bool) -> None:
        """Connect to Celery; with `unique`, stop duplicates of unique tasks where they are sent."""
        if unique:
            try:
                import_module(self.module)
            except ModuleNotFoundError as error:
                raise ImproperlyConfigured(
                    'unique= is for Celery tasks, and Celery is not installed: pip install "django-zklock[celery]".'
                ) from error
            import_module(f"{__name__}.unique")
        connect()

    def context_of(self, wrapper: Callable[..., Any]) -> CallContext | None:
        """Return the context of a call by a worker; None for any other call."""
        context: CallContext | None = import_module(f"{__name__}.context").running_task(wrapper)
        return context
