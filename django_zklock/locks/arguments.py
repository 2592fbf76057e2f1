"""The errors of wrong calls: of wrong arguments, and from places that cannot own a lock. They say what to do."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Callable, Collection, Mapping
from types import FrameType
from typing import Any, ParamSpec, TypeVar

from django.core.exceptions import SynchronousOnlyOperation

from django_zklock.conf.arguments import UNSET, Seconds, Unset
from django_zklock.conf.options import given_options
from django_zklock.core.execution.owner import loop_is_running, running_loop
from django_zklock.exceptions import ZkLockError

P = ParamSpec("P")
R = TypeVar("R")


def threading_timeout(blocking: bool, timeout: Seconds | Unset) -> float | Unset | None:
    """
    Return the seconds to wait (None: no limit), from arguments of `threading.Lock.acquire`.

    `UNSET` means that the option of the lock decides. Raises `ValueError` for what is no such option.
    """
    if not blocking:
        if timeout not in (UNSET, -1):
            raise ValueError("can't specify a timeout for a non-blocking call")
        return 0.0
    if timeout is UNSET:
        return UNSET
    seconds: float | None = None if timeout == -1 else given_options({"timeout": timeout})["timeout"]
    return seconds


def check_options(call: str, options: Mapping[str, object], known: Collection[str]) -> None:
    """Raise `TypeError` for an option that `call` does not have, and name those that it has."""
    for option in options:
        if option not in known:
            raise TypeError(f"{call}() has no option {option!r}; its options are {', '.join(known)}.")


def skips(on_conflict: str) -> bool:
    """Return whether a block with this argument runs without a busy lock."""
    if on_conflict not in ("raise", "skip"):
        raise ValueError(
            f'on_conflict must be "raise" or "skip" for a block; got {on_conflict!r}. Tasks have more: see @zk_locked.'
        )
    return on_conflict == "skip"


def check_text(name: str, value: object, what: str) -> None:
    """Raise `TypeError` if an argument is not a text."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is {what}, not {value!r}.")


def check_seconds(name: str, value: object, what: str = "a number of seconds from 0") -> None:
    """Raise if an argument is not a number of seconds to wait."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is {what}, not {value!r}.")
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} is {what}, not {value!r}.")


def check_target(*, token: object, guid: object = "") -> None:
    """Raise if a token or guid has the wrong type. It would match no znode, so the hold would seem to be gone."""
    if not isinstance(token, int):
        raise TypeError(f"token is a number, as in ContenderInfo.token, not {token!r}.")
    check_text("guid", guid, "a text, as in ContenderInfo.guid")


def check_no_running_loop(method: str, instead: str) -> None:
    """Raise if a blocking call would stop the event loop."""
    if not loop_is_running():
        return
    raise SynchronousOnlyOperation(
        f"{method}() would block the event loop that runs in this thread, with all its tasks; use {instead}."
    )


def blocking(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that waits: in a coroutine it raises, and says how to call it there."""

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        check_no_running_loop(function.__name__, f"await sync_to_async({function.__name__})(...)")
        return function(*args, **kwargs)

    return checked


_CALLERS = {
    "threading",
    "asgiref.sync",
    "asgiref.current_thread_executor",
    "concurrent.futures.thread",
    "multiprocessing.pool",
    "anyio._backends._asyncio",
    "trio._threads",
}
"""The modules whose functions call what a thread is to run."""


def refuse_pool_call(frame: FrameType | None) -> None:
    """Raise `ZkLockError` if the caller's frame is that of a thread or a pool: its call would do nothing else."""
    while frame is not None and _module_of(frame) == "contextlib":  # an ExitStack
        frame = frame.f_back
    if frame is not None and _module_of(frame) in _CALLERS:
        raise ZkLockError(
            "This call of a thread or a thread pool would end as soon as it has the lock, and nothing would own it. In "
            'a coroutine, use "async with" or await lock.aacquire(). Elsewhere, put lock and work into one function.'
        )


def _module_of(frame: FrameType) -> object:
    return frame.f_globals.get("__name__")


def check_not_own_task(method: Callable[..., Any]) -> None:
    """Raise if the current task runs only `method`: the task would own the lock, and end at once."""
    task = asyncio.current_task(running_loop())
    code = getattr(method, "__code__", None)
    if task is not None and getattr(task.get_coro(), "cr_code", None) is code:
        raise ZkLockError(
            "aacquire() was made a task of its own, as asyncio.create_task() and gather() do, and asyncio.wait_for() "
            "before Python 3.12. That task would own the lock and end at once, so nothing could release it. Await it "
            "directly, with its own timeout or under asyncio.timeout()."
        )
