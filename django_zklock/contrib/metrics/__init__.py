"""
Metrics of holds for Prometheus, fed by the signals of this package: no lock waits for them.

Opt in by `pip install "django-zklock[metrics]"` and `"django_zklock.contrib.metrics"` in `INSTALLED_APPS`, which calls
`connect()`. What serves the metrics is the project's, as for other metrics of `prometheus_client`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from django.core.exceptions import ImproperlyConfigured

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["connect", "disconnect"]


def connect(registry: CollectorRegistry | None = None) -> None:
    """
    Have the locks of this process counted in a registry, by default that of `prometheus_client`; again changes nothing.

    Raises `ImproperlyConfigured` if `prometheus_client` is not installed.
    """
    try:
        import_module("prometheus_client")
    except ImportError as error:
        raise ImproperlyConfigured(
            "django_zklock.contrib.metrics needs prometheus_client, which is not installed: "
            'pip install "django-zklock[metrics]".'
        ) from error
    from django_zklock.contrib.metrics import counting  # noqa: PLC0415 - not installed everywhere

    counting.connect(registry)


def disconnect(registry: CollectorRegistry | None = None) -> None:
    """Undo `connect`: count no more, and take the metrics out of the registry."""
    from django_zklock.contrib.metrics import counting  # noqa: PLC0415 - not installed everywhere

    counting.disconnect(registry)
