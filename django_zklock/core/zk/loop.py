"""An event loop with its own thread, and the kinds of threads of this package."""

from __future__ import annotations

import functools
import heapq
import itertools
import queue
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias
from weakref import WeakSet

from django_zklock.core import clock, fork
from django_zklock.core.execution.owner import gevent_patched
from django_zklock.core.log import Logger, mark_protocol_thread

logger = Logger("django_zklock.zk")

_Event: TypeAlias = tuple[Callable[..., object], tuple[Any, ...]]
_Call: TypeAlias = Callable[[], object]

START_AGAIN = 1.0  # seconds between two tries to start a thread, or to wait
LONGEST_SLEEP = 3600.0  # seconds; Python refuses to sleep for centuries, and an error here would end the thread
KEPT_TIMERS = 200  # a heap of at most so many timers may keep cancelled ones until they are due
_FAULTS = {"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS"}  # they belong to the faulty thread


def protocol_thread(name: str, call: _Call) -> threading.Thread:
    """Return a thread for the protocol: it blocks all signals, and runs no log handlers; see `core.log`."""

    def run() -> None:
        mark_protocol_thread()
        call()

    return quiet_thread(name, run)


def quiet_thread(name: str, call: _Call) -> threading.Thread:
    """
    Return a thread for `call()`, without signals and tracers; a greenlet where gevent has patched threads.

    The kernel delivers a signal to any thread that does not block it. An application may block a signal in its main
    thread to protect a critical section. If our threads did not block it, too, the signal would interrupt that section.
    Celery's pool processes end by SIGTERM. A second SIGTERM would end such a process while it holds the lock of the
    pool's result queue, and its siblings would wait for that lock for ever.

    A tracer (coverage, a debugger, a profiler) is code of others, which may be slow or stop the thread.
    """

    def run() -> None:
        if not gevent_patched():  # a greenlet's mask and tracer are the main thread's
            sys.settrace(None)
            sys.setprofile(None)
            signal.pthread_sigmask(
                signal.SIG_BLOCK, {signum for signum in signal.Signals if signum.name not in _FAULTS}
            )
        call()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.pydev_do_not_trace = True  # type: ignore[attr-defined]  # else a breakpoint would stop it in debugpy
    return thread


def users_thread(name: str, call: _Call) -> threading.Thread:
    """Return a thread for users' code. It blocks no signals: threads that the code starts would inherit the mask."""
    return threading.Thread(target=call, name=name, daemon=True)


@dataclass(slots=True, eq=False)
class Timer:
    """A call that is due later. Call `cancel()` on the loop's thread."""

    _call: _Call | None  # None once it has run or was cancelled

    def cancel(self) -> None:
        """Drop the call. Does nothing if it has run."""
        self._call = None

    @property
    def pending(self) -> bool:
        """Whether the call has neither run nor been cancelled."""
        return self._call is not None

    def run(self) -> None:
        """Run the call, at most once."""
        call, self._call = self._call, None
        if call is not None:
            call()


NEVER = Timer(None)
"""A timer that was not set."""


