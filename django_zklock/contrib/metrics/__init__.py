"""
Metrics for Prometheus, fed by the signals of this package. No lock waits for them.

Opt in by `pip install "django-zklock[metrics]"` and `"django_zklock.contrib.metrics"` in `INSTALLED_APPS`, which calls
`connect()`. The project serves the metrics, like other metrics of `prometheus_client`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.core.exceptions import ImproperlyConfigured

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["connect", "disconnect"]


def connect(registry: CollectorRegistry | None = None, *, incidents: bool = True) -> None:
    """
    Count the locks of this process in a registry; default is that of `prometheus_client`. Further calls change nothing.

    With `incidents`, a scrape also begins a look at all locks and servers, at most every 30 s. One process is enough.
    Raises `ImproperlyConfigured` if `prometheus_client` is not installed.
    """
    try:
        from django_zklock.contrib.metrics import prometheus  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ImproperlyConfigured(
            "django_zklock.contrib.metrics needs prometheus_client, which is not installed: "
            'pip install "django-zklock[metrics]".'
        ) from error
    prometheus.connect(registry, incidents)


def disconnect(registry: CollectorRegistry | None = None) -> None:
    """Undo `connect`: stop counting, and remove the metrics from the registry."""
    from django_zklock.contrib.metrics import prometheus  # noqa: PLC0415

    prometheus.disconnect(registry)
