"""The middleware that answers a lock conflict, wherever in a view the lock is acquired."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.template.response import SimpleTemplateResponse
from django.utils.deprecation import MiddlewareMixin

from django_zklock.http import responses


class LockConflictMiddleware(MiddlewareMixin):
    """Answer 409 or 503 if `LockNotAcquired`, `ZooKeeperUnavailable` or `LockLost` leaves a view; 500 after COMMIT."""

    def process_template_response(
        self, request: HttpRequest, response: SimpleTemplateResponse
    ) -> SimpleTemplateResponse:
        """Remember that the view has ended: Django renders its response after the COMMIT."""
        setattr(request, responses.VIEW_HAS_ENDED, True)
        return response

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """Return the response, or None for errors of other kinds."""
        return responses.answer(request, exception)
