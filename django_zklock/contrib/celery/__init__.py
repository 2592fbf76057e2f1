"""
Locks for Celery: decorated tasks, unique tasks, and several beats for one schedule.

This package imports Celery only if the process has done so already, or if a function has the option `unique`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured

from django_zklock.core import tellers
from django_zklock.decorators import library
from django_zklock.decorators.library import TaskLibrary

if TYPE_CHECKING:
    from django_zklock.decorators.context import FunctionContext

__all__ = ["connect"]


def connect() -> None:
    """Import the modules that connect to Celery's signals; repeating it is harmless."""
    for name in ("worker", "leaks", "unique.lifecycle"):
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
            import_module(f"{__name__}.unique.lifecycle").stop_duplicates()
        if "celery" in sys.modules:
            connect()

    def context_of(self, wrapper: Callable[..., Any]) -> FunctionContext | None:
        if "celery" not in sys.modules:
            return None
        context: FunctionContext | None = import_module(f"{__name__}.context").running_task(wrapper)
        return context

    def functions(self) -> Iterable[Callable[..., Any]]:
        if "celery" not in sys.modules:
            return ()
        functions: Iterable[Callable[..., Any]] = import_module(f"{__name__}.introspection").functions_of_tasks()
        return functions


def register() -> None:
    """Let the decorator support Celery, and let messages wait for releases; repeating it is harmless."""
    library.register(CeleryLibrary())
    tellers.connect_when_imported("celery", _connect_publishing)


def _connect_publishing() -> None:
    with suppress(ImportError):  # another module has that name
        import_module(f"{__name__}.publishing")
