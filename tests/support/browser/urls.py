"""The admin, and a view that refreshes the snapshot of all locks."""

from __future__ import annotations

import os

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import path

from django_zklock import inspection
from django_zklock.admin import LockAdminMixin
from support.browser.policy import THEMED

if THEMED:
    from support import unfoldadmin  # noqa: F401  # it registers

LockAdminMixin.long_held = float(os.environ.get("SITE_LONG_HELD", LockAdminMixin.long_held))


def refresh_snapshot(request: HttpRequest) -> HttpResponse:
    """Take a new snapshot, which the pages of the next second share."""
    return HttpResponse(inspection.snapshot(max_age=0, max_waiters=1).problem)


urlpatterns = [path("refresh-snapshot", refresh_snapshot), path("admin/", admin.site.urls)]
