"""The app `django_zklock.contrib.events`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.apps import AppConfig

if TYPE_CHECKING:
    from django_zklock.contrib.events.models import Attempt


class EventsConfig(AppConfig):
    """
    An app of its own: only projects that want the past of their locks in the database need it.

    The admin finds it in Django's registry, and reads the table by its methods.
    """

    name = "django_zklock.contrib.events"
    label = "zklock_events"
    verbose_name = "Events of locks"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Start to record. This needs no connection."""
        from django_zklock.contrib.events import recorder  # noqa: PLC0415 - the models are loaded only now

        recorder.connect()

    def last_attempts(self, key: str, most: int, *, granted: bool = False) -> list[Attempt]:
        """
        Return the last attempts to acquire this lock, or any lock if `key` is empty; newest first.

        With `granted`, only those that were granted.
        """
        from django_zklock.contrib.events import table  # noqa: PLC0415

        return table.last_attempts(key, most, granted=granted)

    def usual_hold(self, template: str) -> float | None:
        """Return for how many seconds locks of this template are usually held; None if that is not known."""
        from django_zklock.contrib.events import table  # noqa: PLC0415

        return table.usual_hold(template)

    def losses(self, seconds: float) -> dict[str, int]:
        """Return by host how many locks were lost that were granted within the last so many seconds."""
        from django_zklock.contrib.events import table  # noqa: PLC0415

        return table.losses(seconds)
