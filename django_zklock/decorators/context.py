"""
The context of a call of a decorated function: a task, or any other code.

The context has the lock of the call and defaults for its options. It decides what the call returns without the
lock, or after its loss. Django imports this module at its start, so it imports neither kazoo nor a library for tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, get_args

from django_zklock.conf.arguments import FunctionPolicy
from django_zklock.conf.options import NOT_GIVEN, LockOptions
from django_zklock.core.locks.spec import DEFAULT_TIMEOUT
from django_zklock.exceptions import LockLost, LockNotAcquired, ZkLockError, ZooKeeperUnavailable

if TYPE_CHECKING:
    from django_zklock.locks.multi import Locks


class AcquireAgain(Exception):
    """Raised by a context: the decorator acquires the lock again after a delay, the argument, in seconds."""


class FunctionContext:
    """The context of all code but tasks: it raises if it does not get the lock. Other contexts override it."""

    kind = "function"
    """The kind of function that is called, for error messages."""
    policies: tuple[str, ...] = get_args(FunctionPolicy)
    """The values of `on_conflict` that this kind of function can have."""
    timeout: float | None = DEFAULT_TIMEOUT
    """The default of the option `timeout`."""
    on_conflict = "raise"
    """The default of the option `on_conflict`, of a call without the option `timeout`."""
    on_conflict_with_timeout = "raise"
    """The default of the option `on_conflict`, of a call with the option `timeout`."""
    waits = True
    """Whether the call may wait for its lock; False if it has done so elsewhere."""

    def __init__(self, what: str, about: dict[str, str]) -> None:
        self.what = what
        """The work, as others in the queue see it; never its arguments."""
        self.about = about
        """The work as key and value pairs, for programs that read the queue."""
        self.options: LockOptions = NOT_GIVEN
        """The options of the call, completed. `LockedFunction.context_of` sets them and the lock."""
        self.lock: Locks
        self.is_again = False
        """Whether the call acquires its lock again. It waits for `timeout` then, unless it may be skipped."""
        self._has_begun = False

    def again(self, error: AcquireAgain) -> None:
        """Prepare for acquiring the lock again, without a timeout. Raise the error if an outer lock must do that."""
        self.is_again, self.timeout, self._has_begun = True, None, False

    def before_acquire(self) -> None:
        """Prepare for the lock. An error that this raises prevents the call. Not called for async functions."""

    def begin(self) -> None:
        """Begin the work, under the lock."""
        self.on_acquired()
        self._has_begun = True

    def on_acquired(self) -> None:
        """Prepare for the work, under the lock. An error that this raises prevents the work."""

    def on_released(self) -> None:
        """Prepare for what is told after the work, when its release is on its way. Not called for async functions."""

    def on_error(self, error: LockNotAcquired | ZooKeeperUnavailable | LockLost) -> Any:
        """Return the result of a call that failed by its own lock. Raise the error if it comes from inside the work."""
        is_own = not self._has_begun
        if isinstance(error, LockLost):
            is_own = any(spec.key == error.lock for spec in self.lock.specs)
        if not is_own:
            raise error
        return self.without_lock(error)

    def without_lock(self, error: ZkLockError) -> Any:
        """Return the result of a call that did not get its lock, or has lost it by `LockLost`; or raise."""
        if self.options["on_conflict"] == "raise" or not isinstance(error, LockNotAcquired):
            raise error
        return self.options.get("skip_value")


# --- tasks --------------------------------------------------------------------------------------------------------


class TaskLibrary:
    """
    A library whose workers call decorated functions. This one has no workers; `contrib.celery` overrides its methods.

    A process may import Celery at any time, or never.
    """

    def connect(self, *, unique: bool) -> None:
        """
        Connect to the library if the process has imported it; repeating it is harmless.

        With `unique`, some functions have the option `unique`, which needs the library.
        """

    def context_of(self, wrapper: Callable[..., Any]) -> FunctionContext | None:
        """Return the context of a call of the decorated function `wrapper`; None if no worker makes this call."""
        return None

    def functions(self) -> Iterable[Callable[..., Any]]:
        """Return the functions that calls of the library's tasks go through."""
        return ()


CELERY: Final = "django_zklock.contrib.celery"
NONE: Final = TaskLibrary()
library = NONE
"""The library of this process. `register_library` writes it."""
_unique = False  # True as soon as a function has the option `unique`


def register_library(registered: TaskLibrary) -> None:
    """Support a task library. It is connected now if the process uses it, else as soon as a function is decorated."""
    global library
    library = registered
    library.connect(unique=_unique)


def connect_library(*, unique: bool) -> None:
    """
    Connect to the task library. The decorator calls this for each function.

    A unique task does not wait for Django to start: a program without `django.setup()` would send all duplicates.
    """
    global _unique
    _unique = _unique or unique
    if unique and library is NONE:
        import_module(CELERY).register()  # a higher layer
    library.connect(unique=_unique)
