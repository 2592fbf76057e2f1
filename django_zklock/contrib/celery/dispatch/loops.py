"""
Where a dispatcher runs: on the event loop of the worker, or on what a worker without one has instead.

All of a dispatcher runs on this loop, one call after the other. No call raises: Celery would end the worker.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from django_zklock.contrib.celery.dispatch.wakeup import WakeupPipe
from django_zklock.zk.loop import Loop, users_thread

logger = logging.getLogger("django_zklock.celery")

PACKAGE: Final = "celery.concurrency"


def run_logged(call: Callable[[], object]) -> None:
    """Run `call()`, and log what it raises."""
    try:
        call()
    except Exception:
        logger.exception("a step of the tasks that wait for locks failed: %r", call)


class EventLoop(Protocol):
    """Runs calls one after the other; each method may be called from any thread."""

    def enter(self, call: Callable[[], object]) -> None:
        """Run `call()` now if this is the loop's thread, else soon."""

    def call_soon(self, call: Callable[[], object]) -> None:
        """Run `call()` soon."""

    def call_later(self, seconds: float, call: Callable[[], object]) -> Any:
        """Run `call()` after so many seconds; return an entry to cancel."""

    def cancel(self, entry: Any) -> None:
        """Do not run the call of an entry."""


class _TimerLoop:
    """Uses the timer of the consumer, and the thread that makes the consumer."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._thread = threading.get_ident()

    def enter(self, call: Callable[[], object]) -> None:
        if threading.get_ident() == self._thread:
            run_logged(call)
        else:
            self.call_soon(call)

    def call_soon(self, call: Callable[[], object]) -> None:
        """Run `call()` between two messages, as in a solo pool without an event loop."""
        self._consumer.call_soon(functools.partial(run_logged, call))

    def call_later(self, seconds: float, call: Callable[[], object]) -> Any:
        return self._consumer.timer.call_after(seconds, functools.partial(self.enter, call))

    def cancel(self, entry: Any) -> None:
        self._consumer.timer.cancel(entry)


class HubLoop(_TimerLoop):
    """The event loop of a worker that has one, which waits for descriptors."""

    def __init__(self, consumer: Any) -> None:
        super().__init__(consumer)
        self._calls: deque[Callable[[], object]] = deque()
        self._wakeup = WakeupPipe()

    def register(self, hub: Any) -> None:
        """Begin with the event loop of a connection to the broker."""
        hub.add_reader(self._wakeup, self._run)

    def call_soon(self, call: Callable[[], object]) -> None:
        self._calls.append(call)
        self._wakeup.wake()

    def _run(self) -> None:
        run_logged(self._wakeup.drain)
        while self._calls:
            run_logged(self._calls.popleft())


class GreenLoop(_TimerLoop):
    """The timer of a pool of greenlets."""

    def enter(self, call: Callable[[], object]) -> None:
        run_logged(call)

    def call_soon(self, call: Callable[[], object]) -> None:
        self._consumer.timer.call_after(0, functools.partial(run_logged, call))


class ThreadLoop:
    """A thread of its own, for a worker that waits for its broker in a blocking call."""

    @functools.cached_property
    def _loop(self) -> Loop:
        loop = Loop("zklock-dispatcher", users_thread)
        loop.start()
        return loop

    def enter(self, call: Callable[[], object]) -> None:
        self._loop.post(run_logged, call)

    call_soon = enter

    def call_later(self, seconds: float, call: Callable[[], object]) -> Any:
        return self._loop.call_later(seconds, functools.partial(run_logged, call))

    def cancel(self, entry: Any) -> None:
        entry.cancel()


def event_loop_of(consumer: Any) -> EventLoop:
    """Return the event loop of a worker; its consumer is just being made."""
    if consumer.hub is not None:
        return HubLoop(consumer)
    if getattr(consumer.pool, "is_green", False):
        return GreenLoop(consumer)
    return _TimerLoop(consumer) if is_pool(consumer.pool, "solo") else ThreadLoop()


def is_pool(pool: Any, *names: str) -> bool:
    """Return whether a pool is of one of these kinds, as Celery's modules are called."""
    modules = {cls.__module__ for cls in type(pool).__mro__}
    return bool(modules & {f"{PACKAGE}.{name}" for name in names})
