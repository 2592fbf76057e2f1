"""
Where the steps of waiting messages run: on the event loop of the worker, or on what a worker without one has instead.

`call_soon` may be called from any thread.
"""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from django_zklock.contrib.celery.line.wakeup import WakeupPipe
from django_zklock.zk.loop import Loop, users_thread

logger = logging.getLogger("django_zklock.celery")

PACKAGE: Final = "celery.concurrency"


class EventLoop(Protocol):
    """Runs calls one after the other."""

    def call_soon(self, call: Callable[[], object]) -> None:
        """Run `call()` soon; from any thread."""

    def call_apart(self, call: Callable[[], object]) -> None:
        """Run `call()`, which may wait for a free process of the pool."""

    def call_later(self, seconds: float, call: Callable[[], object]) -> Any:
        """Run `call()` after so many seconds; return an entry to cancel."""

    def cancel(self, entry: Any) -> None:
        """Do not run what `call_later` was given."""


class _TimerLoop:
    """Uses the timer of the consumer."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    def call_apart(self, call: Callable[[], object]) -> None:
        call()

    def call_later(self, seconds: float, call: Callable[[], object]) -> Any:
        return self._consumer.timer.call_after(seconds, call)

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
        self._wakeup.drain()
        while self._calls:
            call = self._calls.popleft()
            try:
                call()
            except Exception:
                # It must not keep the others from going on.
                logger.exception("a task that waits for a lock cannot go on: %r", call)


class GreenLoop(_TimerLoop):
    """The timer of a pool of greenlets."""

    def call_soon(self, call: Callable[[], object]) -> None:
        self._consumer.timer.call_after(0, call)

    call_apart = call_soon  # each timer is a greenlet


class SoloLoop(_TimerLoop):
    """The thread of a solo pool, between two messages."""

    def call_soon(self, call: Callable[[], object]) -> None:
        self._consumer.call_soon(call)


class ThreadLoop:
    """A thread of its own, for a worker that waits for its broker in a blocking call."""

    @functools.cached_property
    def _loop(self) -> Loop:
        return _started("zklock-line")

    @functools.cached_property
    def _to_pool(self) -> Loop:  # `apply_async` waits while all processes are at work
        return _started("zklock-to-pool")

    def call_soon(self, call: Callable[[], object]) -> None:
        self._loop.post(call)

    def call_apart(self, call: Callable[[], object]) -> None:
        self._to_pool.post(call)

    def call_later(self, seconds: float, call: Callable[[], object]) -> Any:
        return self._loop.call_later(seconds, call)

    def cancel(self, entry: Any) -> None:
        entry.cancel()


def _started(name: str) -> Loop:
    loop = Loop(name, users_thread)
    loop.start()
    return loop


def event_loop_of(consumer: Any) -> EventLoop:
    """Return the event loop of a worker; its consumer is just being made."""
    if consumer.hub is not None:
        return HubLoop(consumer)
    if getattr(consumer.pool, "is_green", False):
        return GreenLoop(consumer)
    return SoloLoop(consumer) if is_pool(consumer.pool, "solo") else ThreadLoop()


def is_pool(pool: Any, *names: str) -> bool:
    """Return whether a pool is of one of these kinds, as Celery's modules are called."""
    return bool({each.__module__ for each in type(pool).__mro__} & {f"{PACKAGE}.{name}" for name in names})
