"""
Knows how to stop the work that runs in a task, greenlet or thread; knows nothing of locks.

Each kind of work has its own way to be stopped, and each way its own race at the end of the block: an abort that is
asked for while the block ends must be dropped, never delivered to the code that comes after. `ask` runs on the
thread of the lock protocol; `arm` and `disarm` run in the work itself. But the block of a coroutine or generator that
is thrown away may be disarmed anywhere, by the collector of garbage also in the midst of `ask`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import signal
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, TypeVar

from django_zklock.exceptions import LockLostInterrupt
from django_zklock.execution.owner import Owner, eventlet_patched, gevent_patched

ABORT_SIGNAL = signal.SIGURG
"""
What interrupts the main thread. Its default is to be ignored, so a stray one does no harm, and neither Celery
(SIGUSR1, SIGTERM, SIGQUIT) nor the common servers (SIGUSR2, SIGHUP, SIGALRM) use it.
"""

_DEPTH = 40  # frames looked through for a shielded one

_Function = TypeVar("_Function", bound=Callable[..., Any])
_shielded: set[CodeType] = set()


def shielded(function: _Function) -> _Function:
    """
    Mark a function that no abort may interrupt, such as the release of a lock.

    Without it, an abort could strike on the first line of `__exit__`, before any `try` is entered.
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
    """A way to stop one block of work, armed while the block runs."""

    how = ""  # the way, in a word, for the receipt

    def __init__(self) -> None:
        self.armed = False
        self.delivered = False  # the work has been interrupted, or will be at its next step

    def arm(self) -> None:
        """Begin to accept aborts; in the work, at the start of the block."""
        self.armed = True

    def ask(self, reason: str) -> None:
        """Stop the work; from the protocol's thread. To be asked again until `delivered`, or disarmed."""
        raise NotImplementedError

    def disarm(self) -> None:
        """End to accept aborts; in the work, first thing at the end of the block."""
        self.armed = False

    def is_mine(self, error: BaseException | None) -> bool:
        """Tell whether the block ended with this error because this abort stopped it."""
        return isinstance(error, LockLostInterrupt)


class TaskAbort(Abort):
    """Stops an asyncio task by cancelling it; delivered at its next `await`."""

    how = "task"

    def __init__(self, task: asyncio.Task[Any]) -> None:
        super().__init__()
        self._task = task
        self._loop = task.get_loop()
        self._cancelling = 0

    def arm(self) -> None:
        self._cancelling = _cancelling(self._task)
        super().arm()

    def ask(self, reason: str) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and the work over
            self._loop.call_soon_threadsafe(self._deliver, reason)

    def _deliver(self, reason: str) -> None:
        # In the task's own thread, so the task is at an `await`: inside the block if the abort is still armed.
        if self.armed and not self.delivered:
            self.delivered = True
            self._task.cancel(reason)

    def is_mine(self, error: BaseException | None) -> bool:
        """Take the cancellation back if it was ours; somebody else's, at the same time, goes on."""
        # It may also be that of a block inside, if the abort of this one was asked for and did not come any more.
        left = _uncancel(self._task) if self.delivered else _cancelling(self._task)
        return isinstance(error, asyncio.CancelledError) and left <= self._cancelling


if sys.version_info >= (3, 11):

    def _cancelling(task: asyncio.Task[Any]) -> int:
        return task.cancelling()

    def _uncancel(task: asyncio.Task[Any]) -> int:
        return task.uncancel()

else:
    # Cancellations are not counted there, so any cancellation during an abort is taken for the abort.

    def _cancelling(task: asyncio.Task[Any]) -> int:
        return 0

    def _uncancel(task: asyncio.Task[Any]) -> int:
        return 0


class GreenletAbort(Abort):
    """Stops a greenlet by throwing into it; delivered when it next yields."""

    how = "greenlet"

    def __init__(self, greenlet: Any, in_hub: Callable[..., object]) -> None:
        super().__init__()
        self._greenlet = greenlet
        self._in_hub = in_hub  # has a call made by the hub, as soon as it runs; from the protocol's thread

    def ask(self, reason: str) -> None:
        self._in_hub(self._deliver, reason)

    def _deliver(self, reason: str) -> None:
        # In the hub, so the greenlet is switched out: inside the block if the abort is still armed. It may wait for the
        # answer to the COMMIT of a block inside, which is shielded.
        if self.armed and not self.delivered and not _is_shielded(self._greenlet.gr_frame):
            self.delivered = True
            self._greenlet.throw(LockLostInterrupt(reason))


class NoAbort(Abort):
    """
    Stops nothing: for greenlets that neither gevent nor eventlet runs, which nobody can throw into from outside.

    Their work goes on to the end of its block, which raises `LockLost` then.
    """

    how = "none"

    def ask(self, reason: str) -> None:
        pass


