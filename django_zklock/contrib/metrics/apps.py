"""Django's view of the metrics."""

from __future__ import annotations

from django.apps import AppConfig

from django_zklock.contrib.metrics import connect


class MetricsConfig(AppConfig):
    """An app beside `django_zklock`, as its metrics are only for those who collect them."""

    name = "django_zklock.contrib.metrics"
    label = "zklock_metrics"
    verbose_name = "Lock metrics"

    def ready(self) -> None:
        """Count from now on; this connects to nothing."""
        connect()
