"""The writer of a process: one thread that takes events from a bounded queue and writes them in bulk."""

from __future__ import annotations

import random
import threading
from collections import deque
from typing import Final

from django.db import DataError, IntegrityError, connections, router

from django_zklock import conf
from django_zklock.contrib.events import table
from django_zklock.contrib.events.models import LONGEST_PAUSE, Event
from django_zklock.contrib.events.table import Fields
from django_zklock.core import clock
from django_zklock.core.log import Logger
from django_zklock.core.zk import process
from django_zklock.core.zk.loop import Loop, quiet_thread

_between: Final = random.SystemRandom().uniform
logger = Logger("django_zklock.events")

PAUSE: Final = 1.0
"""Seconds between two writes."""
BATCH: Final = 500
"""Events that are written together. So many in the queue are written at once."""
MOST_EVENTS: Final = 20_000
"""Events in the queue. More drop the oldest ones."""
DELETE_EVERY: Final = 600.0
"""Seconds between two deletions of old rows, on average. They vary, so that processes do not delete all at once."""
DELETE_BATCH: Final = 1000


class Writer:
    """
    Writes events to the table, on a thread that begins with the first one.

    While the database fails, it tries again and keeps the newest events. Its database connection is closed when a
    pause brought no event.
    """

    def __init__(self) -> None:
        self._events: deque[Fields] = deque(maxlen=MOST_EVENTS)  # any thread appends; the loop's thread takes
        self._dropped = 0  # a count for the log, about right
        self._starting = threading.Lock()
        self._loop: Loop | None = None  # guarded by _starting for writing
        # All below belongs to the loop's thread.
        self._batch: list[Fields] = []  # taken from the queue and not written yet
        self._at_once = BATCH  # events to write in one transaction; 1 while the database refuses one of the batch
        self._failures = 0  # since the last success
        self._delete_at = clock.now() + _between(0.0, DELETE_EVERY)

    def put(self, event: Fields) -> None:
        """Record an event; from any thread. Never blocks."""
        if len(self._events) == MOST_EVENTS:
            self._dropped += 1
        self._events.append(event)
        if self._loop is None:
            self._start()
        is_action = event["outcome"] == Event.ACTION  # the operator may look at the history next
        if self._loop is not None and (is_action or (len(self._events) == BATCH and not self._failures)):
            self._loop.post(self._write)

    def flush(self, timeout: float) -> None:
        """Write what was signalled so far, or fail to, within `timeout` seconds."""
        loop, session = self._loop, process.peek()
        if loop is None:
            return
        deadline = clock.now() + timeout
        signalled, written = threading.Event(), threading.Event()
        if session is not None:
            session.dispatch(signalled.set)  # after the signals that are under way
            signalled.wait(deadline - clock.now())
        loop.post(lambda: self._finish(loop, deadline, written))
        written.wait(deadline - clock.now())

    def _start(self) -> None:
        if not self._starting.acquire(blocking=False):
            return  # another thread does it, and the event is in the queue
        try:
            if self._loop is None:
                loop = Loop("zklock-events", quiet_thread)  # it runs a database driver
                loop.start()
                self._loop = loop
                loop.post(self._schedule)
        finally:
            self._starting.release()

    # --- on the loop's thread -------------------------------------------------------------------------------------

    def _finish(self, loop: Loop, deadline: float, written: threading.Event) -> None:
        """Write all events. Try again until the deadline while the database fails: it may be back in a moment."""
        self._write()
        if self._failures and clock.now() + PAUSE < deadline:
            loop.call_later(PAUSE, lambda: self._finish(loop, deadline, written))
            return
        self._disconnect()
        written.set()

    def _schedule(self) -> None:
        assert self._loop is not None
        longer = min(PAUSE * 2 ** min(self._failures, 10), LONGEST_PAUSE)
        self._loop.call_later(longer if self._failures else PAUSE, self._on_time)

    def _on_time(self) -> None:
        if not self._write():
            self._disconnect()
        self._schedule()

    def _write(self) -> bool:
        """Write all events; return whether there were any."""
        wrote = False
        while self._fill_batch():
            wrote = True
            events = self._batch[: self._at_once]
            try:
                self._set_autocommit()
                table.write(events)
            except (DataError, IntegrityError, ValueError):  # another try would fail, too
                if len(events) > 1:
                    logger.warning("the database refuses %d events: each is tried alone", len(events))
                    self._at_once = 1
                    continue
                logger.exception("the database refuses an event, which is dropped")
            except Exception:
                if not self._failures:
                    logger.exception("events of locks cannot be written now; up to %d are kept", MOST_EVENTS)
                self._failures += 1
                self._disconnect()
                return True
            self._on_success()
            del self._batch[: len(events)]
        self._delete_old()
        return wrote

    def _fill_batch(self) -> bool:
        """Return whether there are events to write. If all of the batch are written, fill it from the queue."""
        if not self._batch:
            self._at_once = BATCH
            while self._events and len(self._batch) < BATCH:
                self._batch.append(self._events.popleft())
        return bool(self._batch)

    def _on_success(self) -> None:
        if self._failures:
            logger.warning("events of locks are written again; %d were dropped", self._dropped)
        elif self._dropped:
            logger.warning("%d events of locks were dropped, as there were too many", self._dropped)
        self._failures = self._dropped = 0

    def _delete_old(self) -> None:
        now = clock.now()
        if now < self._delete_at:
            return
        try:
            self._set_autocommit()
            more = table.delete_old(conf.current().event_days, DELETE_BATCH)
        except Exception:
            more = False
            logger.exception("old events of locks cannot be deleted")
            self._disconnect()
        self._delete_at = now if more else now + _between(0.5 * DELETE_EVERY, 1.5 * DELETE_EVERY)

    def _set_autocommit(self) -> None:
        """Commit at the end of each block, also if the project has `"AUTOCOMMIT": False`."""
        connections[router.db_for_write(Event)].set_autocommit(True)

    def _disconnect(self) -> None:
        try:
            connections[router.db_for_write(Event)].close()
        except Exception:
            logger.exception("the connection to the database cannot be closed")
