"""
Abort the work that runs in an asyncio task, a greenlet or a thread.

Each kind of work is aborted in its own way, and each way has a race at the end of the block: an abort that is requested
while the block ends must be dropped. It must never reach the code after the block. `request` runs on the protocol's
thread; `arm` and `disarm` run in the work itself. The block of a coroutine or generator that is garbage may be disarmed
in any thread, even in the middle of `request`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import os
import signal
import sys
import threading
from _signal import getsignal  # type: ignore[import-not-found]  # without the enums of `signal`: ten times as fast
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, TypeVar

from django_zklock.exceptions import LockLostInterrupt
from django_zklock.execution.owner import Owner, eventlet_patched, gevent_patched

ABORT_SIGNAL = signal.SIGURG
"""
The signal that interrupts the main thread. It is ignored by default, so a stray one does no harm. Neither Celery
(SIGUSR1, SIGTERM, SIGQUIT) nor the common servers (SIGUSR2, SIGHUP, SIGALRM) use it.
"""

_DEPTH = 40  # frames that are searched for a shielded function

_Function = TypeVar("_Function", bound=Callable[..., Any])
_shielded: set[CodeType] = set()


def shielded(function: _Function) -> _Function:
    """
    Mark a function that no abort may interrupt, such as the release of a lock.

    Otherwise an abort could interrupt the first line of `__exit__`, before any `try`.
    """
    _shielded.add(function.__code__)
    return function


def _is_shielded(frame: FrameType | None) -> bool:
    for _ in range(_DEPTH):
        if frame is None:
            return False
        if frame.f_code in _shielded:
            return True
        frame = frame.f_back
    return False


class Abort:
    """
    Aborts one block of work; it is armed while the block runs.

    This base class aborts nothing. It is for greenlets that neither gevent nor eventlet runs: they cannot be
    interrupted from outside. Their work continues to the end of the block, which then raises `LockLost`.
    """

    how = "none"  # how the work is aborted, for the receipt
    armed = False
    delivered = False  # the work has been interrupted, or will be at its next step

    def arm(self) -> None:
        """Accept aborts from now on; called in the work, at the start of the block."""
        self.armed = True

    def request(self, reason: str) -> None:
        """Abort the work; on the protocol's thread. The caller repeats this until it is `delivered` or disarmed."""

    def disarm(self) -> None:
        """Accept no more aborts. The work calls this first of all at the end of the block."""
        self.armed = False

    def is_mine(self, error: BaseException | None) -> bool:
        """Return whether the block ended with this error because of this abort."""
        return isinstance(error, LockLostInterrupt)


class TaskAbort(Abort):
    """Aborts an asyncio task by cancelling it, at its next `await`."""

    how = "task"

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task
        self._loop = task.get_loop()
        self._cancellations_before = 0

    def arm(self) -> None:
        self._cancellations_before = _cancelling(self._task)
        self.armed = True

    def request(self, reason: str) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, so the work is over
            self._loop.call_soon_threadsafe(self._deliver, reason)

    def _deliver(self, reason: str) -> None:
        # On the task's thread, so the task is at an `await`: inside the block if the abort is still armed.
        if self.armed and not self.delivered:
            self.delivered = True
            self._task.cancel(reason)

    def is_mine(self, error: BaseException | None) -> bool:
        """Return whether our cancellation ended the block, and take it back. A cancellation by other code remains."""
        # An abort that was not delivered has not cancelled the task. An inner block may have.
        others = _uncancel(self._task) if self.delivered else _cancelling(self._task)
        return isinstance(error, asyncio.CancelledError) and others <= self._cancellations_before


if sys.version_info >= (3, 11):

    def _cancelling(task: asyncio.Task[Any]) -> int:
        return task.cancelling()

    def _uncancel(task: asyncio.Task[Any]) -> int:
        return task.uncancel()

else:
    # Python 3.10 does not count cancellations. So any cancellation during an abort is treated as the abort.

    def _cancelling(task: asyncio.Task[Any]) -> int:
        return 0

    def _uncancel(task: asyncio.Task[Any]) -> int:
        return 0


class GreenletAbort(Abort):
    """Aborts a greenlet by throwing into it when it yields next."""

    how = "greenlet"

    def __init__(self, greenlet: Any, call_in_hub: Callable[..., object]) -> None:
        self._greenlet = greenlet
        self._call_in_hub = call_in_hub  # schedules a call in the hub; can be used on the protocol's thread

    def request(self, reason: str) -> None:
        self._call_in_hub(self._deliver, reason)

    def _deliver(self, reason: str) -> None:
        # In the hub, so the greenlet has yielded: inside the block if the abort is still armed. It may be waiting for
        # the COMMIT of an inner block, which is shielded.
        if self.armed and not self.delivered and not _is_shielded(self._greenlet.gr_frame):
            self.delivered = True
            self._greenlet.throw(LockLostInterrupt(reason))


