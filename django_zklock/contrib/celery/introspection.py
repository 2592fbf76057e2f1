"""Find the decorated function of a Celery task, and what a call of the task passes to it."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import celery.app.base
from celery import Task, _state, current_app
from django.core.exceptions import ImproperlyConfigured

from django_zklock.names.binding import signature_of

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
    validator: Callable[..., Any] | None = None
    """Celery's wrapper with `pydantic=True` around it, which turns arguments into models."""
    override: Callable[..., Any] | None = None
    """The method of a subclass that gets the message's arguments, and passes them on to this one."""

    def arguments(self, args: Any, kwargs: Any) -> _Arguments:
        """Return its arguments when its task is called with these."""
        args, kwargs = (*self.first, *(args or ())), {**self.keywords, **(kwargs or {})}
        if self.validator is not None:
            args, kwargs = _validated(self.validator, args, kwargs)
        if self.override is not None:
            args, kwargs = _passed_on(self.override, self.function, args, kwargs)
        return args, kwargs


def functions_of(task: Any) -> Iterator[TaskFunction]:
    """
    Yield the functions that a call of the task goes through, outermost first.

    Agents for monitoring put a proxy around the task, or replace its attribute `run`. So this begins with the `run` of
    the task that the app has under that name, and follows `__wrapped__`. Then it does the same with the class's `run`,
    and with that of each base class that an override calls by `super()`. A class may define `__call__`, too.
    """
    registered = getattr(getattr(task, "app", None), "_tasks", {}).get(getattr(task, "name", None), task)
    yield from _methods(registered, "__call__")
    yield from _layers(getattr(registered, "run", None))
    yield from _methods(registered, "run")


def _methods(task: Any, name: str) -> Iterator[TaskFunction]:
    override: Any = None  # the first one
    caller: Any = None  # the one of the class before
    for cls in task.__class__.__mro__:
        method = vars(cls).get(name)
        if cls is Task or not hasattr(method, "__get__"):
            continue
        if caller is not None and not _calls(caller, cls, name):
            return
        yield from _layers(method.__get__(task), override)
        caller = inspect.unwrap(method)
        override = override or caller


def _calls(method: Any, cls: type, name: str) -> bool:
    """Return whether a method has `super().name` or `cls.name` in its code, as far as the names in it tell."""
    names: tuple[str, ...] = getattr(getattr(method, "__code__", None), "co_names", ())
    return name in names and ("super" in names or cls.__name__ in names)


def _layers(function: Any, override: Callable[..., Any] | None = None) -> Iterator[TaskFunction]:
    first: tuple[Any, ...] = ()
    keywords: dict[str, Any] = {}
    validator: Callable[..., Any] | None = None
    while function is not None:
        first = (function.__self__,) if hasattr(function, "__self__") else first
        function = getattr(function, "__func__", function)
        yield TaskFunction(function, first, keywords, validator, override)
        if isinstance(function, functools.partial):
            first = (*function.args, *first)
            keywords = {**function.keywords, **keywords}
            function = function.func
            continue
        if "task_fun" in _free_names(function):
            validator = function
        function = getattr(function, "__wrapped__", None)


def _free_names(function: Any) -> tuple[str, ...]:
    """Return the names of the enclosing variables of a function of Celery's application; of another one, none."""
    return function.__code__.co_freevars if getattr(function, "__globals__", None) is vars(celery.app.base) else ()


def _validated(validator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Arguments:
    """Return the arguments that Celery's wrapper passes on: it runs, around a function that returns them."""
    returned = CellType(lambda *args, **kwargs: (args, kwargs))
    cells = zip(_free_names(validator), validator.__closure__, strict=True)
    closure = tuple(returned if name == "task_fun" else cell for name, cell in cells)
    copy: Any = FunctionType(validator.__code__, validator.__globals__, closure=closure)
    return cast("_Arguments", copy(*args, **kwargs))


def _passed_on(override: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Arguments:
    """
    Return the arguments that an override passes on, which are those with the same names.

    Raises `ImproperlyConfigured` if others are missing, so that only the override can compute them.
    """
    bound = signature_of(override).bind(*args, **kwargs)
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in bound.signature.parameters.values()):
        return args, kwargs
    bound.apply_defaults()
    named = bound.kwargs | dict(zip(bound.arguments, bound.args, strict=False))
    parameters = list(signature_of(function).parameters.values())[1:]  # without `self`
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        named = {parameter.name: named[parameter.name] for parameter in parameters if parameter.name in named}
    try:
        signature_of(function).bind(args[0], **named)
    except TypeError as error:
        raise ImproperlyConfigured(
            f"{override.__qualname__} calls {function.__qualname__}, which has @zk_locked, with other arguments than "
            f"its own ({error}), so the lock is not known before the task runs. Put @zk_locked on the first of the two."
        ) from error
    return args[:1], named


def locked_of(task: object) -> LockedFunction | None:
    """Return the lock around a task's function; None if it is not decorated."""
    return next(filter(None, (lock_around(layer.function) for layer in functions_of(task))), None)


def arguments(task: object, args: Any, kwargs: Any) -> _Arguments:
    """
    Return the arguments of the decorated function when its task is called with these.

    Raises `TypeError`, `ImproperlyConfigured`, or the `ValueError` of a model if they are not valid.
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
                yield from (layer.function for layer in functions_of(task))


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


def unused_locks(task: Any) -> Iterator[LockedFunction]:
    """Yield the locks of methods of base classes that a task replaces without a call of them."""
    used = {layer.function for layer in functions_of(task)}
    for cls in task.__class__.__mro__:
        for name in ("__call__", "run"):
            locked = lock_around(vars(cls).get(name))
            if locked is not None and locked.wrapper not in used:
                yield locked
