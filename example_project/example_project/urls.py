"""The shop at the root, Django's admin, and the metrics of this web process."""

from __future__ import annotations

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import include, path
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest


def metrics(request: HttpRequest) -> HttpResponse:
    """Return the metrics as Prometheus reads them. Real sites let only Prometheus in."""
    return HttpResponse(generate_latest(), content_type=CONTENT_TYPE_LATEST)


urlpatterns = [path("admin/", admin.site.urls), path("metrics", metrics), path("", include("shop.urls"))]
