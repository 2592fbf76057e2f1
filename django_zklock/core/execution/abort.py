"""
Abort the work that runs in an asyncio task, a greenlet or a thread; and clean up after exceptions that strike anywhere.

The handler of a signal (an abort, a soft time limit, Ctrl-C) may raise at the first instruction of any function. So an
`except` clause is no guarantee: the function that it calls may be struck before its first line. The rule of this
package: the caller changes shared state by single steps, and one idempotent call gives back whatever is left.
`CleanupOnError` guarantees that call, even if a second exception strikes it. An abort never interrupts a function that
is `shielded`.

Each kind of work is aborted in its own way, and each way has a race at the end of the block: an abort that is requested
while the block ends must be dropped. It must never reach the code after the block. `request` runs on the protocol's
thread; `arm` and `disarm` run in the work itself. The block of a coroutine or generator that is garbage may be disarmed
in any thread, even in the middle of `request`.

Work may swallow an interrupt, so an abort is repeated until the block has been left. But it must not strike the
clean-up of a block that is being left. A thread shows which exception it handles. A task or greenlet that is suspended
does not, so its clean-up has `AGAIN_AFTER` seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import inspect
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator
from types import CodeType, FrameType
from typing import Any, TypeAlias, TypeVar

from django_zklock.core import clock, fork
from django_zklock.core.errors import LockLost, LockLostInterrupt
from django_zklock.core.execution.inner_tasks import inner_tasks
from django_zklock.core.execution.owner import Owner, gevent_patched, present_loop
from django_zklock.core.execution.signals import set_handler
from django_zklock.core.execution.stack import callers, frames_of, no_collection, read
from django_zklock.core.execution.waiters import wake_thread

ABORT_SIGNAL = signal.SIGURG
"""
The signal that interrupts the main thread. It is ignored by default, so a stray one does no harm. Neither Celery
(SIGUSR1, SIGTERM, SIGQUIT) nor the common servers (SIGUSR2, SIGHUP, SIGALRM) use it.
"""

REPEAT_AFTER = 0.05
"""Seconds until an abort that has not arrived is repeated: a shielded function delays it, or the signal is blocked."""
LOOK_AFTER = 0.25
"""
Seconds between two looks at a thread whose block is not left yet. An event loop that takes no call within them runs a
task that computes.
"""
AGAIN_AFTER = 1.0
"""Seconds until a task or a greenlet is interrupted again. It may be cleaning up, which cannot be told from work."""

REQUEST_LOOKS = 1000
"""How often a block that ends looks whether a request has ended. One takes less than a millisecond."""

_DEPTH = 40  # frames that are searched for a shielded function

_Function = TypeVar("_Function", bound=Callable[..., Any])
_shielded: dict[CodeType, Callable[..., Any]] = {}


def shielded(function: _Function) -> _Function:
    """
    Mark a function that no abort may interrupt, such as the release of a lock.

    Otherwise an abort could interrupt the first line of `__exit__`, before any `try`.
    """
    _shielded[function.__code__] = function
    return function


def _is_shielded(frames: Iterator[FrameType]) -> bool:
    codes = read(frames, "f_code")  # of all, or the iterator would keep a frame
    return any(code in _shielded for code in codes[:_DEPTH])


Finalizers: TypeAlias = "tuple[weakref.ref[Any], weakref.ref[Any]]"


def finalizers_of(end: Callable[..., None], on_destroyed: Callable[[object], None]) -> Finalizers:
    """
    Return weak references that call `on_destroyed` when Python destroys `end`. The caller must keep them.

    Python keeps the `__exit__` of a `with` block on the stack of its frame, where nothing else refers to it: no
    variable, and no traceback. If an exception strikes `__exit__` itself, Python drops that object at once, and calls
    its weak references. `end` has to be a new object for each block. Python swallows an exception that strikes such a
    call, so there are two of them.
    """
    return weakref.ref(end, on_destroyed), weakref.ref(end, on_destroyed)


class CleanupOnError:
    """`with CleanupOnError(call):` runs `call()` if an exception ends the block. `call` must be idempotent."""

    __slots__ = ("_call", "_finalizers")

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._finalizers: Finalizers | None = None  # only kept: a weak reference that is gone calls nothing

    def __enter__(self) -> None: ...

    @property
    def __exit__(self) -> Callable[..., None]:  # noqa: PLE0302 - it returns the method
        end = functools.partial(self._end)
        self._finalizers = finalizers_of(end, self._on_destroyed)
        return end

    @shielded
    def _end(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            self._call()
        self._finalizers = None

    @shielded
    def _on_destroyed(self, end: object) -> None:
        self._call()


class Abort:
    """
    Aborts one block of work; it is armed while the block runs.

    This base class aborts nothing. It is for greenlets that gevent does not run, and for threads whose
    frames cannot be read: they cannot be interrupted from outside. Their work continues to the end of the block, which
    then raises `LockLost`.
    """

    how = "none"  # how the work is aborted, for the receipt
    armed = False
    delivered = False  # the work has been interrupted, or will be at its next step
    swallowed = False  # the work has gone on after an interrupt, for certain
    again_after = AGAIN_AFTER  # seconds until the next `request` after the abort was delivered
    again_at = float("-inf")  # on clock.now(): when a task or a greenlet may be interrupted, or is once more

    def arm(self) -> None:
        """Accept aborts from now on; called in the work, at the start of the block."""
        self.armed = True

    def request(self, reason: str) -> None:
        """Abort the work; on the protocol's thread. The caller repeats this until the block is disarmed."""

    def disarm(self) -> None:
        """Accept no more aborts. The work calls this first of all at the end of the block."""
        self.armed = False

    def is_mine(self, error: BaseException | None) -> bool:
        """Return whether the block ended with this error because of this abort."""
        return _has(error, LockLostInterrupt)

    def _strikes_now(self) -> bool:
        """Return whether to interrupt work that cannot be looked into, and count that."""
        if not self.armed or clock.now() < self.again_at:
            return False
        self.delivered = True
        self.again_at = clock.now() + AGAIN_AFTER
        return True


