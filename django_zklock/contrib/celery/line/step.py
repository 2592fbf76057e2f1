"""The part of a worker that has tasks wait in line; Celery makes it with the worker's consumer."""

from __future__ import annotations

from typing import Any, Final

from celery import bootsteps

from django_zklock.contrib.celery.line.line import Line
from django_zklock.contrib.celery.line.loops import HubLoop

LINE: Final = "zklock_line"
"""Attribute of a consumer: its line."""
_RUN: Any = bootsteps.RUN  # type: ignore[attr-defined]


class LineStep(bootsteps.StartStopStep):
    """Puts the line between the messages and the pool."""

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._line = Line(consumer)
        setattr(consumer, LINE, self._line)

    def register_with_event_loop(self, consumer: Any, hub: Any) -> None:
        """Begin with the event loop of a connection."""
        if isinstance(self._line.loop, HubLoop):
            self._line.loop.register(hub)

    def stop(self, consumer: Any) -> None:
        """Stop: the worker ends, or has lost its broker."""
        self._line.stop(restarts=consumer.blueprint.state == _RUN)

    def shutdown(self, consumer: Any) -> None:
        """End: the pool has stopped."""
        self._line.close()
