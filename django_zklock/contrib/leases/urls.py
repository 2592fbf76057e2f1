"""The HTTP interface of the lock coordinator: `path("locks/", include("django_zklock.contrib.leases.urls"))`."""

from __future__ import annotations

from django.urls import path

from django_zklock.contrib.leases import views

app_name = "zklock_leases"
urlpatterns = [
    path("", views.leases, name="leases"),
    path("openapi.json", views.openapi, name="openapi"),
    path("<str:lease_id>", views.lease, name="lease"),
]
