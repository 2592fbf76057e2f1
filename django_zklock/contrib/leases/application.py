"""The HTTP interface alone, as an ASGI application at the path /locks/."""

from __future__ import annotations

from typing import Any

from django.core.handlers.asgi import ASGIHandler
from django.urls import include, path

urlpatterns = [path("locks/", include("django_zklock.contrib.leases.urls"))]


class LeaseApplication(ASGIHandler):
    """Django with the middleware of the project, and with no other URLs than these."""

    def create_request(self, scope: Any, body_file: Any) -> Any:
        request, error = super().create_request(scope, body_file)
        if request is not None:
            request.urlconf = __name__
        return request, error


application = LeaseApplication()