class MainThreadAbort(Abort):
    """
    Stops the main thread by a signal whose handler raises, so that blocking calls are interrupted, too.

    The handler looks at what it interrupts, and lets shielded functions finish.
    """

    how = "signal"

    def __init__(self) -> None:
        super().__init__()
        self._reason = ""
        self._asked = False

    def arm(self) -> None:
        _install_handler()
        _main_thread_aborts.append(self)
        super().arm()

    def ask(self, reason: str) -> None:
        self._reason = reason
        self._asked = True
        ident = threading.main_thread().ident
        if ident is not None:
            signal.pthread_kill(ident, ABORT_SIGNAL)

    def disarm(self) -> None:
        super().disarm()
        with contextlib.suppress(ValueError):
            _main_thread_aborts.remove(self)

    def strike(self) -> None:
        """Raise in the main thread, if there is anything to raise."""
        if self._asked and self.armed and not self.delivered:
            self.delivered = True
            raise LockLostInterrupt(self._reason)


_main_thread_aborts: list[
    MainThreadAbort
] = []  # of the blocks the main thread is in, outermost first; main thread only
_previous_handler: Any = None


def _install_handler() -> None:
    global _previous_handler
    handler = signal.getsignal(ABORT_SIGNAL)
    if handler is not _on_abort_signal:
        _previous_handler = handler
        signal.signal(ABORT_SIGNAL, _on_abort_signal)


def _on_abort_signal(number: int, frame: FrameType | None) -> None:
    if not _is_shielded(frame):
        for abort in _main_thread_aborts:
            abort.strike()
    if callable(_previous_handler):
        _previous_handler(number, frame)


class ThreadAbort(Abort):
    """
    Stops a thread by an asynchronous exception; delivered at its next bytecode, so not before a blocking call ends.

    The mutex makes "armed, so send" one step, for all threads but the one that sends. An exception that was sent and
    has not arrived when the block ends is made to arrive there, and dropped.
    """

    how = "thread"

    def __init__(self) -> None:
        super().__init__()
        self._ident = threading.get_ident()
        self._mutex = threading.RLock()

    def arm(self) -> None:
        _thread_aborts[self] = None
        super().arm()

    def ask(self, reason: str) -> None:
        with self._mutex:
            shielded = _is_shielded(sys._current_frames().get(self._ident))
            if self.armed and not self.delivered and not shielded:
                self.delivered = True
                _set_async_exception(self._ident, LockLostInterrupt)
                self._drop_unwanted()  # the collector may have been at it just now, in this thread

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
        if threading.get_ident() != self._ident:
            self._drop_unwanted()
            return
        # One that is under way is replaced by this, as there is room for one. To call it off would leave Python 3.11
        # looking for it for ever, at each call, and running in circles as soon as a debugger or coverage traces it.
        _set_async_exception(self._ident, LockLostInterrupt)
        for _ in range(1000):
            pass

    def _drop_unwanted(self) -> None:
        """Drop what has not arrived, from another thread; but one exception is for all blocks of a thread."""
        if not any(each._ident == self._ident and each.armed and each.delivered for each in list(_thread_aborts)):
            _set_async_exception(self._ident, None)


_thread_aborts: dict[ThreadAbort, None] = {}  # of the blocks that all other threads are in


def _set_async_exception(ident: int, exception: type[BaseException] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(ident), ctypes.py_object(exception) if exception is not None else None
    )


def _way_into_hub(greenlet: Any) -> Callable[..., object] | None:
    """Return what has a call made by the hub that runs this greenlet, if it is gevent's or eventlet's."""
    gevent = sys.modules.get("gevent.hub")
    if gevent is not None and (gevent_patched() or isinstance(greenlet.parent, gevent.Hub)):
        into_hub: Callable[..., object] = gevent.get_hub().loop.run_callback_threadsafe
        return into_hub
    if eventlet_patched():
        # The protocol runs in greenlets of the same hub then, which is as well, as it takes no calls from elsewhere.
        return functools.partial(sys.modules["eventlet"].hubs.get_hub().schedule_call_global, 0)
    return None


def abort_for(owner: Owner) -> Abort:
    """Return the way to stop the work of this owner, which is the caller."""
    if owner.kind == "task":
        return TaskAbort(owner.subject)
    if owner.kind == "greenlet":
        into_hub = _way_into_hub(owner.subject)
        return GreenletAbort(owner.subject, into_hub) if into_hub is not None else NoAbort()
    if owner.subject is threading.main_thread():
        return MainThreadAbort()
    return ThreadAbort()


def _forget_in_child() -> None:
    _thread_aborts.clear()
    _main_thread_aborts.clear()  # the child is no holder, so nothing of it is to be stopped


if hasattr(signal, "pthread_kill"):
    import os

    os.register_at_fork(after_in_child=_forget_in_child)
