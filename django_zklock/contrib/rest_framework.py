"""The `EXCEPTION_HANDLER` for Django REST framework that answers a lock conflict as the middleware does."""

from __future__ import annotations

from typing import Any

from rest_framework import views
from rest_framework.response import Response

from django_zklock.http import responses
from django_zklock.locks import transactions


def exception_handler(exc: Exception, context: dict[str, Any]) -> Response | None:
    """
    Return the response to an error. For errors of other kinds, it is that of Django REST framework.

    It has `data`, which a handler of the project around this one may change.
    """
    refused = responses.refusal(context["request"]._request, exc)
    if refused is None:
        return views.exception_handler(exc, context)
    status, body = refused
    transactions.roll_back()
    headers = {"Cache-Control": "no-store"}  # the next try may succeed
    if "retry_after" in body:
        headers["Retry-After"] = str(body["retry_after"])
    return Response(body, status=status, headers=headers)
