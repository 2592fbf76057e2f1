"""Find the decorated function of a Celery task, and what a call of the task passes to it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from celery import Task, _state, current_app

if TYPE_CHECKING:
    from django_zklock.decorators.locked import LockedFunction

_Arguments: TypeAlias = "tuple[tuple[Any, ...], dict[str, Any]]"


@dataclass(frozen=True, slots=True)
class TaskFunction:
    """A function that a call of a task goes through, and how it gets the arguments of the message."""

    function: Callable[..., Any]
    first: tuple[Any, ...] = ()
    """Arguments before those of the message: the task itself, or those of a partial."""
    keywords: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of a partial."""

    def arguments(self, args: Any, kwargs: Any) -> _Arguments:
        """Return its arguments when its task is called with these."""
        return (*self.first, *(args or ())), {**self.keywords, **(kwargs or {})}


def functions_of(task: Any) -> Iterator[TaskFunction]:
    """
    Yield the functions that a call of the task goes through, outermost first.

    Agents for monitoring put a proxy around the task, or replace its attribute `run`. So this begins with the `run` of
    the task that the app has under that name, and follows `__wrapped__`. Then it does the same with the class's `run`.
    A class may define `__call__`, too.
    """
    registered = getattr(getattr(task, "app", None), "_tasks", {}).get(getattr(task, "name", None), task)
    yield from _layers(_method(registered, "__call__"))
    yield from _layers(getattr(registered, "run", None))
    yield from _layers(_method(registered, "run"))


def _method(task: Any, name: str) -> Any:
    """Return the method that the class of a task, or a base class, has in place of that of Celery's `Task`."""
    for cls in task.__class__.__mro__:
        method = vars(cls).get(name)
        if cls is not Task and hasattr(method, "__get__"):
            return method.__get__(task)
    return None


def _layers(function: Any) -> Iterator[TaskFunction]:
    first: tuple[Any, ...] = ()
    keywords: dict[str, Any] = {}
    while function is not None:
        first = (function.__self__,) if hasattr(function, "__self__") else first
        function = getattr(function, "__func__", function)
        yield TaskFunction(function, first, keywords)
        if isinstance(function, functools.partial):
            first = (*function.args, *first)
            keywords = {**function.keywords, **keywords}
            function = function.func
        else:
            function = getattr(function, "__wrapped__", None)


def overridden_locks(task: Any) -> Iterator[LockedFunction]:
    """Yield the locks of methods of base classes that a class of the task overrides. It may call them, or not."""
    used = {layer.function for layer in functions_of(task)}
    for cls in task.__class__.__mro__:
        for name in ("__call__", "run"):
            locked = lock_around(vars(cls).get(name))
            if locked is not None and locked.wrapper not in used:
                yield locked


def all_functions_of(task: Any) -> Iterator[Callable[..., Any]]:
    """Yield the functions that a call of the task goes through, or may go through if a class overrides one."""
    yield from (layer.function for layer in functions_of(task))
    yield from (locked.wrapper for locked in overridden_locks(task))


def locked_of(task: object) -> LockedFunction | None:
    """Return the lock around a task's function; None if it is not decorated."""
    return next(filter(None, (lock_around(layer.function) for layer in functions_of(task))), None)


def arguments(task: object, args: Any, kwargs: Any) -> _Arguments:
    """
    Return the arguments of the decorated function when its task is called with these.

    Raises `TypeError` if they are not valid.
    """
    decorated = next(layer for layer in functions_of(task) if lock_around(layer.function) is not None)
    return decorated.arguments(args, kwargs)


def lock_around(function: object) -> LockedFunction | None:
    """Return the lock of a decorated function. Other decorators copy the attribute, but have no lock."""
    locked: LockedFunction | None = getattr(function, "zk_locked", None)
    return locked if locked is not None and locked.wrapper is function else None


def functions_of_tasks() -> Iterator[Callable[..., Any]]:
    """Yield the functions that calls of the tasks of any application go through."""
    apps: Any = [current_app, *_state._get_active_apps()]  # type: ignore[attr-defined]
    for app in apps:
        if app.finalized or app.autofinalize:
            for task in app.tasks.values():
                yield from all_functions_of(task)


def is_in_task() -> bool:
    """Return whether the present run is inside another one, as `apply()` in the body of a task is."""
    return len(_state._task_stack) > 1  # type: ignore[attr-defined]


def celery_calls() -> Literal["", "task", "worker"]:
    """
    Return where Celery itself makes the present call: inside the run of a task, outside of any ("worker"), or nowhere.

    It calls error handlers, methods such as `on_failure`, receivers of signals, and the items of `map`. What these call
    counts, too. Looked up in Celery 5.5 to 5.7: the tracer calls the body of a task itself, some methods when it knows
    the state of the task, and all the rest by other functions of Celery.
    """
    by_celery = False
    called = sys._getframe(1)
    while (frame := called.f_back) is not None:
        module = frame.f_globals.get("__name__", "")
        by_celery = by_celery or module in ("celery.backends.base", "celery.app.builtins")  # error handlers and `map`
        if frame.f_code.co_name == "trace_task" and module == "celery.app.trace":
            of_celery = called.f_globals.get("__name__", "").startswith("celery.")
            is_body = not of_celery or called.f_code.co_name in ("__call__", "__protected_call__")
            has_ended = frame.f_locals.get("state") is not None
            return "task" if by_celery or has_ended or not is_body else ""
        called = frame
    return "worker" if by_celery else ""
