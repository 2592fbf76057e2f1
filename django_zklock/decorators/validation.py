"""Check what `@zk_locked` gets: the name, the function, and the result of each call. The errors say what to do."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import inspect
import itertools
import sys
import threading
import types
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from io import IOBase
from typing import Any, Final, TypeGuard, cast

from asgiref.sync import iscoroutinefunction
from django.core.paginator import Page
from django.db.models import QuerySet
from django.db.models.query import RawQuerySet
from django.http import StreamingHttpResponse
from django.template.response import SimpleTemplateResponse

from django_zklock.conf.arguments import Unset
from django_zklock.conf.options import LockOptions

# The code of all functions that these decorators return.
_CONTEXT_MANAGERS = [vars(contextlib)[name](iter).__code__ for name in ("contextmanager", "asynccontextmanager")]
# Methods that send a task: of Celery; of Django and RQ; of Dramatiq, Procrastinate and Huey.
_TASK_METHODS = ("apply_async", "enqueue", "send_with_options", "defer", "call_local")
_FUTURES: Final = (concurrent.futures.Future, asyncio.Future)
_LAZY: Final = (Iterator, AsyncIterator, contextlib._GeneratorContextManagerBase, types.CoroutineType)
_MOST_SEEN: Final = 20
"""Items of a list or a dict, and of all together, that are looked at. A list of futures begins with one."""


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
    function, scripts = args[0], (None, "__main__", "__mp_main__")  # others may have a function of that name
    is_nameless = "<" in getattr(function, "__qualname__", "<lambda>")
    if isinstance(name, Unset) and (is_nameless or function.__module__ in scripts):
        raise TypeError(_needs_name(f"{function!r} has no name of its own, as a function of an imported module has"))
    return function


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
    _check_kind(function)
    if _is_generator(function):
        raise TypeError(
            f"{_name_of(function)} is a generator or a context manager. Its work runs after the call has returned and "
            'the lock is released; use "with zk_lock(...)" inside it.'
        )
    if _is_receiver(function):
        raise TypeError(
            f"A signal has {_name_of(function)} already, and would call it without its @zk_locked. Put @zk_locked "
            "directly above the function, below the decorator that connects it."
        )
    if options.get("atomic") and iscoroutinefunction(function):
        raise TypeError(
            f"{_name_of(function)} is async, and Django has no transactions in async code; put lock and atomic=True "
            "into a sync function and await sync_to_async(function)(...)."
        )


def _check_kind(function: object) -> None:
    """Raise `TypeError` for what is no function: a class, a task, a static method, or a value."""
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


def _is_receiver(function: object) -> bool:
    """Return whether a signal has a weak reference to the function, or to one that it wraps."""
    while isinstance(function, types.FunctionType):  # `method_decorator` makes others for each call
        for reference in weakref.getweakrefs(function):
            callback: Any = reference.__callback__
            if isinstance(callback, weakref.finalize):  # as Celery has it, and Django before 6.1
                _, callback, *_ = callback.peek() or (None, None)
            is_signal = hasattr(getattr(callback, "__self__", None), "connect")
            # Its module may have the function itself, which other code calls without the lock on purpose.
            if is_signal and function.__globals__.get(function.__name__) is not function:
                return True
        function = getattr(function, "__wrapped__", None)
    return False


def check_result(result: object, function: Callable[..., Any], name: str) -> None:
    """
    Raise `TypeError` for a result whose work would run after the release, such as a coroutine or a streamed body.

    `name` is that of the function, for the error. A file passes, and the response with one: the function has opened it,
    and only its content is still to be read. Of other objects, only the types are looked at: `isinstance` would load a
    lazy one.
    """
    if issubclass(type(result), StreamingHttpResponse):
        _check_body(cast("StreamingHttpResponse", result), name)
        return
    kinds = _LAZY if iscoroutinefunction(function) else (*_LAZY, Awaitable)
    for value in itertools.islice(_parts(result), _MOST_SEEN):
        if not _is_lazy(value, kinds):
            continue
        if type(value) is types.CoroutineType:
            value.close()
        within = "" if value is result else f" in a {type(result).__name__}"
        raise TypeError(
            f"{name} returned a {type(value).__name__}{within}, whose work would run after the lock is released. "
            'Do it in the function: list(...), future.result(), thread.join(), or await in an "async def".'
        )


def _parts(result: object) -> Iterator[object]:
    """Yield the result, or the data of a response that is rendered later; of lists and dicts, their first items."""
    parts: deque[Any] = deque([result])
    if issubclass(type(result), SimpleTemplateResponse):
        parts = deque([getattr(result, "data", None)])
    for _ in range(_MOST_SEEN**2):
        if not parts:
            return
        part = parts.popleft()
        if issubclass(type(part), Mapping):
            parts.extend(itertools.islice(part.values(), _MOST_SEEN))
        elif issubclass(type(part), (list, tuple, set, frozenset)):
            parts.extend(itertools.islice(part, _MOST_SEEN))
        else:
            yield part


def _is_lazy(value: Any, kinds: tuple[type, ...]) -> bool:
    """
    Return whether work remains: of an iterator, a future, a thread that was not started, or of a QuerySet, or a page of
    one, that has read no rows.

    An iterator that knows how many items remain, as that of a list does, has computed them. So has an open file.
    """
    kind = type(value)
    if issubclass(kind, _FUTURES):
        return not value.done()
    if issubclass(kind, threading.Thread):
        return value.ident is None
    if _is_unread(value.object_list if issubclass(kind, Page) else value):
        return True
    if not issubclass(kind, kinds) or issubclass(kind, IOBase) or hasattr(kind, "__length_hint__"):
        return False
    return not issubclass(kind, Iterator) or iter(value) is value  # a mock only looks like one


def _is_unread(rows: Any) -> bool:
    """Return whether this is a QuerySet that has read no rows, and would find some."""
    if issubclass(type(rows), RawQuerySet):
        return rows._result_cache is None
    return issubclass(type(rows), QuerySet) and rows._result_cache is None and not rows.query.is_empty()


def _check_body(response: StreamingHttpResponse, name: str) -> None:
    if getattr(response, "file_to_stream", None) is not None:
        return
    # `response.close()` would report the end of the request, too, and so close database connections.
    for close in response._resource_closers:  # type: ignore[attr-defined]
        with contextlib.suppress(Exception):  # as Django does
            close()
    raise TypeError(
        f"{name} returned a {type(response).__name__}, whose body would be computed after the lock is "
        'released. Acquire the lock in the generator that computes the body, by "with zk_lock(...)", instead of around '
        'the view. Or compute the body in the view: HttpResponse(b"".join(parts)).'
    )


def is_unrendered(response: object) -> TypeGuard[SimpleTemplateResponse]:
    """
    Return True if the result of a function is a response that is not rendered yet, and has its renderer.

    Django REST framework chooses the renderer when the handler has returned, so a response of a locked handler is
    rendered after the release. A response of a locked `dispatch` has its renderer already.
    """
    if not issubclass(type(response), SimpleTemplateResponse) or cast("SimpleTemplateResponse", response).is_rendered:
        return False
    rest = sys.modules.get("rest_framework.response")
    return rest is None or not issubclass(type(response), rest.Response) or hasattr(response, "accepted_renderer")