class Loop:
    """
    One daemon thread (a greenlet where gevent has patched threads) that runs events in order.

    * `post` is for every thread, and safe at any moment. It is a single call into C, and waits for no lock that the
      code under a signal handler or a finalizer could hold. An exception of a signal handler strikes before the event
      is on the queue or after that, never in between.
    * `deliver` is for threads of this package only, which no such exception strikes. It runs the event itself if the
      loop is idle, which saves a switch of threads.

    Events never run at the same time, whichever thread runs them.
    """

    def __init__(self, name: str, thread: Callable[[str, _Call], threading.Thread] = protocol_thread) -> None:
        self._events: queue.SimpleQueue[_Event | None] = queue.SimpleQueue()
        self._delivered: deque[_Event] = deque()
        self._running = threading.Lock()  # the mutex of the events: held while they run
        self._timers: list[tuple[float, int, Timer]] = []  # guarded by _running
        self._timer_limit = KEPT_TIMERS  # cancelled timers are removed at this length; guarded by _running
        self._wakes_at = float("-inf")  # when the sleeping thread will look at the timers; guarded by _running
        self._timer_numbers = itertools.count()  # timers that are due at the same time run in their order
        self._thread = thread(name, self._run)
        _loops.add(self)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def start_on(self, loop: Loop, *, again: bool = False) -> None:
        """Start the thread, in an event of another loop; if there is no room for it now, as soon as there is."""
        try:
            self._thread.start()
        except Exception as error:  # noqa: BLE001 - such as the `RuntimeError` of too many threads
            if not again:
                logger.warning("the thread %s cannot start, trying again: %s", self._thread.name, error)
            loop.call_later(START_AGAIN, functools.partial(self.start_on, loop, again=True))

    def post(self, call: Callable[..., object], *args: Any) -> None:
        """Run `call(*args)` on the loop; from any thread."""
        self._events.put((call, args))

    def deliver(self, call: Callable[..., object], *args: Any) -> None:
        """Run `call(*args)` after earlier deliveries. A thread that runs users' code must not call this."""
        self._delivered.append((call, args))
        running = self._running  # that of a forked child is another one
        if running.acquire(blocking=False):
            try:
                self._run_due()  # the timers, too: in a flood of replies, the loop's own thread may wait long
            finally:
                running.release()
        else:
            self._events.put(_NOTHING)  # the thread that runs events now may not see this delivery any more

    def stop(self) -> None:
        """End the thread after the events that are on the queue now."""
        self._events.put(None)

    def join(self) -> None:
        """Wait until the thread has ended, for at most a second."""
        self._thread.join(1.0)

    def forget(self) -> None:
        """Run nothing more, in a forked child. A thread ends at the fork; a greenlet lives on, and waits for ever."""
        self._delivered, self._timers = deque(), []
        self._running = threading.Lock()
        self._running.acquire()

    def call_later(self, delay: float, call: _Call) -> Timer:
        """Run `call()` in `delay` seconds. Only an event may call this."""
        timer = Timer(call)
        due = clock.now() + delay
        heapq.heappush(self._timers, (due, next(self._timer_numbers), timer))
        if len(self._timers) > self._timer_limit:
            self._remove_cancelled()
        if due < self._wakes_at:
            self._wakes_at = due
            self._events.put(_NOTHING)
        return timer

    def _run(self) -> None:
        event: _Event | None = _NOTHING
        while event is not None:
            try:
                fork.notice()  # a greenlet outlives a fork
                with self._running:
                    self._delivered.append(event)
                    event = _NOTHING  # otherwise the last event would stay alive while the loop is idle
                    self._run_due()
                    self._wakes_at = self._timers[0][0] if self._timers else float("inf")
                event = self._events.get(timeout=min(max(0.0, self._wakes_at - clock.now()), LONGEST_SLEEP))
            except queue.Empty:
                pass
            except Exception:
                logger.exception("the thread %s cannot wait for an event, trying again", self._thread.name)
                time.sleep(START_AGAIN)

    def _remove_cancelled(self) -> None:
        self._timers = [entry for entry in self._timers if entry[2].pending]
        heapq.heapify(self._timers)
        self._timer_limit = max(KEPT_TIMERS, 2 * len(self._timers))

    def _run_due(self) -> None:
        """Run what was delivered, then the timers that are due."""
        while True:
            if self._delivered:
                call, args = self._delivered.popleft()
            elif self._timers and self._timers[0][0] <= clock.now():
                call, args = heapq.heappop(self._timers)[2].run, ()
                while self._timers and not self._timers[0][2].pending:
                    heapq.heappop(self._timers)  # otherwise the thread would wake up for each of them
            else:
                return
            try:
                call(*args)
            except Exception:
                # The thread serves every lock of the process, so one failed event must not end it.
                logger.exception("an event of the lock protocol failed: %r", call)


def _nothing() -> None:
    pass


def _forget_in_child() -> None:
    for loop in list(_loops):
        loop.forget()


_NOTHING: _Event = (_nothing, ())
_loops: WeakSet[Loop] = WeakSet()
fork.in_child(_forget_in_child)