def _has(error: BaseException | None, kind: type[BaseException]) -> bool:
    """Return whether an error is of this kind, or a group that has such an error, perhaps inside another group."""
    return isinstance(error, kind) or (
        isinstance(error, BaseExceptionGroup) and any(_has(member, kind) for member in error.exceptions)
    )


def _came_from(error: BaseException | None, kind: type[BaseException]) -> bool:
    """
    Return whether an error is of this kind, or came from one: it was raised while that was handled.

    `LockLost` replaces the interrupt of a block that has been left. The rest is work of the block around that.
    """
    pending, seen = [error], set[int]()
    while pending:
        error = pending.pop()
        if _has(error, kind):
            return True
        if error is not None and id(error) not in seen:
            seen.add(id(error))
            if isinstance(error, LockLost) and error.__cause__ is not None:
                pending.append(error.__cause__.__context__)
            else:
                pending += error.__context__, error.__cause__
    return False


class TaskAbort(Abort):
    """Aborts an asyncio task by cancelling it, at its next `await`."""

    how = "task"

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task
        self._loop = task.get_loop()
        self._cancellations_before = 0
        self._cancellations = 0  # ours

    def arm(self) -> None:
        self._cancellations_before = self._task.cancelling()
        self.armed = True

    def request(self, reason: str) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, so the work is over
            self._loop.call_soon_threadsafe(self._deliver, reason)

    def _deliver(self, reason: str) -> None:
        # On the task's thread, so the task is at an `await`: inside the block if the abort is still armed.
        if self._strikes_now():
            self._cancellations += 1
            self._task.cancel(reason)

    def is_mine(self, error: BaseException | None) -> bool:
        """Return whether our cancellation ended the block, and take it back. A cancellation by other code remains."""
        for _ in range(self._cancellations):
            self._task.uncancel()
        others = self._task.cancelling()
        return isinstance(error, asyncio.CancelledError) and others <= self._cancellations_before


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
        if not _is_shielded(callers(iter([self._greenlet.gr_frame]))) and self._strikes_now():
            self._greenlet.throw(LockLostInterrupt(reason))


