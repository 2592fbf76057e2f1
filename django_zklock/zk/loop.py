"""Knows how to run one thing after another on a thread of its own; knows neither ZooKeeper nor locks."""

from __future__ import annotations

import heapq
import itertools
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

from django_zklock.zk.threads import protocol_thread

logger = logging.getLogger("django_zklock.zk")

_Event: TypeAlias = tuple[Callable[..., object], tuple[Any, ...]]


FEW = 200  # timers that are kept until they are due, cancelled or not


class Timer:
    """A call that is due later; `cancel()` it from the loop's thread."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[], object] | None) -> None:
        self._call = call

    def cancel(self) -> None:
        """Drop the call; harmless when it has run."""
        self._call = None

    @property
    def pending(self) -> bool:
        """Whether the call is still to come."""
        return self._call is not None

    def run(self) -> None:
        """Run the call, once."""
        call, self._call = self._call, None
        if call is not None:
            call()


class Loop:
    """
    One daemon thread (one greenlet where gevent has patched threads) that runs everything it is given, in order.

    `post` is the way in for anybody. It is a single call into C that takes no lock which a signal handler or a
    finalizer could find taken, so it is safe at any moment in any thread: an exception that hits the caller comes
    before the event is on the queue or after it, never in between.

    `deliver` is the way in for a thread of the client's own, which no exception strikes: it runs the event itself if
    the loop is at rest, and so spares the change of threads. Whichever thread runs, only one does at a time.
    """

    def __init__(
        self, name: str, thread: Callable[[str, Callable[[], object]], threading.Thread] = protocol_thread
    ) -> None:
        self._events: queue.SimpleQueue[_Event | None] = queue.SimpleQueue()
        self._delivered: deque[_Event] = deque()
        self._turn = threading.Lock()  # held while events run
        self._timers: list[tuple[float, int, Timer]] = []  # guarded by _turn
        self._many = FEW  # timers, at which those that were cancelled are looked for; guarded by _turn
        self._wakes_at = float("-inf")  # when the sleeping thread will look at the timers; guarded by _turn
        self._order = itertools.count()
        self._thread = thread(name, self._run)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def post(self, call: Callable[..., object], *args: Any) -> None:
        """Have `call(*args)` run; from anywhere."""
        self._events.put((call, args))

    def deliver(self, call: Callable[..., object], *args: Any) -> None:
        """Have `call(*args)` run, after what was delivered before; never from a thread that runs users' code."""
        self._delivered.append((call, args))
        if self._turn.acquire(blocking=False):
            try:
                self._run_delivered()
                self._run_timers()  # in a flood of answers the loop's own thread may not get its turn for long
            finally:
                self._turn.release()
        else:
            self._events.put(_NOTHING)  # who runs now may have looked already

    def stop(self) -> None:
        """End the thread after what is on the queue."""
        self._events.put(None)

    def join(self) -> None:
        """Wait for the end of the thread, a second at most."""
        self._thread.join(1.0)

    def call_later(self, delay: float, call: Callable[[], object]) -> Timer:
        """Run `call()` in `delay` seconds; from an event only."""
        timer = Timer(call)
        due = time.monotonic() + delay
        heapq.heappush(self._timers, (due, next(self._order), timer))
        if len(self._timers) > self._many:
            self._forget_cancelled()
        if due < self._wakes_at:
            self._events.put(_NOTHING)
        return timer

    def _run(self) -> None:
        event: _Event | None = _NOTHING
        while event is not None:
            with self._turn:
                self._run_delivered()
                self._guarded(*event)
                self._run_timers()
                pause = self._timers[0][0] - time.monotonic() if self._timers else None
                self._wakes_at = self._timers[0][0] if self._timers else float("inf")
            event = _NOTHING  # or the last event would be kept alive while idle
            try:
                event = self._events.get(timeout=None if pause is None else max(0.0, pause))
            except queue.Empty:
                pass

    def _forget_cancelled(self) -> None:
        self._timers = [each for each in self._timers if each[2].pending]
        heapq.heapify(self._timers)
        self._many = max(FEW, 2 * len(self._timers))

    def _run_delivered(self) -> None:
        while self._delivered:
            self._guarded(*self._delivered.popleft())

    def _run_timers(self) -> None:
        while self._timers and self._timers[0][0] <= time.monotonic():
            self._guarded(heapq.heappop(self._timers)[2].run, ())

    def _guarded(self, call: Callable[..., object], args: tuple[Any, ...]) -> None:
        try:
            call(*args)
        except Exception:
            # The thread serves every lock of the process: one bad event must not end it.
            logger.exception("an event of the lock protocol failed: %r", call)


def _nothing() -> None:
    pass


_NOTHING: _Event = (_nothing, ())
