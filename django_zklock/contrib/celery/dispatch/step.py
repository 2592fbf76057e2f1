"""The part of a worker that has tasks wait for their locks; Celery makes it with the worker's consumer."""

from __future__ import annotations

import functools
import logging
from typing import Any, Final

from celery import bootsteps

from django_zklock.contrib.celery.dispatch.dispatcher import Dispatcher
from django_zklock.contrib.celery.dispatch.loops import HubLoop, run_logged

logger = logging.getLogger("django_zklock.celery")

DISPATCHER: Final = "zklock_dispatcher"
"""Attribute of a consumer: its dispatcher."""
_RUN: Any = bootsteps.RUN  # type: ignore[attr-defined]


class DispatcherStep(bootsteps.StartStopStep):
    """Puts the dispatcher between the messages and the pool."""

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._dispatcher: Dispatcher | None = None
        try:
            self._dispatcher = Dispatcher(consumer)
        except Exception:
            logger.exception("tasks of this worker cannot wait for locks in its main process")
        setattr(consumer, DISPATCHER, self._dispatcher)

    def register_with_event_loop(self, consumer: Any, hub: Any) -> None:
        """Begin with the event loop of a connection."""
        if self._dispatcher is not None and isinstance(self._dispatcher.loop, HubLoop):
            try:
                self._dispatcher.loop.register(hub)
            except Exception:
                logger.exception("tasks of this worker cannot wait for locks in its main process")
                self._dispatcher.accepts = False

    def stop(self, consumer: Any) -> None:
        """Stop: the worker ends, or has lost its broker."""
        if self._dispatcher is not None:
            restarts = consumer.blueprint.state == _RUN
            self._dispatcher.loop.enter(functools.partial(self._dispatcher.stop, restarts=restarts))

    def shutdown(self, consumer: Any) -> None:
        """End: the pool has stopped."""
        if self._dispatcher is not None:
            run_logged(self._dispatcher.close)
