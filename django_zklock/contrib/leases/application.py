"""The HTTP interface alone, as an ASGI application at the path /locks/."""

from __future__ import annotations

from typing import Any

from django.core.handlers.asgi import ASGIHandler
from django.urls import include, path

from django_zklock.contrib.leases.views import LARGEST_BODY

urlpatterns = [path("locks/", include("django_zklock.contrib.leases.urls"))]


class LeaseApplication(ASGIHandler):
    """Django with the middleware of the project, and with no other URLs than these."""

    async def handle(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass no more of the body on than a view accepts: Django stores all that it gets, before the view is asked."""
        size = 0

        async def receive_some() -> Any:
            nonlocal size
            message = await receive()
            while size > LARGEST_BODY and message["type"] == "http.request":
                message = await receive()
            size += len(message.get("body", b""))
            return {**message, "more_body": False} if size > LARGEST_BODY else message

        await super().handle(scope, receive_some, send)

    def create_request(self, scope: Any, body_file: Any) -> Any:
        request, error = super().create_request(scope, body_file)
        if request is not None:
            request.urlconf = __name__
        return request, error


application = LeaseApplication()
