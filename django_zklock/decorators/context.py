"""
The context of a call of a decorated function: a task, or any other code.

The context has the lock of the call and defaults for its options. It decides what the call returns without the
lock, or after its loss. The checks import this module, so it imports neither kazoo nor a library for tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

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
