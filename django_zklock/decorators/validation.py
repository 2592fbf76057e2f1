"""Knows what `@zk_locked` cannot be given or put round, and tells its authors what to do instead."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from asgiref.sync import iscoroutinefunction

from django_zklock.conf.options import UNSET, LockOptions

R = TypeVar("R")


def refuse_unnamed(name: object) -> None:
    """Raise for what names no lock."""
    each = name if isinstance(name, (list, tuple)) else [name]
    if not each or not all(isinstance(one, str) or callable(one) for one in each):
        raise TypeError(
            f"zk_locked needs the name of a lock, or a callable that returns it, or a list of these, not {name!r}."
        )
    for one in each:
        if not isinstance(one, str) and _returns_no_text(one):
            raise TypeError(_unnamed(f"{_called(one)} returns no text that could be one"))


def the_function(name: object, given: tuple[Any, ...], more: Mapping[str, object]) -> Any:
    """
    Return the one function that was given to be locked; raise if there is none.

    If `name` is a callable, it may be the function itself, under a decorator without parentheses, and this its call.
    """
    alone = len(given) == 1 and not more
    if callable(name) and not (alone and callable(given[0])):
        raise TypeError(_unnamed(f"{_called(name)} was taken for a callable that returns one"))
    if not alone:
        raise TypeError(f"zk_locked({name!r}) decorates one function; it was called with other arguments.")
    return given[0]


def _unnamed(why: str) -> str:
    return f'@zk_locked needs the name of a lock first, as in @zk_locked("inventory/{{sku}}"); {why}.'


def _called(function: object) -> str:
    return str(getattr(function, "__qualname__", function))


def _returns_no_text(function: object) -> bool:
    if isinstance(function, type):
        return not issubclass(function, str)
    if hasattr(function, "apply_async") or hasattr(function, "enqueue"):
        return True
    return (
        iscoroutinefunction(function) or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    )


def refuse_unlockable(function: object) -> None:
    """Raise for what a lock cannot be put round."""
    if isinstance(function, type):
        raise TypeError(
            f'@zk_locked locks functions, not the class {function.__name__}; for a view, decorate its handlers ("get", '
            f'"post"), or use @method_decorator(zk_locked(...), name="post") on the class.'
        )
    if hasattr(function, "apply_async") or hasattr(function, "enqueue"):
        raise TypeError(
            "@zk_locked got a task, not a function, so calling the task would not take the lock; put @zk_locked below "
            "the decorator that makes the task:\n    @shared_task\n    @zk_locked(...)\n    def ..."
        )
    if isinstance(function, classmethod):
        raise TypeError("@zk_locked got a class method, which is no function yet; put it below @classmethod.")
    if not callable(function):
        raise TypeError(_unnamed(f"it got {function!r}"))
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"{getattr(function, '__qualname__', function)} is a generator, which runs after the call that made it has "
            'returned and the lock is released; use "with zk_lock(...)" inside it.'
        )


def refuse_async_atomic(function: Callable[..., Any], options: LockOptions) -> None:
    """Raise where a coroutine is to be a transaction."""
    if options.atomic not in (UNSET, ()) and iscoroutinefunction(function):
        raise TypeError(
            f"{getattr(function, '__qualname__', function)} is async, and Django has no transactions in async code; "
            "put lock and transaction into a sync function and await sync_to_async(function)(...)."
        )


def refuse_awaitable(result: R, locked: object) -> R:
    """Return the result of a sync function; raise if its work is still to be done."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError(
            f"{locked!r} is a sync function and returned an awaitable, whose work would run after the lock is "
            'released; make it an "async def".'
        )
    return result
