"""The app of events for the tests: with its table, but it records only where a test says so."""

from __future__ import annotations

import os

from django_zklock.contrib.events.apps import EventsConfig

RECORD = "RECORD_EVENTS"
"""In the environment of a process that is to record: the seconds between two writes."""


class QuietEvents(EventsConfig):
    """The app without its receivers, unless the environment asks for them."""

    default = False

    def ready(self) -> None:
        if RECORD in os.environ:
            super().ready()
            from django_zklock.contrib.events import writer  # the models are loaded only now

            vars(writer)["PAUSE"] = float(os.environ[RECORD])
