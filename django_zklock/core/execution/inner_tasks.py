"""Find the asyncio tasks that a thread runs, or waits for in asgiref's `async_to_sync`."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable, Collection
from typing import Any, TypeAlias

from django_zklock.core.execution.stack import variables_of

InnerTasks: TypeAlias = "tuple[asyncio.AbstractEventLoop | None, Callable[[], Collection[asyncio.Task[Any]]]]"
"""An event loop, and a function that returns the tasks; it runs on the thread of the loop. None: it starts or ends."""

_RUN_FOREVER = asyncio.BaseEventLoop.run_forever.__code__
_RUN = getattr(getattr(asyncio, "Runner", None), "run", asyncio.run).__code__  # also of a loop without Python frames


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
        loop: Any = None
        if code is _RUN_FOREVER:
            loop = variables["self"]
        elif code is _RUN:
            loop = variables.get("loop") or getattr(variables.get("self"), "_loop", None)
        else:
            tasks = tuple(variables.get("task_context") or ())
            if tasks:  # they run in the loop that this thread works for, which has others
                return tasks[0].get_loop(), functools.partial(tuple, tasks)
            executor = variables.get("current_executor")
            loop = next((key for key, value in list(executors.items()) if value is executor), None)
            if loop is None:
                return None, tuple
        if loop is not None:
            return loop, functools.partial(asyncio.all_tasks, loop)
    return None


def _code(of: object, method: str) -> object:
    return getattr(getattr(of, method, None), "__code__", None)
