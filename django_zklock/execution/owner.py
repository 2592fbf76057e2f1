"""Knows who runs here: the asyncio task, else the greenlet, else the thread."""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakKeyDictionary


@dataclass(frozen=True, slots=True)
class Owner:
    """
    One line of execution; two are equal when they are the same one.

    It refers to the task, greenlet or thread itself, as their numbers are used again after their end. The context of
    `contextvars` is no owner: children of `asyncio.gather` inherit it.
    """

    kind: Literal["task", "greenlet", "thread"]
    subject: Any

    def __hash__(self) -> int:
        return hash(self.subject)

    @property
    def number(self) -> int:
        """The number of this owner in its process, never used again; 0 for one that cannot be numbered."""
        try:
            return _numbers.get(self.subject) or _numbers.setdefault(self.subject, next(_next_number))
        except TypeError:  # there are no weak references to it
            return 0

    @property
    def is_over(self) -> bool:
        """Whether it has ended, so that nobody can act for it any more."""
        if self.kind == "task":
            return bool(self.subject.done())
        if self.kind == "greenlet":
            return bool(self.subject.dead)
        return not self.subject.is_alive()


_next_number = itertools.count(1)
_numbers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # any thread: each step is one operation of a dict


def current_owner() -> Owner:
    """Return the owner that calls."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    if task is not None:
        return Owner("task", task)
    greenlet = sys.modules.get("greenlet")
    if greenlet is not None:
        current = greenlet.getcurrent()
        # Where gevent has patched threads, even the first greenlet takes turns with others.
        if current.parent is not None or gevent_patched():
            return Owner("greenlet", current)
    return Owner("thread", threading.current_thread())


def gevent_patched() -> bool:
    """Tell whether gevent has replaced this process's threads by greenlets."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


def eventlet_patched() -> bool:
    """Tell whether eventlet has replaced this process's threads by greenlets."""
    eventlet = sys.modules.get("eventlet")
    return eventlet is not None and bool(eventlet.patcher.is_monkey_patched("thread"))


def threads_are_greenlets() -> bool:
    """Tell whether what this process takes for threads are greenlets of one thread."""
    return gevent_patched() or eventlet_patched()


def loop_is_running() -> bool:
    """Tell whether an event loop runs in this thread, so that blocking it would block every task."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
