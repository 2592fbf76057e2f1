"""The app `django_zklock.contrib.metrics`."""

from __future__ import annotations

from django.apps import AppConfig

from django_zklock.contrib.metrics import connect


class MetricsConfig(AppConfig):
    """An app of its own: only projects that collect metrics need it."""

    name = "django_zklock.contrib.metrics"
    label = "zklock_metrics"
    verbose_name = "Lock metrics"

    def ready(self) -> None:
        """Start to count. This needs no connection."""
        connect()
