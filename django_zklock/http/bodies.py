"""The body of a locked view's response: it is complete before the lock is released."""

from __future__ import annotations

import contextlib
import sys
from typing import TypeGuard

from django.http import StreamingHttpResponse
from django.template.response import SimpleTemplateResponse


def check_body(response: object, view: object) -> None:
    """
    Raise `TypeError` for a response whose body would be computed after the release, and close it.

    A file passes: the view has opened it, and only its content is still to be sent.
    """
    if not isinstance(response, StreamingHttpResponse) or getattr(response, "file_to_stream", None) is not None:
        return
    # `response.close()` would report the end of the request, too, and so close database connections.
    for close in response._resource_closers:  # type: ignore[attr-defined]
        with contextlib.suppress(Exception):  # as Django does
            close()
    raise TypeError(
        f"{view!r} returned a {type(response).__name__}, whose body would be computed after the lock is released. "
        'Acquire the lock in the generator that computes the body, by "with zk_lock(...)", instead of around the view. '
        'Or compute the body in the view: HttpResponse(b"".join(parts)).'
    )


def is_unrendered(response: object) -> TypeGuard[SimpleTemplateResponse]:
    """
    Return True if the result of a function is a response that is still to be rendered, and can be.

    Django REST framework chooses the renderer when the handler has returned, so a response of a locked handler is
    rendered after the release. One of a locked `dispatch` has its renderer.
    """
    if not isinstance(response, SimpleTemplateResponse) or response.is_rendered:
        return False
    rest = sys.modules.get("rest_framework.response")
    return rest is None or not isinstance(response, rest.Response) or hasattr(response, "accepted_renderer")
