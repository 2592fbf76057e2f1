"""The response of a view that did not acquire or has lost its lock: 409, 503 or 204, as a page or as JSON."""

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
"""The `code` in a JSON answer: another holder has the lock; ZooKeeper did not answer; the lock was lost."""


def find_request(args: tuple[Any, ...]) -> HttpRequest | None:
    """Return Django's request among the first two arguments; in a method it is the second."""
    for argument in args[:2]:
        request = getattr(argument, "_request", argument)  # that of Django REST framework wraps it
        if isinstance(request, HttpRequest):
            return request
    return None


class ViewContext:
    """The context of a view call: it waits 5 s for the lock, then answers."""

    timeout = 5.0
    on_conflict = on_timeout = "respond"
    waits = True

    def __init__(self, request: HttpRequest, what: str) -> None:
        self.what = what
        # The route, not the path: a path may contain secrets, such as the token of a password reset.
        route = "" if request.resolver_match is None else request.resolver_match.route
        self.about = {"request": f"{request.method} /{route}"}
        self._request = request

    def before_acquire(self, lock: Locks, options: LockOptions) -> None:
        """Do nothing."""

    def on_acquired(self) -> None:
        """Do nothing."""

    def on_not_acquired(self, error: ZkLockError, lock: Locks, options: LockOptions) -> HttpResponse:
        """Answer 409 if another holder has the lock, 503 if ZooKeeper does not answer."""
        if options.on_conflict == "skip" and isinstance(error, LockNotAcquired):
            return HttpResponse(status=204)
        if options.on_conflict not in ("respond", "skip", "wait"):
            raise error
        if isinstance(error, LockNotAcquired):
            return self._answer(409, RETRY_AFTER_CONFLICT, CONFLICT)
        logger.error("%s: %s", self.what, error, extra={"lock": error.lock})
        return self._answer(503, RETRY_AFTER_OUTAGE, UNAVAILABLE)

    def on_lost(self, error: LockLost, options: LockOptions) -> HttpResponse:
        """
        Answer 503, and roll back the transaction around the view: its work was aborted in the middle.

        Otherwise a transaction of `ATOMIC_REQUESTS` or of a decorator above would be committed, because a response is
        no exception. The transaction of a `TestCase` is left alone.
        """
        if options.on_conflict not in ("respond", "wait"):
            raise error
        transactions.roll_back()
        logger.error("%s was aborted: %s", self.what, error, exc_info=error, extra={"lock": error.lock})
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
