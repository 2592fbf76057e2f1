"""
Find out whether a task or thread waits for another one, for the order of locks in a test run.

It reads private names of asyncio, `concurrent.futures` and asgiref, the same from Python 3.11 to 3.14 and in asgiref
3.13. Without them, less is found.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any, TypeAlias

from django_zklock.core.execution.owner import Owner
from django_zklock.core.execution.stack import variables_of

_Waited: TypeAlias = "asyncio.Future[Any] | Future[Any] | int"
"""A task or another future; or a thread, by its number."""

_BLOCKED: dict[object, tuple[str, ...]] = {  # functions that wait for a future, and their variables that have it
    asyncio.Runner.run.__code__: ("task",),
    asyncio.BaseEventLoop.run_until_complete.__code__: ("future",),
    Future.result.__code__: ("self",),
}


def waits_for(holder: Owner, owner: Owner) -> bool:
    """
    Return whether a task or thread waits for the caller, which is `owner`: it awaits it, or waits for its result.

    A task inherits the context of the code that creates it. That may wait for it, as by `asyncio.gather`, or go on.
    """
    kinds = ("task", "thread")
    if holder.kind not in kinds or owner.kind not in kinds:
        return False
    target = _waited(holder)
    reached = [_waited(owner)]
    blocked = _blocked_threads()
    for waited in reached:  # the list grows meanwhile
        if waited == target:
            return True
        if isinstance(waited, int):
            above: list[_Waited] = _futures_of_thread(waited)
        else:
            above = [*_ended_with(waited), *(ident for ident, future in blocked if future is waited)]
        reached += [item for item in above if item not in reached]
    return False


def _waited(owner: Owner) -> _Waited:
    task_or_thread: _Waited = owner.subject if owner.kind == "task" else owner.thread
    return task_or_thread


def _ended_with(future: asyncio.Future[Any] | Future[Any]) -> Iterator[Any]:
    """Yield the futures that end because this one does, and the tasks that await it."""
    callbacks = getattr(future, "_callbacks", None) or getattr(future, "_done_callbacks", None) or ()
    for callback in callbacks:
        function = callback[0] if isinstance(callback, tuple) else callback  # asyncio's have a context
        is_method = isinstance(function, (BuiltinMethodType, MethodType))
        if is_method and "wakeup" in function.__name__:  # of a task
            yield function.__self__
        for part in _parts(function):
            # Not by `isinstance`, which evaluates a lazy object of Django. A task here may be there to be cancelled.
            if issubclass(type(part), (asyncio.Future, Future)) and not issubclass(type(part), asyncio.Task):
                yield part


def _parts(function: object) -> list[Any]:
    """Return the objects that belong to a function: its `self`, variables of its closure, or given arguments."""
    if isinstance(function, FunctionType):
        return gc.get_referents(*(function.__closure__ or ()))
    if isinstance(function, functools.partial):
        return [*function.args]
    owner = getattr(function, "__self__", None) if isinstance(function, (BuiltinMethodType, MethodType)) else None
    return (
        [*vars(owner).values()] if type(owner).__name__ == "TaskGroup" else [owner]
    )  # it waits for a future of its own


def _futures_of_thread(ident: int) -> list[_Waited]:
    """Return the futures of the calls of a pool that this thread runs."""
    modules = ("concurrent.futures.thread", "asgiref.current_thread_executor")
    codes = {_code(getattr(sys.modules.get(module), "_WorkItem", None), "run") for module in modules}
    return [variables["self"].future for _, variables in variables_of(ident, codes) if variables["self"] is not None]


def _blocked_threads() -> list[tuple[int, object]]:
    """Return the threads that wait for a future, by their numbers, and for which."""
    asgiref = sys.modules.get("asgiref.sync")
    waits = _code(getattr(asgiref, "AsyncToSync", None), "__call__")
    names = {**_BLOCKED, waits: ("call_result", "loop_future")}
    blocked: list[tuple[int, object]] = []
    for thread in threading.enumerate():
        ident = thread.ident or 0
        for code, variables in variables_of(ident, names):
            blocked += [(ident, variables.get(name)) for name in names[code]]
            blocked += [(ident, task) for task in variables.get("task_context") or ()]
    return blocked


def _code(of: object, method: str) -> object:
    return getattr(getattr(of, method, None), "__code__", None)
