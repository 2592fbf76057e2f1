"""The admin, a view that refreshes the snapshot of all locks, and one that needs a lock."""

from __future__ import annotations

import os
import time

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import path

from django_zklock import inspection, zk_locked
from django_zklock.admin import LockAdminMixin
from django_zklock.models import Lock
from support.browser.policy import THEMED

if THEMED:  # as its guide says of the models of other packages
    from unfold.admin import ModelAdmin

    admin.site.unregister(Lock)

    @admin.register(Lock)
    class ThemedLockAdmin(LockAdminMixin, ModelAdmin):  # type: ignore[misc]
        pass


LockAdminMixin.long_held = float(os.environ.get("SITE_LONG_HELD", LockAdminMixin.long_held))


def refresh_snapshot(request: HttpRequest) -> HttpResponse:
    """Take a new snapshot, which the pages of the next second share."""
    return HttpResponse(inspection.snapshot(max_age=0, max_waiters=1).problem)


@zk_locked("stock/{item}", timeout=0.5)
def sell(request: HttpRequest, item: str) -> HttpResponse:
    """Sell an item, which takes a moment. Most of many callers at a time are refused."""
    time.sleep(0.2)
    return HttpResponse("sold")


urlpatterns = [
    path("refresh-snapshot", refresh_snapshot),
    path("sell/<slug:item>", sell),
    path("admin/", admin.site.urls),
]
