"""The app `django_zklock.contrib.otel`."""

from __future__ import annotations

from django.apps import AppConfig

from django_zklock.contrib.otel import connect


class OtelConfig(AppConfig):
    """An app of its own: only projects that collect traces need it."""

    name = "django_zklock.contrib.otel"
    label = "zklock_otel"
    verbose_name = "Lock traces"

    def ready(self) -> None:
        """Start to trace. This needs no connection."""
        connect()
