"""Knows how to run one thing after another on a thread of its own; knows neither ZooKeeper nor locks."""

from __future__ import annotations

import heapq
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

logger = logging.getLogger("django_zklock.zk")


class Timer:
    """A call that is due later; `cancel()` it from the loop's thread."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[], object] | None) -> None:
        self._call = call

    def cancel(self) -> None:
        """Drop the call; harmless when it has run."""
        self._call = None

    def run(self) -> None:
        """Run the call, once."""
        call, self._call = self._call, None
        if call is not None:
            call()


class Loop:
    """
    One daemon thread (one greenlet where gevent has patched threads) that runs everything it is given, in order.

    `post` is the only way in for others. It is a single call into C that takes no lock which a signal handler or a
    finalizer could find taken, so it is safe at any moment in any thread: an exception that hits the caller comes
    before the event is on the queue or after it, never in between.
    """

    def __init__(self, name: str) -> None:
        self._events: queue.SimpleQueue[tuple[Callable[..., object], tuple[Any, ...]] | None] = queue.SimpleQueue()
        self._timers: list[tuple[float, int, Timer]] = []  # loop thread only
        self._order = itertools.count()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def post(self, call: Callable[..., object], *args: Any) -> None:
        """Have `call(*args)` run on the loop's thread; from anywhere."""
        self._events.put((call, args))

    def stop(self) -> None:
        """End the thread after what is on the queue."""
        self._events.put(None)

    def call_later(self, delay: float, call: Callable[[], object]) -> Timer:
        """Run `call()` in `delay` seconds; from the loop's thread only."""
        timer = Timer(call)
        heapq.heappush(self._timers, (time.monotonic() + delay, next(self._order), timer))
        return timer

    @property
    def here(self) -> bool:
        """Tell whether the caller runs on the loop's thread."""
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        while True:
            try:
                event = self._events.get(timeout=self._until_next_timer())
            except queue.Empty:
                pass
            else:
                if event is None:
                    return
                call, args = event
                self._guarded(call, *args)
                del event, call, args  # or the last event would be kept alive while idle
            while self._timers and self._timers[0][0] <= time.monotonic():
                self._guarded(heapq.heappop(self._timers)[2].run)

    def _until_next_timer(self) -> float | None:
        if not self._timers:
            return None
        return max(0.0, self._timers[0][0] - time.monotonic())

    def _guarded(self, call: Callable[..., object], *args: Any) -> None:
        try:
            call(*args)
        except Exception:
            # The thread serves every lock of the process: one bad event must not end it.
            logger.exception("an event of the lock protocol failed: %r", call)
