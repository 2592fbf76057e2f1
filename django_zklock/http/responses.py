"""The response to a request that did not acquire or has lost its lock: 409, 503 or 500, as JSON or as a page."""

from __future__ import annotations

from typing import Any, Final

from django.core.exceptions import SynchronousOnlyOperation
from django.db import Error
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template import TemplateDoesNotExist, loader
from django.utils.cache import patch_vary_headers

from django_zklock.core.log import Logger
from django_zklock.exceptions import LockLost, LockNotAcquired, ZooKeeperUnavailable
from django_zklock.http.requests import route
from django_zklock.locks import transactions

logger = Logger("django_zklock.responses")

CONFLICT, UNAVAILABLE, LOST = "lock_conflict", "lock_unavailable", "lock_lost"
"""The `code` in a JSON answer: another holder has the lock; ZooKeeper did not answer; the lock was lost."""
NOT_ROLLED_BACK = "lock_not_rolled_back"
"""The `code` of each of these errors if the work of the view, or a part of it, is not rolled back."""
VIEW_HAS_ENDED: Final = "_zklock_view_has_ended"
"""Attribute of a request whose template response is rendered after the view, and after its COMMIT."""

_DETAILS: Final = {
    409: "Somebody else is working on this right now. Please try again in a moment.",
    500: "Your changes may be saved already, but a later step failed. Please check before you try again.",
    503: "This is not possible at the moment. Please try again in a few seconds.",
}


def answer(request: HttpRequest, error: Exception) -> HttpResponse | None:
    """
    Return the response to a request that failed with `error`, as `refusal` describes it; None for other errors.

    The open transactions are rolled back, see `respond`.
    """
    refused = refusal(request, error)
    if refused is None:
        return None
    status, body = refused
    response = respond(request, status, body)
    if "retry_after" in body:
        response["Retry-After"] = str(body["retry_after"])
    return response


def refusal(request: HttpRequest, error: Exception) -> tuple[int, dict[str, Any]] | None:
    """
    Return status and body of the response to a request that failed with `error`: 409 or 503; None for other errors.

    If work is not rolled back, it is 500 without `retry_after`: a client that repeats the request may do its work
    twice.
    """
    if not isinstance(error, (LockNotAcquired, ZooKeeperUnavailable, LockLost)):
        return None
    if hasattr(request, VIEW_HAS_ENDED) or transactions.not_rolled_back(error):
        about: Any = {"exc_info": error, "extra": {"lock": error.lock}}
        logger.error("%s failed, and its work is not rolled back: %s", route(request), error, **about)
        return 500, {"detail": _DETAILS[500], "code": NOT_ROLLED_BACK}
    if isinstance(error, LockNotAcquired):
        status, code, seconds = 409, CONFLICT, 1
    elif isinstance(error, ZooKeeperUnavailable):
        status, code, seconds = 503, UNAVAILABLE, 5
        logger.error("%s: %s", route(request), error, extra={"lock": error.lock})
    else:
        status, code, seconds = 503, LOST, 5
        logger.error("%s was aborted: %s", route(request), error, exc_info=error, extra={"lock": error.lock})
    return status, {"detail": _DETAILS[status], "code": code, "retry_after": seconds}


def respond(request: HttpRequest, status: int, body: dict[str, Any]) -> HttpResponse:
    """
    Return `body` as JSON, as the project's page (`409.html`), or its `detail` as text: as the client prefers.

    Then roll back the open transactions, except that of a `TestCase`, also if the page cannot be rendered. Without
    this, Django would commit what the refused work has written, because a response is no exception. The page comes
    first: it may query the database, which Django refuses in a transaction that is to be rolled back.
    """
    try:
        response = _in_preferred_type(request, status, body)
    finally:
        transactions.roll_back()
    response["Cache-Control"] = "no-store"  # the next try may succeed; RFC 6585 requires it for 428
    patch_vary_headers(response, ["Accept", "HX-Request"])
    return response


def _in_preferred_type(request: HttpRequest, status: int, body: dict[str, Any]) -> HttpResponse:
    types = ["application/json", "text/html", "text/plain"]
    if "HX-Request" in request.headers:  # htmx accepts everything, and puts it into the page
        types.remove("application/json")
    preferred = request.get_preferred_type(types)
    if preferred not in ("text/html", "text/plain"):
        return JsonResponse(body, status=status)
    if preferred == "text/html":
        # The project's 500.html may ask its reader to try again.
        page = f"{NOT_ROLLED_BACK if status == 500 else status}.html"
        try:
            return HttpResponse(loader.get_template(page).render(body, request), status=status)
        except TemplateDoesNotExist:
            pass
        except (Error, SynchronousOnlyOperation):  # such as in a transaction that has failed already
            logger.exception("%s needs a query that fails; the answer is text", page)
    return HttpResponse(body["detail"], status=status, content_type="text/plain; charset=utf-8")
