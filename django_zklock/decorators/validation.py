"""Check the name that `@zk_locked` gets, and the function that it decorates. The errors say what to do instead."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Mapping
from typing import Any

from asgiref.sync import iscoroutinefunction

from django_zklock.conf.options import UNSET, LockOptions, Unset

# The code of all functions that these decorators return.
_CONTEXT_MANAGERS = [vars(contextlib)[name](iter).__code__ for name in ("contextmanager", "asynccontextmanager")]
# Methods that send a task: of Celery; of Django and RQ; of Dramatiq, Procrastinate and Huey.
_TASK_METHODS = ("apply_async", "enqueue", "send_with_options", "defer", "call_local")


def check_name(name: object) -> None:
    """Raise `TypeError` unless this is the name of a lock, a callable that may return one, a list of these, or none."""
    names = name if isinstance(name, (list, tuple)) else [name]
    if not names or not all(isinstance(item, (str, Unset)) or callable(item) for item in names):
        raise TypeError(
            f"zk_locked needs the name of a lock, or a callable that returns it, or a list of these, not {name!r}."
        )
    for item in names:
        if not isinstance(item, str) and _returns_no_text(item):
            raise TypeError(_needs_name(f"{_name_of(item)} does not return a string"))


def function_to_lock(name: object, args: tuple[Any, ...], kwargs: Mapping[str, object]) -> Any:
    """
    Return the one function that is decorated. Raises `TypeError` if the decorator got anything else.

    `@zk_locked` without parentheses passes the decorated function as `name`. Then `args` are those of its first call.
    """
    has_one_argument = len(args) == 1 and not kwargs
    if callable(name) and not (has_one_argument and callable(args[0])):
        raise TypeError(_needs_name(f"{_name_of(name)} was read as a callable that returns one"))
    if not has_one_argument:
        raise TypeError(f"zk_locked({name!r}) decorates one function; it was called with other arguments.")
    if isinstance(name, Unset) and not _has_own_name(args[0]):
        raise TypeError(_needs_name(f"{args[0]!r} has no name of its own, as a function of an imported module has"))
    return args[0]


def _has_own_name(function: Any) -> bool:
    scripts = (None, "__main__", "__mp_main__")  # others may have a function of that name
    return function.__module__ not in scripts and "<" not in getattr(function, "__qualname__", "<lambda>")


def _needs_name(why: str) -> str:
    return f'@zk_locked needs the name of a lock first, as in @zk_locked("inventory/{{sku}}"); {why}.'


def _name_of(function: object) -> str:
    return str(getattr(function, "__qualname__", function))


def _is_task(function: object) -> bool:
    return any(hasattr(function, method) for method in _TASK_METHODS)


def _is_generator(function: object) -> bool:
    generator = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    return generator or getattr(function, "__code__", None) in _CONTEXT_MANAGERS


def _returns_no_text(function: object) -> bool:
    if isinstance(function, type):
        return not issubclass(function, str)
    return _is_task(function) or iscoroutinefunction(function) or _is_generator(function)


def check_function(function: object, options: LockOptions) -> None:
    """Raise `TypeError` for anything that cannot run inside a lock with these options."""
    if isinstance(function, type):
        raise TypeError(
            f'@zk_locked locks functions, not the class {function.__name__}; for a view, decorate its handlers ("get", '
            f'"post"), or use @method_decorator(zk_locked(...), name="post") on the class.'
        )
    if _is_task(function):
        maker = "@shared_task" if hasattr(function, "apply_async") else "@task"
        raise TypeError(
            "@zk_locked got a task, not a function, so calling the task would not acquire the lock; put @zk_locked "
            f"below the decorator that makes the task:\n    {maker}\n    @zk_locked(...)\n    def ..."
        )
    if isinstance(function, staticmethod) or (hasattr(function, "__get__") and not callable(function)):
        kind = type(function).__name__
        raise TypeError(f"@zk_locked got a {kind}, not a function; put it below @{kind}, on the function itself.")
    if not callable(function):
        raise TypeError(_needs_name(f"it got {function!r}"))
    if _is_generator(function):
        raise TypeError(
            f"{_name_of(function)} is a generator or a context manager. Its work runs after the call has returned and "
            'the lock is released; use "with zk_lock(...)" inside it.'
        )
    if options.atomic not in (UNSET, ()) and iscoroutinefunction(function):
        raise TypeError(
            f"{_name_of(function)} is async, and Django has no transactions in async code; put lock and transaction "
            "into a sync function and await sync_to_async(function)(...)."
        )
