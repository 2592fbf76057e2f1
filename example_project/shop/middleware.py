"""Tells the customer that their purchase was stopped, where a page would show a server error."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.utils.deprecation import MiddlewareMixin

from django_zklock.exceptions import LockLost
from shop.views import answer


class LockLostMiddleware(MiddlewareMixin):
    """Answer 503 to a request whose work was aborted: nothing was written, so it may be sent again."""

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        """Answer for `LockLost`, and leave the rest to Django."""
        if not isinstance(error, LockLost):
            return None
        return answer(request, "lock lost", status=503)
