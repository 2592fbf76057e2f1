"""The app `django_zklock.contrib.events`."""

from __future__ import annotations

from django.apps import AppConfig

from django_zklock.report import past


class EventsConfig(AppConfig):
    """An app of its own: only projects that want the past of their locks in the database need it."""

    name = "django_zklock.contrib.events"
    label = "zklock_events"
    verbose_name = "Events of locks"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Add the past to the report and the pages, and start to record. This needs no connection."""
        from django_zklock.contrib.events import recorder, table  # noqa: PLC0415 - the models are loaded only now

        past.source = table
        recorder.connect()
