"""
The loops of a dispatcher: the event loop of the worker, or what a worker without one has instead.

All calls of a dispatcher run on its loop, one after the other. No call raises: Celery would end the worker.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from django_zklock.core.execution.owner import DISPATCHER
from django_zklock.core.log import Logger
from django_zklock.core.zk.loop import Loop, users_thread

logger = Logger("django_zklock.celery")


def run_logged(call: Callable[..., object], *args: Any, **kwargs: Any) -> None:
    """Run `call(*args, **kwargs)`, and log what it raises."""
    try:
        call(*args, **kwargs)
    except Exception:
        logger.exception("a step of the dispatcher failed: %r", call)


class WakeupPipe:
    """A pipe that wakes its reader. Any thread can write to it, and any process that is forked after it was made."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        for descriptor in (self._reading, self._writing):
            os.set_blocking(descriptor, False)
            # Not sooner: a thread that still had the pipe would write to the file that gets its number next.
            weakref.finalize(self, os.close, descriptor).atexit = False

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._reading

    def wake(self) -> None:
        """Make it readable."""
        with contextlib.suppress(BlockingIOError):  # it is full, so it will be read
            os.write(self._writing, b"!")

    def drain(self) -> None:
        """Empty it. What was done before `wake` is visible afterwards."""
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self._reading, 4096)) == 4096:
                pass


class EventLoop:
    """Runs calls one after the other, on the thread that runs the worker, between two messages."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self.thread = 0  # the id of the thread, which Celery's loop is about to use or has just left
        self._loop: Loop | None = None  # of a `ThreadLoop`

    def run(self, call: Callable[..., object], *args: Any) -> None:
        """Run `call(*args)` now if this is the loop's thread, else soon; from any thread."""
        if threading.get_ident() == self.thread:
            run_logged(call, *args)
        else:
            self.call_soon(call, *args)

    def call_soon(self, call: Callable[..., object], *args: Any) -> None:
        """Run `call(*args)` soon; from any thread."""
        self._consumer.call_soon(functools.partial(run_logged, call, *args))

    def call_later(self, seconds: float, call: Callable[..., object], *args: Any) -> Any:
        """Run `call(*args)` after so many seconds; return an entry to cancel."""
        return self._consumer.timer.call_after(seconds, functools.partial(self.run, call, *args))

    def cancel(self, entry: Any) -> None:
        """Do not run the call of an entry."""
        self._consumer.timer.cancel(entry)

    def close(self) -> None:
        """End the thread of the loop, if it has one."""
        if self._loop is not None:
            self._loop.stop()


class HubLoop(EventLoop):
    """The hub of a worker: an event loop that waits for descriptors."""

    def __init__(self, consumer: Any) -> None:
        super().__init__(consumer)
        self._calls: deque[Callable[[], object]] = deque()
        self._wakeup = WakeupPipe()

    def register(self, hub: Any) -> None:
        """Begin with the event loop of a connection to the broker."""
        hub.add_reader(self._wakeup, self._run)

    def call_soon(self, call: Callable[..., object], *args: Any) -> None:
        self._calls.append(functools.partial(call, *args))
        self._wakeup.wake()

    def _run(self) -> None:
        run_logged(self._wakeup.drain)
        while self._calls:
            run_logged(self._calls.popleft())


class GreenLoop(EventLoop):
    """The timer of a pool of greenlets."""

    def run(self, call: Callable[..., object], *args: Any) -> None:
        run_logged(call, *args)

    def call_soon(self, call: Callable[..., object], *args: Any) -> None:
        self._consumer.timer.call_after(0, functools.partial(run_logged, call, *args))


class ThreadLoop(EventLoop):
    """A thread of its own, for a worker that waits for its broker in a blocking call."""

    def run(self, call: Callable[..., object], *args: Any) -> None:
        if self._loop is None:  # with the first message: the pool is forked before
            loop = Loop(DISPATCHER, users_thread)
            loop.start()
            self._loop = loop
        self._loop.post(run_logged, call, *args)

    call_soon = run

    def call_later(self, seconds: float, call: Callable[..., object], *args: Any) -> Any:
        assert self._loop is not None  # this is its thread
        return self._loop.call_later(seconds, functools.partial(run_logged, call, *args))

    def cancel(self, entry: Any) -> None:
        entry.cancel()


def event_loop_of(consumer: Any) -> EventLoop:
    """Return the event loop of a worker. Its consumer calls this while it is made."""
    if getattr(consumer.pool, "is_green", False):
        return GreenLoop(consumer)
    # In a solo pool, the worker's own thread runs the tasks, so the loop needs another one.
    return ThreadLoop(consumer) if consumer.hub is None or is_pool(consumer.pool, "solo") else HubLoop(consumer)


def solo_loop_of(consumer: Any) -> EventLoop | None:
    """Return the loop of the thread that runs the tasks, if that is the worker's own."""
    if not is_pool(consumer.pool, "solo"):
        return None
    return EventLoop(consumer) if consumer.hub is None else HubLoop(consumer)


def is_pool(pool: Any, *names: str) -> bool:
    """Return whether a pool is of one of these kinds, named as the modules in `celery.concurrency`."""
    return bool({cls.__module__ for cls in type(pool).__mro__} & {f"celery.concurrency.{name}" for name in names})
