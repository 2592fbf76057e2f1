"""The lock as its users take it: `with`, `async with`, and the methods of `threading.RLock`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from django_zklock import conf
from django_zklock.conf.options import UNSET, Atomic, LockOptions, Unset, given_options
from django_zklock.locks.base import LockBase, Plan
from django_zklock.locks.guard import Receipt
from django_zklock.locks.held import HeldLock
from django_zklock.locks.hold import Hold
from django_zklock.locks.terms import Terms, resolve, resolve_options
from django_zklock.locks.validation import refuse_arguments

if TYPE_CHECKING:
    from typing_extensions import Self

_NOTHING: Mapping[str, Any] = MappingProxyType({})  # shared, as there may be thousands of locks without fields


class Lock(LockBase[Hold]):
    """
    A lock that one owner at a time has, in all processes on all machines that use the same ZooKeeper.

    `name` is one of `ZKLOCK["LOCKS"]`, or else a path template itself; `fields` fills the template in. The owner is the
    current asyncio task, else greenlet, else thread. One object may be used by any number of owners, and two objects
    of the same key are the same lock. Nothing is sent before it is first acquired. `zk_lock` is another name for it.

    To be used with `with` or `async with`, or by the methods of `threading.RLock`. The block raises `LockBusy` (for
    `timeout=0`) or `LockTimeout` when somebody else has the lock, `ZooKeeperUnavailable` when nobody can tell, and
    `LockLost` when the lock was lost under the work.

    Options that are not given come from the lock's entry in `ZKLOCK["LOCKS"]`, then from `ZKLOCK["DEFAULTS"]`.

    Args:
        timeout: seconds to wait for the lock in `with`; 0 does not wait, None waits for ever. Default 10.
        abort_on: when the block's work is stopped: "suspended" (default), "lost" or "never".
        grace: seconds that a suspended connection may last before the work is stopped, never past the lease. Default 0.
        reentrant: whether its owner may take it again (default). If not, that raises `LockBusy` at once.
        atomic: the database, or databases, on which the block is a transaction: begun when the lock is held, committed
            before it is let go, if it is still held then. True is the default database. Not in async code.
        release: when the lock is let go if a transaction is open round it: "on_commit", when that has ended, by COMMIT
            or ROLLBACK; or "block", with the block. If not given, taking it there raises `LockInTransaction`.
        kind: "lock" (default), or a side of a read-write lock: "read", which shares it with other readers, or
            "write". All are first come, first served, and keep each other out on the same path.
        limit: how many may hold it at a time: a semaphore, with a permit for each. `operations.set_limit` changes
            that for all processes, whatever they say here. Default None: no semaphore.
        compat: "curator" or "kazoo": the znodes get the names of that client's locks, so that its processes share
            the queue. None (default): only processes of this package do. Not for semaphores.
        max_hold: seconds after which the work is stopped and the hold is lost, as if the connection were. Default
            None.
        warn_after: seconds of holding after which a warning is logged and `lock_held_long` sent. Default None.
        min_hold: seconds from the grant during which nobody else gets the lock, even if the work is done before
            and the process has ended. For jobs that several hosts start at about the same time. Default 0.
        max_waiters: how many callers may wait for the lock. One more raises `LockBusy` at once, and nothing is written.
            Counted are the waiters in ZooKeeper's queue and all of this process. Default None, any number.
        what: the work it is for, shown to others in the queue.
        about: the same, item by item, for programs that read the queue: a few short texts, never arguments.

    """

    def __init__(
        self,
        name: str,
        *more: NoReturn,
        fields: Mapping[str, object] | None = None,
        timeout: float | timedelta | Unset | None = UNSET,
        abort_on: str | Unset = UNSET,
        grace: float | timedelta | Unset = UNSET,
        reentrant: bool | Unset = UNSET,
        atomic: Atomic | Unset = UNSET,
        release: str | Unset = UNSET,
        kind: str | Unset = UNSET,
        limit: int | Unset | None = UNSET,
        compat: str | Unset | None = UNSET,
        max_hold: float | timedelta | Unset | None = UNSET,
        warn_after: float | timedelta | Unset | None = UNSET,
        min_hold: float | timedelta | Unset = UNSET,
        max_waiters: int | Unset | None = UNSET,
        what: str = "",
        about: Mapping[str, str] | None = None,
        **unknown: NoReturn,
    ) -> None:
        if more or unknown:
            refuse_arguments("zk_lock", name, more, unknown)
        options = given_options(
            timeout=timeout,
            abort_on=abort_on,
            grace=grace,
            reentrant=reentrant,
            atomic=atomic,
            release=release,
            kind=kind,
            limit=limit,
            compat=compat,
            max_hold=max_hold,
            warn_after=warn_after,
            min_hold=min_hold,
            max_waiters=max_waiters,
        )
        self._set(name, options, dict(fields) if fields else _NOTHING, what, dict(about) if about else _NOTHING)

    @classmethod
    def with_options(
        cls, name: str, options: LockOptions, *, fields: Mapping[str, object], what: str, about: Mapping[str, str]
    ) -> Self:
        """Return a lock with options from `resolve_options`, which are neither checked nor completed again."""
        lock = cls.__new__(cls)
        lock._set(name, options, fields, what, about, complete=True)
        return lock

    def _set(
        self,
        name: str,
        options: LockOptions,
        fields: Mapping[str, object],
        what: str,
        about: Mapping[str, str],
        *,
        complete: bool = False,
    ) -> None:
        self.name = name
        self._options = options
        self._complete = complete  # with the options of the settings
        self._fields = fields
        self._what = what
        self._about = about
        self._resolved: tuple[conf.Config, Plan] | None = None  # replaced whole; equal whoever makes it
        super().__init__()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    @property
    def key(self) -> str:
        """The key, with all fields filled in and escaped. Raises `InvalidLockName`."""
        return self.terms.key

    @property
    def terms(self) -> Terms:
        """The options of this lock, with the settings and all defaults applied. Raises `InvalidLockName`."""
        return self._plan().terms[0]

    def _plan(self) -> Plan:
        config = conf.current()
        if self._resolved is None or self._resolved[0] is not config:
            options = self._options if self._complete else resolve_options(config, self.name, self._options)
            terms = resolve(config, self.name, self._fields, options, what=self._what, about=self._about)
            self._resolved = config, Plan((terms,), terms.timeout, terms.atomic, {self.name: terms.key})
        return self._resolved[1]

    def _view(self, plan: Plan, held: tuple[HeldLock, ...]) -> Hold:
        return held[0].hold


zk_lock = Lock  # the name that reads well in `with zk_lock(...)`

__all__ = ["Hold", "Lock", "Receipt", "zk_lock"]
