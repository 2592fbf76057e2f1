"""
Locks for Celery: decorated tasks, unique tasks, events, and several beats for one schedule.

This package imports Celery only if the process has done so already, or if a function has the option `unique`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from django.core.exceptions import ImproperlyConfigured

from django_zklock.decorators.context import TaskLibrary, register_library

if TYPE_CHECKING:
    from django_zklock.decorators.context import FunctionContext

__all__ = ["connect"]

_LISTENERS: Final = ("worker", "leaks", "events", "unique.lifecycle")
"""The modules here that connect to Celery's signals when they are imported."""


def connect() -> None:
    """Connect to Celery's signals; repeating it is harmless."""
    for name in _LISTENERS:
        import_module(f"{__name__}.{name}")


class CeleryLibrary(TaskLibrary):
    """Celery, for the decorator."""

    def connect(self, *, unique: bool) -> None:
        """Connect to Celery if the process uses it; with `unique`, stop duplicates of tasks where they are sent."""
        if unique:
            try:
                import_module("celery")
            except ModuleNotFoundError as error:
                raise ImproperlyConfigured(
                    'unique= is for Celery tasks, and Celery is not installed: pip install "django-zklock[celery]".'
                ) from error
            import_module(f"{__name__}.unique.publisher")
        if "celery" in sys.modules:
            connect()

    def context_of(self, wrapper: Callable[..., Any]) -> FunctionContext | None:
        """Return the context of a call by a worker; None for any other call."""
        if "celery" not in sys.modules:
            return None
        context: FunctionContext | None = import_module(f"{__name__}.context").running_task(wrapper)
        return context

    def has_task(self, wrapper: Callable[..., Any]) -> bool:
        """Return whether a task calls this decorated function."""
        if "celery" not in sys.modules:
            return False
        return bool(import_module(f"{__name__}.introspection").has_task(wrapper))


def register() -> None:
    """Let the decorator support Celery; repeating it is harmless."""
    register_library(CeleryLibrary())
