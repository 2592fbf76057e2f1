"""Check the result of a decorated function: no work and no response body may be left to run after the release."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any, Final, TypeGuard

from asgiref.sync import iscoroutinefunction
from django.http import StreamingHttpResponse
from django.template.response import SimpleTemplateResponse

_FUTURES: Final = (concurrent.futures.Future, asyncio.Future)
_GENERATORS: Final = (types.GeneratorType, types.AsyncGeneratorType, contextlib._GeneratorContextManagerBase)
_UNFINISHED: Final = (*_FUTURES, *_GENERATORS, map, filter, types.CoroutineType)


def check_result(result: object, function: Callable[..., Any], name: str) -> None:
    """
    Raise `TypeError` for a result whose work would run after the release, such as a coroutine or a streamed body.

    `name` is that of the function, for the error. A file response passes: the view has opened the file, and only its
    content is still to be sent.
    """
    if isinstance(result, StreamingHttpResponse):
        _check_body(result, name)
        return
    if not isinstance(result, _UNFINISHED) and (not inspect.isawaitable(result) or iscoroutinefunction(function)):
        return
    if isinstance(result, _FUTURES) and result.done():
        return
    if inspect.iscoroutine(result):
        result.close()
    raise TypeError(
        f"{name} returned a {type(result).__name__}, whose work would run after the lock is released. "
        'Return what it gives: list(...), future.result(), or await it in an "async def".'
    )


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
    if not isinstance(response, SimpleTemplateResponse) or response.is_rendered:
        return False
    rest = sys.modules.get("rest_framework.response")
    return rest is None or not isinstance(response, rest.Response) or hasattr(response, "accepted_renderer")
