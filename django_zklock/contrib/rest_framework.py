"""The `EXCEPTION_HANDLER` for Django REST framework that answers a lock conflict as the middleware does."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from rest_framework import views

from django_zklock.http import responses


def exception_handler(exc: Exception, context: dict[str, Any]) -> HttpResponse | None:
    """Return the response to an error. For errors of other kinds, it is that of Django REST framework."""
    return responses.answer(context["request"]._request, exc) or views.exception_handler(exc, context)
