"""The app `django_zklock.contrib.events`."""

from __future__ import annotations

from django.apps import AppConfig


class EventsConfig(AppConfig):
    """An app of its own: only projects that want the past of their locks in the database need it."""

    name = "django_zklock.contrib.events"
    label = "zklock_events"
    verbose_name = "Events of locks"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Show the history in the admin, and start to record. This needs no connection."""
        from django_zklock.contrib.events import history, recorder  # noqa: PLC0415 - the models are loaded only now
        from django_zklock.dashboard import extension  # noqa: PLC0415

        extension.install(history.History())
        recorder.connect()
