"""The admin, what probes and scrapes read, a view that refreshes the snapshot of all locks, and one with a lock."""

import time

from django.contrib import admin
from django.http import HttpResponse, JsonResponse
from django.urls import path

from django_zklock import inspection, zk_locked
from django_zklock.admin import LockAdminMixin
from django_zklock.dashboard.views import health_json, incidents_json
from django_zklock.models import Lock
from django_zklock.report import background
from support.browser.policy import THEMED

if THEMED:  # as its guide says of the models of other packages
    from unfold.admin import ModelAdmin

    admin.site.unregister(Lock)

    @admin.register(Lock)
    class ThemedLockAdmin(LockAdminMixin, ModelAdmin):
        pass


def refresh_snapshot(request):
    """Take a new snapshot, which the pages of the next second share."""
    return HttpResponse(inspection.snapshot(max_age=0).problem)


@zk_locked("stock/{item}", timeout=0.5)
def sell(request, item):
    """Sell an item, which takes a moment. Most of many callers at a time are refused."""
    time.sleep(0.2)
    return HttpResponse("sold")


def scrape_json(request):
    """Return the causes that the metric and the health check tell. Each scrape may begin another look."""
    # Only this view needs their packages.
    from health_check.exceptions import ServiceWarning
    from prometheus_client import REGISTRY

    from django_zklock.contrib.health_check import Incidents
    from django_zklock.contrib.metrics import connect

    background.EVERY = 0.5
    connect()
    (family,) = (family for family in REGISTRY.collect() if family.name == "zklock_incidents")
    said = ""
    try:
        Incidents().run()
    except ServiceWarning as error:
        said = str(error.message)
    causes = [sample.labels["cause"] for sample in family.samples if sample.value]
    return JsonResponse({"metric": causes, "health check": said.split(", ") if said else []})


urlpatterns = [
    path("health.json", health_json),
    path("incidents.json", incidents_json),
    path("scrape.json", scrape_json),
    path("refresh-snapshot", refresh_snapshot),
    path("sell/<slug:item>", sell),
    path("admin/", admin.site.urls),
]
