"""Wait for one value from the protocol's thread: in a thread or greenlet, or in a coroutine."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Generator
from typing import Any, ClassVar, Final, Generic, TypeAlias, TypeVar

from django_zklock.core import clock
from django_zklock.core.execution.owner import present_loop, running_loop
from django_zklock.core.execution.stack import variables_of

SIGNALS_WITHIN: Final = 1.0  # seconds in which the handler of a signal runs, however long the wait is

_Value = TypeVar("_Value")

Routine: TypeAlias = Generator[Any, Any, _Value]
"""
A generator that waits by `yield from`. It serves threads and coroutines; only the waiter differs.

It is no coroutine: Python would warn if an exception prevents its start.
"""


def run(routine: Routine[_Value]) -> _Value:
    """Run a routine whose waiters block the thread, so that it never suspends."""
    try:
        next(routine)
    except StopIteration as done:
        value: _Value = done.value
        return value
    raise RuntimeError("a routine for threads has suspended")


class Awaited(Generic[_Value]):
    """Makes a routine, whose waiters suspend, awaitable."""

    __slots__ = ("_routine",)

    def __init__(self, routine: Routine[_Value]) -> None:
        self._routine = routine

    def __await__(self) -> Routine[_Value]:
        running_loop()  # raises without a loop; a routine that need not wait would not notice that there is none
        return self._routine


class ThreadWaiter(Generic[_Value]):
    """
    Waits in a thread, or in a greenlet if gevent has patched threads.

    It uses one bare lock instead of a `threading.Event`. A signal handler that raises inside an event's methods may
    leave its inner lock acquired, and the protocol's thread would wait for that for ever.
    """

    __slots__ = ("_latch", "value")
    on_queued: ClassVar[Any] = None  # others call this once if the caller has to wait

    def __init__(self) -> None:
        self._latch = threading.Lock()  # acquired until there is a value
        self._latch.acquire()
        self.value: _Value | None = None

    def set(self, value: _Value) -> bool:
        """Set the value; from any thread, and perhaps again."""
        self.value = value
        self.wake()
        return True

    def wake(self) -> None:
        """Have the waiting thread look for a value, and go on waiting if there is none; from any thread."""
        try:
            self._latch.release()
        except RuntimeError:
            pass  # it was woken before

    def wait(self, timeout: float | None) -> _Value | None:
        """Return the value, or None if there is none within `timeout` seconds (None: no limit; below 0: 0)."""
        return run(self.outcome(timeout))

    def outcome(self, timeout: float | None) -> Routine[_Value | None]:
        """Return what `wait` returns; for a routine that `run` drives."""
        yield from ()
        remaining = math.inf if timeout is None else timeout
        until = clock.now() + remaining
        while self.value is None:
            # Python runs the handlers of signals in the main thread, between two operations. A signal that comes while
            # that thread is about to block (on a busy machine this takes milliseconds) interrupts nothing: its handler
            # runs when the thread wakes up. So the main thread wakes up now and then.
            in_main = threading.get_ident() == threading.main_thread().ident
            longest = SIGNALS_WITHIN if in_main else threading.TIMEOUT_MAX
            # -1 means no limit for the latch, so a negative time must not reach it. This order keeps NaN.
            self._latch.acquire(timeout=min(max(remaining, 0.0), longest))
            remaining = until - clock.now()
            if remaining <= 0:
                break
        return self.value


def wake_thread(ident: int) -> None:
    """Wake a thread if it blocks in a `ThreadWaiter`, so that an interrupt arrives."""
    for _, variables in variables_of(ident, {ThreadWaiter.outcome.__code__}):
        variables["self"].wake()


class TaskWaiter(Generic[_Value]):
    """
    Waits in a coroutine, without a thread.

    There may be thousands of them, so each uses one future and one timer: `asyncio.wait` needs a kilobyte more.
    """

    __slots__ = ("_loop", "_waking", "on_queued", "value")

    def __init__(self) -> None:
        self.on_queued: Callable[[], object] | None = None  # called once if the caller has to wait; on any thread
        self._loop = running_loop()
        self._waking: asyncio.Future[None] | None = None  # awaited by the coroutine; event loop's thread only
        self.value: _Value | None = None

    def set(self, value: _Value) -> bool:
        """Set the value; from any thread. Return False if the loop is closed, so that no coroutine waits."""
        self.value = value  # at once: a busy loop may run the timer of the wait first
        try:
            if present_loop() is self._loop:
                self._wake()
            else:
                self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            return False
        return True

    def _wake(self) -> None:
        if self._waking is not None and not self._waking.done():
            self._waking.set_result(None)

    def outcome(self, timeout: float | None) -> Routine[_Value | None]:
        """Return the value, or None if there is none within `timeout` seconds; for a routine that `Awaited` drives."""
        if self.value is None:
            self._waking = self._loop.create_future()
            timer = None if timeout is None else self._loop.call_later(max(timeout, 0.0), self._wake)
            try:
                yield from self._waking
            finally:
                if timer is not None:
                    timer.cancel()
        return self.value
