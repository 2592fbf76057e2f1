"""The middleware that answers a lock conflict, wherever in a view the lock is acquired."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.utils.deprecation import MiddlewareMixin

from django_zklock.http import responses


class LockConflictMiddleware(MiddlewareMixin):
    """Answer 409 or 503 if `LockNotAcquired`, `ZooKeeperUnavailable` or `LockLost` leaves a view."""

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """Return the response, or None for errors of other kinds."""
        return responses.answer(request, exception)