class ThreadAbort(Abort):
    """
    Aborts a thread by an asynchronous exception at its next bytecode, so not before a blocking call ends.

    A wait of this package, such as that for another lock, is woken up for it.

    An exception that was sent and has not arrived when the block ends is made to arrive by `disarm`, which drops it.

    asyncio stores an interrupt in the task that it has struck, and goes on. So if the thread runs an event loop that
    was started in the block, or waits for a coroutine in `async_to_sync`, the tasks are cancelled. Then the call raises
    `CancelledError`. If it does not do so soon, the thread is interrupted, too.
    """

    how = "thread"
    again_after = LOOK_AFTER

    def __init__(self, thread: threading.Thread | None = None) -> None:
        self._thread = thread or threading.current_thread()
        self.ident = threading.get_ident()
        self._outer_loop = present_loop()  # under DJANGO_ALLOW_ASYNC_UNSAFE; its tasks are others' work
        self.requesting = False  # protocol's thread in `request`; the thread waits for the end of that
        self.sent = False  # an asynchronous exception was sent, and may not have arrived
        self._sent_at: list[int] = []  # the instructions of the frames of the thread at that moment
        self.struck = False  # an interrupt was sent to the thread in this block, perhaps for the block around it
        self.asked_at = float("inf")  # on clock.now(): when tasks were first asked to end
        self.cancelled = False  # tasks were cancelled

    def arm(self) -> None:
        _thread_aborts[self] = None
        self.armed = True

    def request(self, reason: str) -> None:
        self.requesting = True  # before the look at `armed`
        try:
            if self.armed and not (
                self._has_ended or _is_shielded(frames_of(self.ident)) or self._cancel_tasks(reason)
            ):
                self._interrupt(reason)
        finally:
            self.requesting = False

    @property
    def _has_ended(self) -> bool:
        """Whether the thread has ended before its block, as that of a generator can. A new one may have its number."""
        return self._thread is not threading.main_thread() and not self._thread.is_alive()

    def _interrupt(self, reason: str) -> None:
        """Interrupt the thread, unless it is leaving the block."""
        position = read(frames_of(self.ident), "f_lasti")
        if self._is_left(_handled_by(self.ident)) or _is_shielded(frames_of(self.ident)):  # it may have gone on
            return
        self.swallowed |= self.sent and position != self._sent_at  # otherwise the last exception has not arrived yet
        self._sent_at = position
        self._strike(reason)
        wake_thread(self.ident)
        if not self.armed:
            self._drop_unwanted()  # it was disarmed just now, perhaps by the garbage collector in another thread

    def _strike(self, reason: str) -> None:
        self.how = "thread"
        self.sent = self.delivered = True
        for abort in self._of_thread():
            abort.struck = True
        _set_async_exception(self.ident, _SENT)

    def _is_left(self, handled: BaseException | None) -> bool:
        """Return whether the thread is leaving the block, as it handles this exception."""
        return (self.struck and _came_from(handled, LockLostInterrupt)) or (
            self.cancelled and _came_from(handled, asyncio.CancelledError)
        )

    def _cancel_tasks(self, reason: str) -> bool:
        """Cancel the tasks that the thread runs or waits for. Return whether they have time left to end."""
        inner = inner_tasks(self.ident)
        if inner is None or (self._outer_loop is not None and inner[0] is self._outer_loop):
            return False
        loop, tasks = inner
        now = clock.now()
        for abort in self._of_thread():
            abort.asked_at = min(abort.asked_at, now)
        if loop is not None and now >= self.again_at:
            for abort in self._of_thread():
                abort.again_at = now + AGAIN_AFTER
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._cancel, tasks, reason)
        return now < self.asked_at + LOOK_AFTER + (AGAIN_AFTER if self.cancelled else 0)

    def _cancel(self, tasks: Callable[[], Collection[asyncio.Task[Any]]], reason: str) -> None:
        # On the thread of the loop.
        if self.armed:
            self.delivered = True
            for abort in self._of_thread():
                abort.cancelled = True
            for task in tasks():
                task.cancel(reason)

    @shielded
    def disarm(self) -> None:
        arrived = False
        while True:
            try:
                self.armed = False
                _thread_aborts.pop(self, None)
                if threading.get_ident() != self.ident:
                    self._drop_unwanted()
                    return
                for _ in range(REQUEST_LOOKS):
                    if not self.requesting:
                        break
                    time.sleep(0.001)
                if self.sent and not arrived:
                    self._make_it_arrive()
                self.sent = False
                return
            except LockLostInterrupt:
                arrived = True

    def is_mine(self, error: BaseException | None) -> bool:
        if self.cancelled and _has(error, asyncio.CancelledError):
            self.how = "task"
            return True
        return super().is_mine(error)

    def _of_thread(self) -> list[ThreadAbort]:
        """Return the aborts of the open blocks of the thread, outermost first."""
        return [abort for abort in list(_thread_aborts) if abort.ident == self.ident]

    def _make_it_arrive(self) -> None:
        # This replaces an exception that has not arrived: a thread has room for one.
        _set_async_exception(self.ident, LockLostInterrupt)

    def _drop_unwanted(self) -> None:
        """Drop an exception that has not arrived, from another thread; unless another block of the thread needs it."""
        if self.sent and not any(abort.armed and abort.sent for abort in self._of_thread()):
            _set_async_exception(self.ident, None)


