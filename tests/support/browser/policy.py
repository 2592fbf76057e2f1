"""Knows what a careful site allows its pages, and tells how long a page took to make."""

from __future__ import annotations

import time
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",  # Django's own style sheets draw with data: images
        "font-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    ]
)


def strict(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Middleware: add the policy, and the milliseconds that the answer took."""

    def answer(request: HttpRequest) -> HttpResponse:
        began = time.perf_counter()
        response = get_response(request)
        response["Content-Security-Policy"] = POLICY
        response["Server-Timing"] = f"view;dur={(time.perf_counter() - began) * 1000:.1f}"
        return response

    return answer
