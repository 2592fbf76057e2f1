"""Check what `@zk_locked` gets: the name, the function, and the result of each call. The errors say what to do."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any, Final, TypeGuard, cast

from asgiref.sync import iscoroutinefunction
from django.db.models import QuerySet
from django.http import StreamingHttpResponse
from django.template.response import SimpleTemplateResponse

from django_zklock.conf.arguments import Unset
from django_zklock.conf.options import LockOptions

# The code of all functions that these decorators return.
_CONTEXT_MANAGERS = [vars(contextlib)[name](iter).__code__ for name in ("contextmanager", "asynccontextmanager")]
_FUTURES: Final = (concurrent.futures.Future, asyncio.Future)
_LAZY: Final = (types.GeneratorType, types.AsyncGeneratorType, types.CoroutineType, map, filter, zip)


def check_name(name: object) -> None:
    """Raise `TypeError` unless this is the name of a lock, a callable that may return one, a list of these, or none."""
    names = name if isinstance(name, (list, tuple)) else [name]
    if not names or not all(isinstance(item, (str, Unset)) or callable(item) for item in names):
        raise TypeError(_needs_name(f"it got {name!r}"))


def _needs_name(why: str) -> str:
    return (
        '@zk_locked needs the name of a lock first, as in @zk_locked("inventory/{sku}"), or a callable that returns '
        f"it, or a list of these; {why}."
    )


def check_own_name(function: Callable[..., Any]) -> None:
    """Raise `TypeError` if a function cannot name a lock."""
    scripts = (None, "__main__", "__mp_main__")  # others may have a function of that name
    if "<" in getattr(function, "__qualname__", "<lambda>") or function.__module__ in scripts:
        raise TypeError(_needs_name(f"{function!r} has no name of its own, as a function of an imported module has"))


def check_function(function: Any, options: LockOptions) -> None:
    """Raise `TypeError` for anything that cannot run inside a lock with these options."""
    name = getattr(function, "__qualname__", function)
    if isinstance(function, (type, staticmethod)) or not callable(function):
        raise TypeError(
            f'@zk_locked("name"), with parentheses, locks functions, not {function!r}. Put it below @staticmethod, '
            '@classmethod or @property. For a class-based view, decorate its handlers ("get", "post"), or use '
            '@method_decorator(zk_locked(...), name="post") on the class.'
        )
    if hasattr(function, "apply_async") or hasattr(function, "enqueue"):  # of Celery; of Django
        raise TypeError(
            f"{name} is a task, not a function, so calling the task would not acquire the lock; put @zk_locked below "
            "the decorator that makes the task:\n    @shared_task\n    @zk_locked(...)\n    def ..."
        )
    is_generator = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    if is_generator or getattr(function, "__code__", None) in _CONTEXT_MANAGERS:
        raise TypeError(
            f"{name} is a generator or a context manager. Its work runs after the call has returned and the lock is "
            'released; use "with zk_lock(...)" inside it.'
        )
    if options.get("atomic") and iscoroutinefunction(function):
        raise TypeError(
            f"{name} is async, and Django has no transactions in async code; put lock and atomic=True into a sync "
            "function and await sync_to_async(function)(...)."
        )


def check_result(result: Any, name: str) -> None:
    """
    Raise `TypeError` for a result whose work would run after the release, such as a coroutine or a streamed body.

    `name` is that of the function, for the error. A response with a file passes: the function has opened it, and only
    its content is still to be read. Only the type is looked at: `isinstance` would load a lazy object.
    """
    kind = type(result)
    if issubclass(kind, StreamingHttpResponse):
        is_lazy = getattr(result, "file_to_stream", None) is None
    elif issubclass(kind, _FUTURES):
        is_lazy = not result.done()
    elif issubclass(kind, QuerySet):
        is_lazy = result._result_cache is None and not result.query.is_empty()
    else:
        is_lazy = issubclass(kind, _LAZY)
    if is_lazy:
        if kind is types.CoroutineType:
            result.close()
        raise TypeError(
            f"{name} returned a {kind.__name__}, whose work would run after the lock is released. Do it in the "
            'function: list(...), future.result(), or await in an "async def". Of a streamed response, compute the '
            'body in the view, or acquire the lock in the generator, by "with zk_lock(...)".'
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
