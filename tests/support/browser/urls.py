"""The admin, and a view that refreshes the snapshot of all locks."""

from __future__ import annotations

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import path

from django_zklock import inspection
from support.browser.policy import THEMED

if THEMED:
    from support import unfoldadmin  # noqa: F401  # it registers


def look_anew(request: HttpRequest) -> HttpResponse:
    """Have the pages that follow within a second show what is there now: they share a snapshot."""
    return HttpResponse(inspection.snapshot(max_age=0, max_waiters=1).problem)


urlpatterns = [path("look-anew", look_anew), path("admin/", admin.site.urls)]
