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
    from celery import Task

    from django_zklock.core.queue.operator_hold import OperatorHold
    from django_zklock.decorators.context import FunctionContext

__all__ = ["connect", "queued"]


def connect() -> None:
    """Import the modules that connect to Celery's signals; repeating it is harmless."""
    for name in ("worker", "leaks", "unique.lifecycle"):
        import_module(f"{__name__}.{name}")


def queued(task: Task[..., Any], /, *args: Any, **kwargs: Any) -> OperatorHold | None:
    """
    Return the reservation of the task that is queued or runs with the key of this call. Send nothing.

    None: `task.delay(*args, **kwargs)` would send a task now. Another process may do so in between, so this is for a
    page, not for a decision. It waits 5 s for ZooKeeper at most. In a coroutine, use `sync_to_async(queued)`.

    Raises:
        TypeError: the task is not unique, or does not take these arguments.
        ZooKeeperUnavailable: ZooKeeper did not answer in time.
        UnreadableQueue: another program has written to the reservations of this key.

    """
    from django_zklock.locks.arguments import check_no_running_loop  # noqa: PLC0415 - not at the start of Django

    check_no_running_loop("queued", "await sync_to_async(queued)(...)")
    lifecycle = import_module(f"{__name__}.unique.lifecycle")
    hold: OperatorHold | None = lifecycle.reservation_of(task, args, kwargs)
    return hold


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
