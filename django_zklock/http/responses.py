"""Knows what a view answers when its lock is not to be had: 409, 503 or 204, as page or as JSON."""

from __future__ import annotations

import logging
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template import TemplateDoesNotExist, loader

from django_zklock.conf.options import LockOptions
from django_zklock.exceptions import LockLost, LockNotAcquired, ZkLockError
from django_zklock.execution import transactions
from django_zklock.locks.multi import Locks

logger = logging.getLogger("django_zklock.responses")

RETRY_AFTER_CONFLICT = 1  # seconds
RETRY_AFTER_OUTAGE = 5  # seconds

_DETAILS = {
    409: "Somebody else is working on this right now. Please try again in a moment.",
    503: "This is not possible at the moment. Please try again in a few seconds.",
}

CONFLICT, UNAVAILABLE, LOST = "lock_conflict", "lock_unavailable", "lock_lost"
"""The `code` in an answer in JSON: somebody else has the lock; nobody can tell who has; it was lost under the work."""


def find_request(args: tuple[Any, ...]) -> HttpRequest | None:
    """Return the request among the first two arguments (the second, in a method), Django's own where it is wrapped."""
    for argument in args[:2]:
        request = getattr(argument, "_request", argument)  # Django REST framework's wraps it
        if isinstance(request, HttpRequest):
            return request
    return None


class ViewCall:
    """A call of a view: waits 5 s, then answers."""

    timeout = 5.0
    on_conflict = "respond"

    def __init__(self, request: HttpRequest, what: str) -> None:
        self.what = what
        # The route, not the path: that holds arguments, and a link to set a new password is one.
        route = "" if request.resolver_match is None else request.resolver_match.route
        self.about = {"request": f"{request.method} /{route}"}
        self._request = request

    def entering(self, lock: Locks, options: LockOptions) -> None:
        """Do nothing."""

    def admitted(self) -> None:
        """Do nothing."""

    def refused(self, error: ZkLockError, lock: Locks, options: LockOptions) -> HttpResponse:
        """Answer 409 when somebody else has the lock, 503 when nobody can tell who has."""
        if options.on_conflict == "skip" and isinstance(error, LockNotAcquired):
            return HttpResponse(status=204)
        if options.on_conflict not in ("respond", "skip", "wait"):
            raise error
        if isinstance(error, LockNotAcquired):
            return self._answer(409, RETRY_AFTER_CONFLICT, CONFLICT)
        logger.error("%s: %s", self.what, error, extra={"lock": error.lock})
        return self._answer(503, RETRY_AFTER_OUTAGE, UNAVAILABLE)

    def lost(self, error: LockLost, options: LockOptions) -> HttpResponse:
        """
        Answer 503, and have the transaction round the view rolled back: its work was cut off in the middle.

        That of `ATOMIC_REQUESTS` or of a decorator above would be committed, as an answer is no exception. That of a
        `TestCase` is not the view's.
        """
        if options.on_conflict not in ("respond", "wait"):
            raise error
        transactions.roll_back()
        logger.error("%s was stopped: %s", self.what, error, exc_info=error, extra={"lock": error.lock})
        return self._answer(503, RETRY_AFTER_OUTAGE, LOST)

    def _answer(self, status: int, retry_after: int, code: str) -> HttpResponse:
        response: HttpResponse
        detail = _DETAILS[status]
        if self._request.get_preferred_type(["text/html", "application/json"]) == "application/json":
            response = JsonResponse({"detail": detail, "code": code, "retry_after": retry_after}, status=status)
        else:
            try:
                page = loader.get_template(f"{status}.html").render({"detail": detail}, self._request)
            except TemplateDoesNotExist:
                response = HttpResponse(detail, status=status, content_type="text/plain; charset=utf-8")
            else:
                response = HttpResponse(page, status=status)
        response["Retry-After"] = str(retry_after)
        return response
