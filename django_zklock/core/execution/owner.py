"""The owner of a lock: the current asyncio task, else the greenlet, else the thread."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import threading
import weakref
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final, Literal

from django_zklock.core.errors import ZkLockError

DISPATCHER: Final = "zklock-dispatcher"
"""The thread that acquires locks for messages of Celery: its name, as others in the queue see it."""


@dataclass(frozen=True, slots=True)
class Owner:
    """
    One task, greenlet or thread; or a message of Celery, before its work begins. Equal owners are the same object.

    An owner refers to that object, because Python reuses the ids of objects. A context of `contextvars` cannot be an
    owner: the children of `asyncio.gather` inherit it.
    """

    kind: Literal["task", "greenlet", "thread", "message"]
    subject: Any
    thread: int = field(default_factory=threading.get_ident, compare=False)  # that runs it

    def __str__(self) -> str:
        name = self.subject.get_name() if self.kind == "task" else getattr(self.subject, "name", self.number)
        return f"{self.kind} {name!r}"

    @property
    def number(self) -> int:
        """The number of this owner in its process, never reused; 0 if weak references to it are impossible."""
        try:
            return _numbers.get(self.subject) or _numbers.setdefault(self.subject, next(_next_number))
        except TypeError:
            return 0

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        if self.kind == "task":
            return bool(self.subject.done())
        if self.kind == "greenlet":
            return bool(self.subject.dead)
        # While the functions of `atexit` run, the main thread does not count as alive.
        return self.kind == "thread" and not self.subject.is_alive() and self.subject is not threading.current_thread()


_next_number = itertools.count(1)
_numbers: weakref.WeakKeyDictionary[Any, int] = (
    weakref.WeakKeyDictionary()
)  # any thread: each step is one operation of a dict


present_loop: Final = asyncio._get_running_loop
"""
Returns asyncio's loop of this thread, or None.

A private name, the same from Python 3.11 to 3.15. `asyncio.get_running_loop` is not as cheap, because it raises.
"""


def current_owner() -> Owner:
    """Return the owner that runs the caller."""
    greenlet = sys.modules.get("greenlet")
    if present_loop() is not None:  # cheap; without a loop, `current_task` raises
        task = asyncio.current_task()
        if task is not None and (greenlet is None or loop_is_running() or _is_running(task, greenlet)):
            return Owner("task", task)
    if greenlet is not None:
        current = greenlet.getcurrent()
        # If gevent has patched threads, the first greenlet of a thread is scheduled like the others.
        if current.parent is not None or gevent_patched():
            return Owner("greenlet", current)
    try:
        return _thread_local.owner
    except AttributeError:
        _thread_local.owner = Owner("thread", threading.current_thread())
        return _thread_local.owner


def _is_running(task: asyncio.Task[Any], greenlet: Any) -> bool:
    """Return whether the task runs the caller. While Playwright's loop waits in a greenlet, plain code goes on."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame is not getattr(task.get_coro(), "cr_frame", None):
        frame = frame.f_back
    return frame is not None or greenlet.getcurrent().parent is not None  # such as SQLAlchemy's, which a task waits for


class _ThreadLocal(threading.local):
    """The facts about the current thread."""

    owner: Owner  # created once


_thread_local = _ThreadLocal()


def gevent_patched() -> bool:
    """Return whether gevent has replaced the threads of this process by greenlets."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


def loop_is_running() -> bool:
    """Return whether an event loop runs in this thread that no call may block. Django's variable allows it."""
    return present_loop() is not None and not os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE")


def running_loop() -> asyncio.AbstractEventLoop:
    """Return asyncio's loop of this thread. Raise `ZkLockError` if there is none, as under trio."""
    loop = present_loop()
    if loop is None:
        raise ZkLockError(
            "Coroutines can use locks only under asyncio, and no asyncio loop runs here. Under trio, use the lock in a "
            "sync function and call that by: await trio.to_thread.run_sync(function)"
        )
    return loop
