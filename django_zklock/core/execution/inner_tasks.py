"""
Find which asyncio tasks a thread runs, or waits for in asgiref's `async_to_sync`.

It reads private names of asyncio and asgiref, the same from Python 3.11 to 3.14 and in asgiref 3.13. Without them, less
is found.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

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
