"""
Find which asyncio tasks a thread runs, or waits for in asgiref's `async_to_sync`, and what waits for a task or thread.

It reads private names of asyncio, `concurrent.futures` and asgiref, the same from Python 3.11 to 3.14 and in asgiref
3.13. Without them, less is found.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any, TypeAlias

from django_zklock.core.execution.owner import Owner
from django_zklock.core.execution.stack import variables_of

InnerTasks: TypeAlias = "tuple[asyncio.AbstractEventLoop | None, Callable[[], Collection[asyncio.Task[Any]]]]"
"""An event loop, and a function that returns the tasks; it runs on the thread of the loop. None: it starts or ends."""

_RUN_FOREVER = asyncio.BaseEventLoop.run_forever.__code__
_RUN = asyncio.Runner.run.__code__  # also of a loop without Python frames


def inner_tasks(ident: int) -> InnerTasks | None:
    """Return the tasks of a thread, or None if it runs plain code."""
    # Private names of asgiref. Without them, a thread that waits for a coroutine is interrupted like any other.
    asgiref = sys.modules.get("asgiref.sync")
    async_to_sync = getattr(asgiref, "AsyncToSync", None)
    executors: Any = getattr(async_to_sync, "loop_thread_executors", None)
    waits = _code(async_to_sync, "__call__") if executors is not None else None
    works = _code(getattr(asgiref, "SyncToAsync", None), "thread_handler")
    for code, variables in variables_of(ident, {_RUN_FOREVER, _RUN, waits, works}):
        if code is works:
            break  # the thread works for a coroutine that waits for it
        if code is waits:
            return _awaited(variables, executors)
        loop = _running(code, variables)
        if loop is not None:
            return loop, functools.partial(asyncio.all_tasks, loop)
    return None


def _running(code: object, variables: Mapping[str, Any]) -> Any:
    """Return the loop of a frame that runs one, or None if the loop starts or ends."""
    if code is _RUN_FOREVER:
        return variables["self"]
    task = variables.get("task")  # of `Runner.run`
    return None if task is None else task.get_loop()


def _awaited(variables: Mapping[str, Any], executors: Any) -> InnerTasks:
    """Return the tasks that a frame of `async_to_sync` waits for."""
    tasks = tuple(variables.get("task_context") or ())
    if tasks:  # they run in the loop that this thread works for, which has others
        return tasks[0].get_loop(), functools.partial(tuple, tasks)
    executor = variables.get("current_executor")
    loop = next((key for key, value in list(executors.items()) if value is executor), None)
    return loop, tuple if loop is None else functools.partial(asyncio.all_tasks, loop)


def _code(of: object, method: str) -> object:
    return getattr(getattr(of, method, None), "__code__", None)


# --- what waits for the caller ------------------------------------------------------------------------------------

_Waited: TypeAlias = "asyncio.Future[Any] | Future[Any] | int"
"""A task or another future; or a thread, by its number."""

_BLOCKED: dict[object, tuple[str, ...]] = {  # functions that wait for a future, and their variables that have it
    _RUN: ("task",),
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
    works = {
        getattr(getattr(sys.modules.get(module), "_WorkItem", None), "run", None)
        for module in ("concurrent.futures.thread", "asgiref.current_thread_executor")
    }
    codes = {getattr(function, "__code__", None) for function in works}
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