_thread_aborts: dict[ThreadAbort, None] = {}  # those of the open blocks of all threads; changed by single steps


class MainThreadAbort(ThreadAbort):
    """
    Aborts the main thread by a signal whose handler raises, so that blocking calls that handle EINTR are interrupted.

    The handler checks what it interrupts, and lets shielded functions finish. If the signal has not arrived, as it is
    blocked or has another handler, an asynchronous exception is sent, as to any other thread.
    """

    how = "signal"
    _reason = ""
    _signalled = False  # the signal was sent, and its handler has not run
    _raised = False  # the handler has raised

    def _strike(self, reason: str) -> None:
        self._reason = reason
        if self._signalled and not fork.has_dead_threads:
            super()._strike(reason)  # it arrives in the handler, if that runs at last
        self._signalled = True
        signal.pthread_kill(self.ident, ABORT_SIGNAL)

    def raise_if_requested(self, frame: FrameType | None) -> None:
        """Raise in the main thread if this abort was requested; in the handler of the signal that has struck there."""
        requested, self._signalled = self._signalled, False
        if (
            requested
            and self.armed
            and not _is_shielded(callers(iter([frame])))
            and not self._is_left(sys.exc_info()[1])
        ):
            for abort in self._of_thread():
                abort.struck = True
            self.how = "signal"
            self.swallowed |= self._raised
            self.delivered = self._raised = True
            raise LockLostInterrupt(self._reason)


_previous_handler: Any = None


def _has_handler() -> bool:
    """Install the handler if necessary; return whether it is there."""
    global _previous_handler
    if (previous := signal.getsignal(ABORT_SIGNAL)) is _on_abort_signal:
        return True
    _previous_handler = previous
    if not set_handler(ABORT_SIGNAL, _on_abort_signal):
        return False
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {ABORT_SIGNAL})  # a parent process may have blocked it
    return True


