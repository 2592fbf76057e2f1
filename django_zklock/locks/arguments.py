"""The errors of wrong calls: of wrong arguments, and from places that cannot own a lock. They say what to do."""

from __future__ import annotations

import asyncio
import difflib
import functools
import math
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from types import FrameType
from typing import Any, Final, NoReturn, ParamSpec, SupportsFloat, TypeVar

from django.core.exceptions import SynchronousOnlyOperation

from django_zklock.conf.arguments import UNSET, LockArguments, LockedOptions, Unset
from django_zklock.core.execution.owner import loop_is_running, running_loop
from django_zklock.exceptions import ZkLockError

P = ParamSpec("P")
R = TypeVar("R")


def threading_timeout(blocking: bool, timeout: float | Unset, more: Mapping[str, object]) -> float | Unset | None:
    """
    Return the seconds to wait (None: no limit), from arguments of `threading.Lock.acquire`. Raises its errors.

    `UNSET` means that the option of the lock decides.
    """
    if more:
        raise TypeError(f"acquire() has no argument {next(iter(more))!r}: the seconds to wait are given as timeout.")
    if not blocking:
        if timeout not in (UNSET, -1):
            raise ValueError("can't specify a timeout for a non-blocking call")
        return 0.0
    if timeout is UNSET:
        return UNSET
    text = f"timeout is a number of seconds here, or -1, to wait for ever; not {timeout!r}."
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float, SupportsFloat)):
        raise TypeError(text)
    seconds = float(timeout)
    if seconds == -1:
        return None
    if not seconds >= 0:  # also NaN
        raise ValueError(text)
    if seconds > threading.TIMEOUT_MAX:
        raise OverflowError(text)
    return seconds


def _foreign(hints: Mapping[str, str]) -> dict[str, str]:
    return {name: hint for names, hint in hints.items() for name in names.split()}


_FOREIGN_OPTIONS: Final = _foreign(
    {
        "expire expires expiry ttl lease lock_timeout lock_ttl auto_renewal auto_extend": (
            "a lock has no expiry: it is held until it is released or its process dies. To bound the time, use max_hold"
        ),
        "blocking_timeout acquire_timeout wait wait_timeout max_wait lock_wait": (
            "the seconds to wait for the lock are given as timeout"
        ),
        "blocking block nowait no_wait non_blocking": "for a try without waiting, use timeout=0",
        "sleep interval poll check_interval retry_delay": "waiters are woken by ZooKeeper, so there is nothing to set",
        "retry retries retry_times": 'for a Celery task, @zk_locked takes on_conflict="retry" and max_conflicts=3',
        "skip_locked skip skip_if_locked side_effect": 'to do without the lock if it is busy, use on_conflict="skip"',
        "shared read exclusive": 'for a lock that readers share, use kind="read", and kind="write" for the others',
        "xact transaction": "for a transaction inside the lock, use atomic=True; to hold it until COMMIT, release_on",
        "using database alias": "the lock is not in a database. For a transaction on one, use atomic with its alias",
        "thread_local": "any thread may release the hold that acquire() returns",
        "once": 'to send a task once, use unique="until_start" of @zk_locked',
        "permits max_leases size": "use zk_semaphore() with a limit",
    }
)
"""Names of options in other packages, and what to use here."""


def check_arguments(
    call: str, name: object, more: Sequence[object], options: Mapping[str, object], allowed: type
) -> None:
    """Raise `TypeError` for arguments that `call` does not have."""
    if more or not options.keys() <= allowed.__annotations__.keys():
        refuse_arguments(call, name, more, options, allowed)


def refuse_arguments(
    call: str, name: object, more: Sequence[object], options: Mapping[str, object], allowed: type
) -> NoReturn:
    """Raise `TypeError` for arguments that `call` does not have, and say what to write instead."""
    names = allowed.__annotations__
    if more:
        if isinstance(more[0], Mapping) and "fields" in names:
            meant = f"fields={more[0]!r}"
        elif "timeout" in names:
            meant = f"timeout={more[0] if isinstance(more[0], (int, float, timedelta)) else 5!r}"
        else:
            meant = f"{next(iter(names))}=..."
        raise TypeError(f"{call}() takes one positional argument, the name of the lock; write the rest as {meant}.")
    option = next(option for option in options if option not in names)
    hint = _hint_at(option, names, is_field=isinstance(name, str) and f"{{{option}" in name)
    raise TypeError(f"{call}() has no option {option!r}: {hint.rstrip('.')}{'' if hint.endswith('?') else '.'}")


def _hint_at(option: str, names: Mapping[str, object], *, is_field: bool) -> str:
    """Return what to write instead of an option that a call with these ones does not have."""
    if is_field or option == "fields":
        if "fields" in names:
            return f'a field of the name is passed as fields={{"{option}": ...}}'
        return "the fields of the name are filled with the arguments of the decorated function"
    if option in _FOREIGN_OPTIONS:
        return _FOREIGN_OPTIONS[option]
    if option in ("kind", "limit"):
        return "use zk_lock(), zk_read(), zk_write() or zk_semaphore() for another kind of lock"
    if option in LockArguments.__annotations__:
        return "it is an option of zk_lock()"
    if option in LockedOptions.__annotations__:
        return "it is an option of @zk_locked, for calls of the decorated function"
    close = difflib.get_close_matches(option, names, n=1)
    return f"did you mean {close[0]!r}?" if close else _hint_at(option, names, is_field=True)


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


def mapping(name: str, value: object) -> dict[Any, Any]:
    """Return a copy of an argument that must be a mapping, so that the caller cannot change it later."""
    if not isinstance(value, Mapping):
        raise TypeError(f'{name} is a dict such as {{"name": value}}, not {value!r}.')
    return dict(value)


def check_target(*, token: object, guid: object = "") -> None:
    """Raise if a token or guid has the wrong type. It would match no znode, so the hold would seem to be gone."""
    if not isinstance(token, int):
        raise TypeError(f"token is a number, as in ContenderInfo.token, not {token!r}.")
    check_text("guid", guid, "a text, as in ContenderInfo.guid")


def check_no_running_loop(method: str, instead: str) -> None:
    """Raise if a blocking call would stop the event loop."""
    trio = sys.modules.get("trio.lowlevel")
    if trio is not None and getattr(trio, "in_trio_run", bool)():  # before trio 0.29, that is unknown
        instead = "a sync function with it, and await trio.to_thread.run_sync(function)"
    elif not loop_is_running():
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
