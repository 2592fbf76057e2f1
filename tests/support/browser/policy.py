"""A strict Content-Security-Policy, and a header with the time that a page took."""

import os
import time

THEMED = bool(os.environ.get("UNFOLD"))  # whether the site is under this theme, whose own scripts and styles are inline

POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'" + (" 'unsafe-inline' 'unsafe-eval'" if THEMED else ""),
        "style-src 'self'" + (" 'unsafe-inline'" if THEMED else ""),
        "img-src 'self' data:",  # Django's own style sheets draw with data: images
        "font-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    ]
)


def strict(get_response):
    def answer(request):
        began, computed = time.perf_counter(), time.process_time()
        response = get_response(request)
        response["Content-Security-Policy"] = POLICY
        took = {"view": time.perf_counter() - began, "cpu": time.process_time() - computed}
        response["Server-Timing"] = ", ".join(f"{name};dur={seconds * 1000:.1f}" for name, seconds in took.items())
        return response

    return answer