def _on_abort_signal(number: int, frame: FrameType | None) -> None:
    global _previous_handler
    for abort in list(_thread_aborts):
        if isinstance(abort, MainThreadAbort):
            abort.raise_if_requested(frame)
    previous, _previous_handler = _previous_handler, None  # it may be a handler that calls this one
    try:
        if callable(previous):
            previous(number, frame)
    finally:
        _previous_handler = previous


def _handled_by(ident: int) -> BaseException | None:
    """Return the exception that a thread handles now."""
    handled: Any = no_collection(sys._current_exceptions).get(ident)
    error: BaseException | None = handled[1] if isinstance(handled, tuple) else handled  # a tuple before Python 3.12
    return error


class _Arrival(BaseException):
    """
    Becomes a `LockLostInterrupt` where it strikes a thread: Python makes the exception there.

    From Python 3.13 on, an exception that is sent to a thread may arrive one check later than where the thread was
    seen: at the first instruction of a shielded function. Then that function is called first. (`_Py_HandlePending` of
    CPython reads its flags before it gives the GIL to the sender.)
    """

    @shielded
    def __new__(cls) -> BaseException:  # type: ignore[misc]
        frame = sys._getframe(1)
        code = frame.f_code
        if code in _shielded and frame.f_lineno == code.co_firstlineno:
            _, rest, more, values = inspect.getargvalues(frame)
            options = code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount]
            _shielded[code](
                *(values[name] for name in code.co_varnames[: code.co_argcount]),
                *values.get(rest or "", ()),
                **{name: values[name] for name in options},
                **values.get(more or "", {}),
            )
        return LockLostInterrupt()


_SENT = _Arrival if sys.version_info >= (3, 13) else LockLostInterrupt


class _Unmark(BaseException):
    """Arrives in the thread that sends it; see `_set_async_exception`."""


def _set_async_exception(ident: int, exception: type[BaseException] | None) -> None:
    """
    Send an exception to a thread. None drops the one that has not arrived.

    Up to Python 3.12, the whole interpreter is marked until the exception arrives, and for ever if it is dropped. In
    3.11, all threads that a debugger or coverage traces run in circles meanwhile. An exception that arrives here at
    once removes the mark. The other thread sets it again when it gets the GIL: see `take_gil` of CPython.
    """
    sent = {ident: exception}
    if sys.version_info < (3, 13):
        sent = {threading.get_ident(): _Unmark} | sent
    exceptions = [sending and ctypes.py_object(sending) for sending in sent.values()]
    try:  # no bytecode runs between the two calls
        list(map(ctypes.pythonapi.PyThreadState_SetAsyncExc, map(ctypes.c_ulong, sent), exceptions))
        for _ in range(1000):
            pass
    except _Unmark:
        pass


def _hub_scheduler(greenlet: Any) -> Callable[..., object] | None:
    """Return the function that schedules a call in the hub of this greenlet, if gevent runs it."""
    gevent = sys.modules.get("gevent.hub")
    if gevent is not None and (gevent_patched() or isinstance(greenlet.parent, gevent.Hub)):
        call_in_hub: Callable[..., object] = gevent.get_hub().loop.run_callback_threadsafe
        return call_in_hub
    return None


def abort_for(owner: Owner) -> Abort:
    """Return the abort for the work of this owner, which is the caller."""
    if owner.kind == "task":
        return TaskAbort(owner.subject)
    if owner.kind == "greenlet":
        call_in_hub = _hub_scheduler(owner.subject)
        return GreenletAbort(owner.subject, call_in_hub) if call_in_hub is not None else Abort()
    is_main = owner.subject is threading.main_thread()
    if is_main and _has_handler():
        return MainThreadAbort(owner.subject)
    return Abort() if fork.has_dead_threads else ThreadAbort(owner.subject)


def _forget_in_child() -> None:
    # The child holds nothing, so nothing in it is aborted. It has no protocol's thread for which a block could wait.
    for abort in _thread_aborts:
        abort.requesting = abort.sent = False
    _thread_aborts.clear()


fork.in_child(_forget_in_child)
