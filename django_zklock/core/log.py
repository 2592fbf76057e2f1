"""
The loggers of this package. Log handlers never run on the protocol's threads.

A log handler is other people's code: it may block, raise, or take a lock itself. On a protocol thread, it would delay
heartbeats and aborts. So a record of such a thread is made there at once, with its time and arguments, and handled on
the thread "zklock-log", from a bounded queue. Records of all other threads are handled where they are made.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from contextvars import copy_context
from typing import Any, Final

from django_zklock.core import fork

MOST_CALLS: Final = 10_000
"""How many calls wait for slow handlers. Later ones are dropped."""

_MOMENT: Final = ("created", "msecs", "relativeCreated", "thread", "threadName", "taskName")  # of a record

_current = threading.local()


def mark_protocol_thread() -> None:
    """Handle the records of the current thread on another one, from now on."""
    _current.is_protocol = True


def on_protocol_thread() -> bool:
    """Return whether the current thread is one of the protocol's, which must not run other people's code."""
    return getattr(_current, "is_protocol", False)


def work_fields(about: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes of a log record about the work, named as in Celery's own log formatter."""
    return {"task_name": about["task"], "task_id": about.get("id", "")} if "task" in about else {}


class Logger(logging.LoggerAdapter[logging.Logger]):
    """
    A logger by name. Its records are handled on the thread of the log if a protocol thread makes them.

    With `always`, any other thread does so, too: at the end of a block, a slow handler would delay the release, and one
    that raises would replace the error. The handlers get the context variables of the caller.
    """

    def __init__(self, name: str, *, always: bool = False) -> None:
        super().__init__(logging.getLogger(name), {})
        self._always = always

    def is_on(self, level: int) -> bool:
        """Return whether records of this level are handled."""
        # The logger's own `isEnabledFor` may wait for the mutex of `logging`, which is held while it is configured.
        return level > self.logger.manager.disable and level >= logging.Logger.getEffectiveLevel(self.logger)

    def log(  # type: ignore[override]
        self,
        level: int,
        msg: object,
        *args: Any,
        about: Mapping[str, str] | None = None,
        extra: Mapping[str, object] | None = None,
        exc_info: Any = None,
        stack: object = None,
    ) -> None:
        """
        Log `msg % args` as the logger does. `about` is the work that it is about: a task is named at the end.

        `stack` becomes the `stack_info` of the record. Its text is made on the thread of the log.
        """
        if not self.is_on(level):
            return
        task = work_fields(about or {})
        if task:
            msg, args = f"{msg} [task %s %s]", (*args, *task.values())
        extra = {**(extra or {}), **task}
        if stack is None and not self._always and not on_protocol_thread():
            self.logger.log(level, msg, *args, exc_info=exc_info, extra=extra, stacklevel=2)
            return
        path, line, function, _stack = logging.Logger.findCaller(self.logger, stacklevel=2)
        error = sys.exc_info() if exc_info else None
        made = logging.LogRecord(self.logger.name, level, path, line, msg, args, error, function)
        _calls.add(functools.partial(copy_context().run, self._handle, made, extra, stack))

    def _handle(self, made: logging.LogRecord, extra: Mapping[str, object], stack: object) -> None:
        """Handle the record on the thread of the log. `makeRecord`, which agents wrap, is other people's code, too."""
        what = made.msg, made.args or (), made.exc_info, made.funcName, extra, None if stack is None else str(stack)
        record = self.logger.makeRecord(made.name, made.levelno, made.pathname, made.lineno, *what)
        vars(record).update({name: vars(made).get(name) for name in _MOMENT})
        self.logger.handle(record)


class _Calls:
    """The calls of other people's code that wait for the thread of the log. It starts with the first of them."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._has_thread = threading.Lock()  # locked from the start of the thread on; nobody waits for it

    def add(self, call: Callable[[], object]) -> None:
        """Run `call()` on the thread of the log; not at all if too many calls wait for it."""
        if self._waiting.qsize() < MOST_CALLS:
            self._waiting.put(call)
        if self._has_thread.acquire(blocking=False):
            try:
                threading.Thread(target=self._run_all, name="zklock-log", daemon=True).start()
            except BaseException as error:
                self._has_thread.release()
                if not isinstance(error, (RuntimeError, MemoryError)):  # else the process ends, or has no room for it
                    raise

    def flush(self, timeout: float) -> bool:
        """Wait until the calls until now are done; return whether that took at most `timeout` seconds."""
        done = threading.Event()
        self._waiting.put(done.set)
        while not self._has_thread.locked() and not done.is_set():
            with contextlib.suppress(queue.Empty):  # another thread flushes, too
                _run(self._waiting.get_nowait())
        return done.wait(timeout)

    def _run_all(self) -> None:
        while True:
            _run(self._waiting.get())


def _run(call: Callable[[], object]) -> None:
    try:
        call()
    except BaseException:  # noqa: BLE001 - whatever a handler raises, such as `SystemExit`
        # The next record must be handled all the same. `logging` also prints the errors of handlers.
        with contextlib.suppress(OSError, ValueError):  # there is no terminal
            traceback.print_exc()


_calls = _Calls()


def defer(call: Callable[..., object], *args: Any) -> None:
    """Call other people's code: on the thread of the log if this is a protocol thread, else at once."""
    if on_protocol_thread():
        _calls.add(functools.partial(call, *args))
    else:
        call(*args)


def flush(timeout: float) -> bool:
    """Wait until all records of the protocol's threads are handled, at most `timeout` seconds."""
    return _calls.flush(timeout)


def _forget_in_child() -> None:
    global _calls
    _calls = _Calls()  # the parent has the thread, and handles the records


fork.in_child(_forget_in_child)
