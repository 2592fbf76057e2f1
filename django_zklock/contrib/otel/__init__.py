"""
Spans for OpenTelemetry, made from the signals of this package. No lock waits for them.

Opt in by `pip install "django-zklock[otel]"` and `"django_zklock.contrib.otel"` in `INSTALLED_APPS`, which calls
`connect()`. The project installs and configures the SDK, and exports the spans.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.core.exceptions import ImproperlyConfigured

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

__all__ = ["connect", "disconnect"]


def connect(provider: TracerProvider | None = None) -> None:
    """
    Make spans for the locks of this process, with this provider or the global one. Further calls change nothing.

    Raises `ImproperlyConfigured` if `opentelemetry-api` is not installed.
    """
    try:
        from django_zklock.contrib.otel import spans  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ImproperlyConfigured(
            "django_zklock.contrib.otel needs opentelemetry-api, which is not installed: "
            'pip install "django-zklock[otel]".'
        ) from error
    spans.connect(provider)


def disconnect() -> None:
    """Undo `connect`."""
    from django_zklock.contrib.otel import spans  # noqa: PLC0415

    spans.disconnect()
