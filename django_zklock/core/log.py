"""
The loggers of this package. Log handlers never run on the protocol's threads.

A log handler is other people's code: it may block, raise, or take a lock itself. On a protocol thread, it would delay
heartbeats and aborts. So a record of such a thread is made there at once, with its time and arguments, and handled on
the thread "zklock-log", from a bounded queue. Records of all other threads are handled where they are made.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from contextvars import copy_context
from typing import Any, Final

from django_zklock.core import fork

MOST_RECORDS: Final = 10_000
"""How many records wait for slow handlers. Later ones are dropped, and counted."""

LONGEST_DELAY: Final = 0.25
"""Seconds in which a handler can delay the thread of a user, once: later records do not wait behind it."""

_LOGGING_FILES = (logging.LoggerAdapter.warning.__code__.co_filename, __file__)
_MOMENT = ("created", "msecs", "relativeCreated", "thread", "threadName", "taskName")  # of a record


class _ThreadLocal(threading.local):
    """Whether the current thread is one of the protocol's."""

    is_protocol = False


_current = _ThreadLocal()


def mark_protocol_thread() -> None:
    """Handle the records of the current thread on another one, from now on."""
    _current.is_protocol = True


def on_protocol_thread() -> bool:
    """Return whether the current thread is one of the protocol's, which must not run other people's code."""
    return _current.is_protocol


def work_fields(about: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes of a log record about the work, named as in Celery's own log formatter."""
    return {"task_name": about["task"], "task_id": about.get("id", "")} if "task" in about else {}


class Logger(logging.LoggerAdapter[logging.Logger]):
    """
    A logger by name. Its records are handled on another thread if a protocol thread makes them.

    With `always`, any other thread does so, too: at the end of a block, a slow handler would delay the release. The
    handlers get the context variables of the caller, who waits for them for `LONGEST_DELAY` seconds at most.
    """

    def __init__(self, name: str, *, always: bool = False) -> None:
        super().__init__(logging.getLogger(name), {})
        self._always = always

    def log(self, level: int, msg: object, *args: Any, stacklevel: int = 2, **kwargs: Any) -> None:
        """
        Log `msg % args` as the logger does. `about` is the work that it is about: a task is named at the end.

        `stack` becomes the `stack_info` of the record. Its text is made where the record is handled.
        """
        # The logger's own `isEnabledFor` may wait for the mutex of `logging`, which is held while it is configured.
        if level <= self.logger.manager.disable or level < logging.Logger.getEffectiveLevel(self.logger):
            return
        if about := kwargs.pop("about", None):
            kwargs["extra"] = {**kwargs.get("extra", {}), **work_fields(about)}
            if "task" in about:
                msg, args = f"{msg} [task %s %s]", (*args, about["task"], about.get("id", ""))
        stack = kwargs.pop("stack", None)
        if stack is None and not self._always and not _current.is_protocol:
            self.logger.log(level, msg, *args, stacklevel=stacklevel, **kwargs)
            return
        made = self._made(level, msg, args, **kwargs)
        if _current.is_protocol:
            _records.put(self._handle, made, kwargs.get("extra"), stack)
        else:  # filters see the context of the caller, and a test finds the record
            _records.put_and_wait(copy_context().run, self._handle, made, kwargs.get("extra"), stack)

    def _made(
        self, level: int, msg: object, args: Any, *, exc_info: object = None, extra: object = None
    ) -> logging.LogRecord:
        """Return a record of this moment. The user's factory of records is other people's code, too."""
        frame = sys._getframe(2)
        while frame.f_code.co_filename in _LOGGING_FILES and frame.f_back is not None:
            frame = frame.f_back
        code, error = frame.f_code, sys.exc_info() if exc_info else None
        return logging.LogRecord(
            self.logger.name, level, code.co_filename, frame.f_lineno, msg, args, error, code.co_name
        )

    def _handle(self, made: logging.LogRecord, extra: Any, stack: object) -> None:
        """Handle the record on the thread for that, as `Logger.log` does."""
        if not self.logger.isEnabledFor(made.levelno):
            return
        stack_info = None if stack is None else str(stack)
        what = made.msg, made.args or (), made.exc_info, made.funcName, extra, stack_info
        record = self.logger.makeRecord(made.name, made.levelno, made.pathname, made.lineno, *what)
        vars(record).update((name, value) for name, value in vars(made).items() if name in _MOMENT)
        self.logger.handle(record)


class _Records:
    """The queue of the records, and the thread that handles them. It starts with the first record."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[..., object], tuple[Any, ...]]] = queue.SimpleQueue()
        self._mutex = threading.Lock()  # no other people's code runs under it
        self._thread: threading.Thread | None = None  # guarded by _mutex
        self._dropped = 0  # since the last report; guarded by _mutex
        self._is_slow = False  # since a wait was too long; written without a lock, as a wrong value costs one wait

    def put(self, call: Callable[..., object], *args: Any) -> None:
        """Run `call(*args)` on the thread of the log, unless too many calls wait for it."""
        with self._mutex:
            if self._calls.qsize() >= MOST_RECORDS:
                self._dropped += 1
                return
            self._calls.put((call, args))
            if self._thread is None or not self._thread.is_alive():
                try:
                    thread = threading.Thread(target=self._run, name="zklock-log", daemon=True)
                    thread.start()
                except Exception:  # noqa: BLE001 - the process ends, or has no room for another thread
                    return  # `flush`, or a later record, handles it
                self._thread = thread

    def put_and_wait(self, call: Callable[..., object], *args: Any) -> None:
        """Run `call(*args)` on the thread of the log. Wait for that, unless a handler is slow, or logs itself."""
        waits = not self._is_slow and threading.current_thread() is not self._thread
        self.put(call, *args)
        if waits:
            self._is_slow = not self.flush(LONGEST_DELAY)

    def flush(self, timeout: float) -> bool:
        """Wait until the records until now are handled; return whether that took at most `timeout` seconds."""
        if self._thread is None or not self._thread.is_alive():
            while not self._calls.empty():
                self._run_next()
            return True
        handled = threading.Event()
        self._calls.put((handled.set, ()))
        return handled.wait(timeout)

    def _run(self) -> None:
        while True:
            self._run_next()

    def _run_next(self) -> None:
        call, args = self._calls.get()
        with self._mutex:
            dropped, self._dropped = self._dropped, 0
        if dropped:
            _run_handler(_report_dropped, dropped)
        _run_handler(call, *args)
        if self._is_slow and self._calls.empty():
            self._is_slow = False


def _report_dropped(count: int) -> None:
    logger.warning("%d log records were dropped: the log handlers are too slow", count)


def _run_handler(call: Callable[..., object], *args: Any) -> None:
    try:
        call(*args)
    except Exception:  # noqa: BLE001 - whatever a handler raises
        # The next record must be handled all the same. `logging` also prints the errors of handlers.
        with contextlib.suppress(OSError, ValueError):  # there is no terminal
            traceback.print_exc()


logger = Logger("django_zklock.log")
_records = _Records()


def defer(call: Callable[..., object], *args: Any) -> None:
    """Call other people's code: on the thread of the log if this is a protocol thread, else at once."""
    if _current.is_protocol:
        _records.put(call, *args)
    else:
        call(*args)


def flush(timeout: float) -> bool:
    """Wait until all records of the protocol's threads are handled, at most `timeout` seconds."""
    return _records.flush(timeout)


def _forget_in_child() -> None:
    global _records
    _records = _Records()  # the parent has the thread, and handles the records


fork.in_child(_forget_in_child)