class MainThreadAbort(Abort):
    """
    Aborts the main thread by a signal whose handler raises, so that blocking calls are interrupted, too.

    The handler checks what it interrupts, and lets shielded functions finish.
    """

    how = "signal"
    _reason = ""
    _requested = False

    def arm(self) -> None:
        if getsignal(ABORT_SIGNAL) is not _on_abort_signal:
            _install_handler()
        _main_thread_aborts.append(self)
        self.armed = True

    def request(self, reason: str) -> None:
        self._reason = reason
        self._requested = True
        ident = threading.main_thread().ident
        if ident is not None:
            signal.pthread_kill(ident, ABORT_SIGNAL)

    def disarm(self) -> None:
        self.armed = False
        if self in _main_thread_aborts:
            _main_thread_aborts.remove(self)

    def raise_if_requested(self) -> None:
        """Raise in the main thread if this abort was requested."""
        if self._requested and self.armed and not self.delivered:
            self.delivered = True
            raise LockLostInterrupt(self._reason)


# The aborts of the open blocks of the main thread, outermost first. Only the main thread uses it.
_main_thread_aborts: list[MainThreadAbort] = []
_previous_handler: Any = None


def _install_handler() -> None:
    global _previous_handler
    _previous_handler = getsignal(ABORT_SIGNAL)
    signal.signal(ABORT_SIGNAL, _on_abort_signal)


def _on_abort_signal(number: int, frame: FrameType | None) -> None:
    if not _is_shielded(frame):
        for abort in _main_thread_aborts:
            abort.raise_if_requested()
    if callable(_previous_handler):
        _previous_handler(number, frame)


class ThreadAbort(Abort):
    """
    Aborts a thread by an asynchronous exception at its next bytecode, so not before a blocking call ends.

    The mutex makes check-and-send atomic. If an exception was sent and has not arrived when the block ends, `disarm`
    makes it arrive, and drops it.
    """

    how = "thread"

    def __init__(self) -> None:
        self.ident = threading.get_ident()
        self._mutex = threading.RLock()

    def arm(self) -> None:
        _thread_aborts[self] = None
        self.armed = True

    def request(self, reason: str) -> None:
        with self._mutex:
            shielded = _is_shielded(sys._current_frames().get(self.ident))
            if self.armed and not self.delivered and not shielded:
                self.delivered = True
                _set_async_exception(self.ident, LockLostInterrupt)
                self._drop_unwanted()  # the garbage collector may have disarmed this just now, in this thread

    @shielded
    def disarm(self) -> None:
        arrived = False
        while True:
            try:
                with self._mutex:
                    self.armed = False
                _thread_aborts.pop(self, None)
                if self.delivered and not arrived:
                    self._make_it_arrive()
                return
            except LockLostInterrupt:
                arrived = True

    def _make_it_arrive(self) -> None:
        if threading.get_ident() != self.ident:
            self._drop_unwanted()
            return
        # This replaces an exception that has not arrived: a thread has room for one. Clearing it instead would make
        # Python 3.11 check for it at each call for ever, and loop endlessly under a debugger or coverage.
        _set_async_exception(self.ident, LockLostInterrupt)
        for _ in range(1000):
            pass

    def _drop_unwanted(self) -> None:
        """Drop an exception that has not arrived, from another thread; unless another block of the thread needs it."""
        if not any(abort.ident == self.ident and abort.armed and abort.delivered for abort in list(_thread_aborts)):
            _set_async_exception(self.ident, None)


_thread_aborts: dict[ThreadAbort, None] = {}  # those of the open blocks of all other threads


def _set_async_exception(ident: int, exception: type[BaseException] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(ident), ctypes.py_object(exception) if exception is not None else None
    )


def _hub_scheduler(greenlet: Any) -> Callable[..., object] | None:
    """Return the function that schedules a call in the hub of this greenlet, if gevent or eventlet runs it."""
    gevent = sys.modules.get("gevent.hub")
    if gevent is not None and (gevent_patched() or isinstance(greenlet.parent, gevent.Hub)):
        call_in_hub: Callable[..., object] = gevent.get_hub().loop.run_callback_threadsafe
        return call_in_hub
    if eventlet_patched():
        # Then the protocol runs in greenlets of the same hub. This hub accepts no calls from other threads.
        return functools.partial(sys.modules["eventlet"].hubs.get_hub().schedule_call_global, 0)
    return None


def abort_for(owner: Owner) -> Abort:
    """Return the abort for the work of this owner, which is the caller."""
    if owner.kind == "task":
        return TaskAbort(owner.subject)
    if owner.kind == "greenlet":
        call_in_hub = _hub_scheduler(owner.subject)
        return GreenletAbort(owner.subject, call_in_hub) if call_in_hub is not None else Abort()
    if owner.subject is threading.main_thread():
        return MainThreadAbort()
    return ThreadAbort()


def _forget_in_child() -> None:
    _thread_aborts.clear()
    _main_thread_aborts.clear()  # the child holds nothing, so nothing in it is aborted


os.register_at_fork(after_in_child=_forget_in_child)
