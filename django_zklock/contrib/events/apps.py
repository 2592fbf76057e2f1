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
        """Show the history in the admin, and start to record. This needs no connection."""
        self.show()
        from django_zklock.contrib.events import recorder  # noqa: PLC0415 - the models are loaded only now

        recorder.connect()

    def show(self) -> None:
        """Add the past to the report and the pages."""
        from django_zklock.contrib.events import facts, history, incidents  # noqa: F401, PLC0415 - the models are loaded only now

        past.source = self.module
