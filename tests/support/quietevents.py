"""The app of events for the tests: with its tables, but it records only if a test says so."""

import os

from django_zklock.contrib.events.apps import EventsConfig
from django_zklock.report import past

RECORD = "RECORD_EVENTS"  # in the environment of a process that is to record: the seconds between two writes


class QuietEvents(EventsConfig):
    default = False

    def ready(self):
        from django_zklock.contrib.events import table, writer  # the models are loaded only now

        past.source = table
        if RECORD in os.environ:
            super().ready()
            vars(writer)["PAUSE"] = float(os.environ[RECORD])
