"""
The context of a call of a decorated function: a view, a task, or plain code.

The context has defaults for the lock, and decides what the call returns if it does not get the lock or loses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, get_args

from django_zklock.conf.arguments import FunctionPolicy
from django_zklock.conf.options import LockOptions
from django_zklock.exceptions import LockLost, LockNotAcquired, ZkLockError

if TYPE_CHECKING:
    from django_zklock.locks.multi import Locks


class CallContext(Protocol):
    """The caller of a decorated function, with its defaults: a view, a task or plain code."""

    @property
    def kind(self) -> str:
        """The kind of function that is called, for error messages."""

    @property
    def policies(self) -> tuple[str, ...]:
        """The values of `on_conflict` that this kind of function can have."""

    @property
    def what(self) -> str:
        """The work, as others in the queue see it; never its arguments. Empty: the work that surrounds the call."""

    @property
    def about(self) -> Mapping[str, str]:
        """The work as key and value pairs, for programs that read the queue."""

    @property
    def timeout(self) -> float:
        """The default of the option `timeout`."""

    @property
    def on_conflict(self) -> str:
        """The default of the option `on_conflict`, of a call without the option `timeout`."""

    @property
    def on_timeout(self) -> str:
        """The default of the option `on_conflict`, of a call with the option `timeout`."""

    @property
    def waits(self) -> bool:
        """Whether the call may wait for its lock; False if it has done so elsewhere."""

    def before_acquire(self, lock: Locks, options: LockOptions) -> None:
        """Prepare for the lock. An error that this raises prevents the call. Not called for async functions."""

    def on_acquired(self) -> None:
        """Prepare for the work, under the lock. An error that this raises prevents the work."""

    def on_not_acquired(self, error: ZkLockError, lock: Locks, options: LockOptions) -> Any:
        """Return the result of a call that did not get its lock, or raise."""

    def on_lost(self, error: LockLost, options: LockOptions) -> Any:
        """Return the result of a call whose work was aborted because the lock was lost, or raise."""


class FunctionContext:
    """Plain code: it waits 10 s by default, then raises."""

    kind = "function"
    policies = get_args(FunctionPolicy)
    timeout = 10.0
    on_conflict = on_timeout = "raise"
    waits = True

    def __init__(self, what: str) -> None:
        self.what = what
        self.about: dict[str, str] = {}

    def before_acquire(self, lock: Locks, options: LockOptions) -> None: ...

    def on_acquired(self) -> None: ...

    def on_not_acquired(self, error: ZkLockError, lock: Locks, options: LockOptions) -> None:
        if options.on_conflict == "raise" or not isinstance(error, LockNotAcquired):
            raise error

    def on_lost(self, error: LockLost, options: LockOptions) -> None:
        raise error


# --- tasks --------------------------------------------------------------------------------------------------------


class TaskLibrary(Protocol):
    """A library whose workers call decorated functions: Celery. A process may import it at any time, or never."""

    def connect(self, *, unique: bool) -> None:
        """
        Connect to the library if the process has imported it; repeating it is harmless.

        With `unique`, some functions have the option `unique`, which needs the library.
        """

    def context_of(self, wrapper: Callable[..., Any]) -> CallContext | None:
        """Return the context of a call of the decorated function `wrapper`; None if no worker makes this call."""


_library: TaskLibrary | None = None  # written when Django starts, by one thread
_unique = False  # becomes True once


def register_library(library: TaskLibrary) -> None:
    """Support a task library. It is connected now if the process uses it, else as soon as a function is decorated."""
    global _library
    _library = library
    library.connect(unique=_unique)


def connect_library(*, unique: bool) -> None:
    """Connect to the task library. The decorator calls this for each function."""
    global _unique
    _unique = _unique or unique
    if _library is not None:
        _library.connect(unique=_unique)


def task_context(wrapper: Callable[..., Any]) -> CallContext | None:
    """Return the context of a call that a worker makes; None for any other call."""
    return None if _library is None else _library.context_of(wrapper)
