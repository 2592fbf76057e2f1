"""
How locks are acquired and released: one lock, or several as one.

Only the waiting differs between threads and coroutines. So what waits is a `Routine`: a thread drives it by `run`, with
a waiter that blocks the thread, and a coroutine awaits it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeAlias, TypeVar, cast

from django_zklock import clock
from django_zklock.exceptions import (
    LockLost,
    LockNotAcquired,
    LockNotHeld,
    LockTimeout,
    ZkLockError,
    ZooKeeperUnavailable,
)
from django_zklock.execution import abort, work
from django_zklock.execution.cleanup import CleanupOnError, Net, net_under
from django_zklock.execution.owner import Owner, current_owner
from django_zklock.execution.transactions import Transaction
from django_zklock.execution.waiters import Awaited, Routine, TaskWaiter, ThreadWaiter, run
from django_zklock.locks import table
from django_zklock.locks.acquisition import Acquisition
from django_zklock.locks.blocks import Block, Blocks, Part, await_all, release_all, wait_all
from django_zklock.locks.guard import Guard
from django_zklock.locks.held import HeldLock
from django_zklock.locks.queue_reader import is_queued
from django_zklock.locks.spec import LockSpec
from django_zklock.locks.validation import (
    check_no_open_transaction,
    check_no_running_loop,
    check_no_transaction,
    check_not_own_task,
    not_held,
    threading_timeout,
)
from django_zklock.queue.nodes import Kind
from django_zklock.zk import process

REPLY_TIMEOUT = 0.7
"""
Seconds that ZooKeeper's first reply may take beyond the timeout.

A call that does not wait for the lock still needs ZooKeeper's word whether it is free. The rest of the promised second
is for a process that gets no processor for a while.
"""
SHORTEST_WAIT = 0.001  # seconds; a caller that waits also waits for the last lock, however little time is left

logger = logging.getLogger("django_zklock.locks")

AnyHold = TypeVar("AnyHold")
_Ended: TypeAlias = "tuple[BaseException | None, list[Any]]"  # the error that goes on; what waits for confirmations


@dataclass(frozen=True, slots=True)
class Plan:
    """
    What one entry takes, in which order, and on which spec.

    The order is that of the keys, which all processes share. A caller that waits for a key has smaller ones only, and
    those ahead of it have that key or wait for it: no two callers can wait for each other.
    """

    specs: tuple[LockSpec, ...]
    timeout: float | None  # seconds, for all locks together
    atomic: tuple[str, ...]  # the databases on which the block is a transaction

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(spec.key for spec in self.specs)


class Deadline:
    """The time to wait for the locks of one entry."""

    __slots__ = ("_timeout", "began")

    def __init__(self, timeout: float | None) -> None:
        self._timeout = timeout
        self.began = clock.now()

    @property
    def waited(self) -> float:
        """Seconds since it began."""
        return clock.now() - self.began

    @property
    def is_over(self) -> bool:
        return self._timeout is not None and self.waited >= self._timeout

    def left(self) -> tuple[float | None, float]:
        """Return the seconds left to wait for one lock, and those that ZooKeeper's first answer may take beyond."""
        if not self._timeout:  # no limit, or no wait
            return self._timeout, REPLY_TIMEOUT
        left = self._timeout - self.waited
        return max(left, SHORTEST_WAIT), max(0.0, min(REPLY_TIMEOUT, REPLY_TIMEOUT + left))


class Entry:
    """What one call has taken so far, and the block that it has opened."""

    __slots__ = ("acquisitions", "block", "net", "owner")

    def __init__(self, owner: Owner | None = None) -> None:
        self.owner = owner or current_owner()
        self.acquisitions: list[Acquisition] = []  # in the order of the plan; the last one may be under way
        self.block: Block | None = None
        self.net: Net | None = None  # under the end of its block

    @property
    def held(self) -> tuple[HeldLock, ...]:
        return tuple([each.held for each in self.acquisitions if each.held is not None])

    @abort.shielded
    def undo(self) -> None:
        """Give back all that was taken, the last one first; doing it again changes nothing."""
        for acquisition in reversed(self.acquisitions):
            acquisition.undo()


class _Exit:
    """Makes `__exit__` a new object each time it is looked up, which `with` does before it enters; see `net_under`."""

    def __get__(self, lock: LockBase[Any] | None, cls: type[LockBase[Any]]) -> Any:
        if lock is None:
            return _leave  # for `ExitStack`, which looks it up on the class
        entry = Entry()
        end = functools.partial(lock._leave, entry)
        entry.net = net_under(end, functools.partial(lock._catch, entry))
        lock._expected[entry.owner.subject] = entry
        return end


@abort.shielded
def _leave(lock: LockBase[Any], *error: Any) -> None:
    lock._leave(Entry(), *error)


class LockBase(Generic[AnyHold]):
    """What one lock and several locks have in common."""

    def __init__(self) -> None:
        self._blocks = Blocks()
        self._expected: dict[object, Entry] = {}  # by owner: that of the `__exit__` that was looked up last

    def _plan(self) -> Plan:
        """Return what this call acquires. Raises `InvalidLockName`."""
        raise NotImplementedError

    def _view(self, plan: Plan, held: tuple[HeldLock, ...]) -> AnyHold:
        """Return the held locks as the caller sees them."""
        raise NotImplementedError

    def __bool__(self) -> NoReturn:
        raise TypeError('"if" locks nothing. Use "with zk_lock(...):", "if lock.acquire(timeout=0):" or "is not None".')

    def __reduce__(self) -> NoReturn:
        raise TypeError("A lock cannot be pickled or copied. Pass its name, and call zk_lock(name) there.")

    # --- as threading.Lock and RLock ------------------------------------------------------------------------------

    def acquire(self, blocking: bool = True, timeout: float = -1, **more: NoReturn) -> AnyHold | None:
        """
        Acquire, as `threading.RLock.acquire` does; return the hold, or None if it was not acquired in time.

        `timeout` is in seconds, -1 waits without limit; the option of that name is for `with`. Several locks are all
        acquired, or none. No work is aborted when a lock that was acquired this way is lost: call `hold.check()`, or
        use `with`. Raises `ZooKeeperUnavailable` when ZooKeeper does not answer. `more` is refused.
        """
        check_no_running_loop("acquire", '"async with" or await lock.aacquire()')
        entry = Entry()
        with CleanupOnError(entry.undo):
            return run(self._acquire(entry, ThreadWaiter, threading_timeout(blocking, timeout, more)))

    async def aacquire(self, blocking: bool = True, timeout: float = -1, **more: NoReturn) -> AnyHold | None:
        """
        Acquire as `acquire` does; waiting costs no thread.

        The calling task becomes the owner. So do not make this call a task of its own: that would own the lock and end.
        """
        check_not_own_task(self.aacquire)
        entry = Entry()
        with CleanupOnError(entry.undo):
            return await Awaited(self._acquire(entry, TaskWaiter, threading_timeout(blocking, timeout, more)))

    def _acquire(self, entry: Entry, waiter: type[Any], timeout: float | None) -> Routine[AnyHold | None]:
        plan = self._plan()
        check_no_transaction("acquire()" if waiter is ThreadWaiter else "async code", plan.specs[-1].key, plan.atomic)
        try:
            yield from self._take(entry, plan, timeout, waiter, keep=True)
        except LockNotAcquired:
            return None
        return self._begin(plan, entry.held)

    @abort.shielded
    def release(self) -> None:
        """
        Release, once for each time it was acquired.

        Waits at most a second for ZooKeeper's confirmation. If that does not come, the node is deleted as soon as
        ZooKeeper is back, or with the session. Raises `LockNotHeld` if the calling owner does not hold the lock, or
        one of several: then all stay held. An exception that strikes meanwhile, such as a soft time limit, does not
        prevent the release.
        """
        check_no_running_loop("release", "await lock.arelease()")
        parts: list[Part] = []
        with CleanupOnError(functools.partial(self._finish_release, parts)):
            parts += self._to_release()
            wait_all(release_all(parts, ThreadWaiter))

    @abort.shielded
    def _finish_release(self, parts: list[Part]) -> None:
        """Finish a release that an exception has interrupted."""
        with contextlib.suppress(LockNotHeld):
            release_all(parts or self._to_release())

    async def arelease(self) -> None:
        """Release as `release` does."""
        parts = self._to_release()
        with CleanupOnError(functools.partial(release_all, parts)):
            await await_all(release_all(parts, TaskWaiter))

    @abort.shielded
    def _to_release(self) -> list[Part]:
        """Return what the caller holds, in the order of the plan. Raises `LockNotHeld`."""
        parts = []
        for spec in self._plan().specs:
            held = _find(spec)
            if held is None or held.count <= 0:  # the part of a transaction is not released here
                raise not_held(spec.key)
            parts.append(Part(held, spec.release_on))
        return parts

    def locked(self) -> bool:
        """Return whether anybody holds the lock, or one of several, or waits for it. Raises `ZooKeeperUnavailable`."""
        check_no_running_loop("locked", "await lock.alocked()")
        return any(
            _find(spec) is not None or run(is_queued(spec.key, spec.parent, ThreadWaiter()))
            for spec in self._plan().specs
        )

    async def alocked(self) -> bool:
        """Return what `locked` returns."""
        for spec in self._plan().specs:
            if _find(spec) is not None or await Awaited(is_queued(spec.key, spec.parent, TaskWaiter())):
                return True
        return False

    def owned(self) -> bool:
        """Return whether the calling owner (asyncio task, greenlet or thread) holds the lock, or all of several."""
        return all((held := _find(spec)) is not None and held.count > 0 for spec in self._plan().specs)

    # --- with and async with --------------------------------------------------------------------------------------

    def __enter__(self) -> AnyHold:
        check_no_running_loop("acquire", '"async with" or await lock.aacquire()')
        entry = self._expected.pop(current_owner().subject, None)
        return run(self._enter_caught(ThreadWaiter) if entry is None else self._enter(entry, ThreadWaiter))

    def __aenter__(self) -> Awaited[AnyHold]:
        return Awaited(self._enter_caught(TaskWaiter))

    def _enter_caught(self, waiter: type[Any]) -> Routine[AnyHold]:
        """Enter in a coroutine or an `ExitStack`, where no net is under the end of the block."""
        entry = Entry()
        with CleanupOnError(functools.partial(self._drop, entry)):
            return (yield from self._enter(entry, waiter))

    def _enter(self, entry: Entry, waiter: type[Any]) -> Routine[AnyHold]:
        try:
            plan = self._plan()
            if waiter is not ThreadWaiter:
                check_no_transaction("async code", plan.specs[-1].key, plan.atomic)
            yield from self._take(entry, plan, plan.timeout, waiter)
            held = entry.held
            self._open(entry, plan, held)
            return self._begin(plan, held)
        except BaseException as error:  # noqa: BLE001 - raised again, or what it means
            try:
                if entry.block is not None:
                    _raise_unless(self._blocks.close(entry.block, error), error)
                raise
            finally:
                self._drop(entry)

    if TYPE_CHECKING:

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
        ) -> None: ...

    else:
        __exit__ = _Exit()

    @abort.shielded
    def _leave(
        self, entry: Entry, kind: type[BaseException] | None, error: BaseException | None, traceback: object
    ) -> None:
        """End the block of this entry, or else the innermost one, which `error` has ended."""
        end = self._end_caught if entry.block is None else self._end
        failed, waiters = end(entry, error, ThreadWaiter)
        entry.net = None  # nothing is left to give back
        try:
            wait_all(waiters)
            _raise_unless(failed, error)
        finally:
            del failed

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        failed, waiters = self._end_caught(Entry(), error, TaskWaiter)
        try:
            if kind is not GeneratorExit:  # a coroutine that is thrown away cannot wait any more
                await await_all(waiters)
            _raise_unless(failed, error)
        finally:
            del failed

    @abort.shielded
    def _end_caught(self, entry: Entry, error: BaseException | None, waiter: type[Any]) -> _Ended:
        """End the innermost block of the caller, under which there is no net."""
        with CleanupOnError(functools.partial(self._drop, entry, innermost=True)):
            entry.block = self._blocks.innermost()
            return self._end(entry, error, waiter)

    @abort.shielded
    def _end(self, entry: Entry, error: BaseException | None, waiter: type[Any]) -> _Ended:
        """End the block of this entry without waiting."""
        block = cast("Block", entry.block)
        failed = self._blocks.close(block, error)
        waiters = release_all(block.parts, waiter)
        block.over = True
        return failed, waiters

    @abort.shielded
    def _drop(self, entry: Entry, *, innermost: bool = False) -> None:
        """Give back all that an entry has taken, without waiting; doing it again changes nothing."""
        if innermost and entry.block is None:
            entry.block = self._blocks.innermost()
        if entry.block is not None:
            self._blocks.drop(entry.block)
        else:
            entry.undo()
        entry.net = None

    @abort.shielded
    def _catch(self, entry: Entry, end: object) -> None:
        """Give back all that an entry has taken, because an exception has destroyed the end of its block."""
        if entry.net is None:
            return
        if self._expected.get(entry.owner.subject) is entry:
            del self._expected[entry.owner.subject]  # no block was entered
        destroyed = entry.held if entry.block is not None and not entry.block.over else ()
        self._drop(entry)
        for held in destroyed:
            logger.warning(
                "an exception destroyed the end of a block under lock %r, which is released now%s",
                held.key,
                work.log_suffix(held.grant.about),
                extra=held.grant.log_fields(),
            )

    # --- small parts ----------------------------------------------------------------------------------------------

    def _take(
        self, entry: Entry, plan: Plan, timeout: float | None, waiter: Callable[[], Any], *, keep: bool = False
    ) -> Routine[None]:
        """
        Take all locks of a plan, within `timeout` seconds; `entry` has what was taken, also if this raises.

        If one of several is lost while the next is waited for, nothing was done under it: all are taken again.
        """
        owner = entry.owner
        deadline = Deadline(timeout)
        fresh = _fresh(plan, owner)
        while True:
            try:
                for spec in plan.specs:
                    acquisition = Acquisition(spec, owner)
                    entry.acquisitions.append(acquisition)
                    if acquisition.reenter(keep=keep):
                        continue
                    try:
                        _start(acquisition, entry, plan, deadline, waiter)
                        outcome = yield from acquisition.waiter.outcome(acquisition.timeout)
                        if outcome is None:
                            outcome = yield from acquisition.waiter.outcome(acquisition.extra_wait)
                        acquisition.conclude(outcome, keep=keep)
                    except BaseException as error:
                        acquisition.give_up(error)
                        raise
                for held in entry.held if len(plan.specs) > 1 else ():
                    held.grant.check()  # it may have been lost while the next one was waited for
                return
            except BaseException as error:
                entry.undo()
                lost_too_early = isinstance(error, LockLost) and error.lock in fresh  # with nothing done under it
                if not lost_too_early or deadline.is_over:
                    explained = _explained(error, plan, fresh, deadline)
                    if explained is not None:
                        raise explained from error
                    raise
                entry.acquisitions.clear()

    @abort.shielded
    def _open(self, entry: Entry, plan: Plan, held: tuple[HeldLock, ...]) -> None:
        parts = [
            Part(each, spec.release_on, Guard(each.grant, spec.policy, entry.owner))
            for each, spec in zip(held, plan.specs, strict=True)
        ]
        entry.block = Block(entry.owner, parts, Transaction(plan.atomic) if plan.atomic else None)
        self._blocks.open(entry.block)
        if entry.block.transaction is not None:
            entry.block.transaction.begin()

    def _begin(self, plan: Plan, held: tuple[HeldLock, ...]) -> AnyHold:
        """The work begins for which the locks were taken."""
        for each in held:
            each.grant.begun = True
        return self._view(plan, held)


def take(lock: LockBase[Any], entry: Entry, waiter: Callable[[], Any], *, waited: float = 0.0) -> Routine[None]:
    """
    Take the lock, or all of several, within the time of the option `timeout`; `entry` gets them, for its owner.

    `waited` are the seconds of that time that have passed before. A waiter's `on_queued` is called if it has to wait.

    It is for code that drives a routine itself, and that undoes the entry if this raises.
    """
    plan = lock._plan()
    timeout = plan.timeout if plan.timeout is None else max(plan.timeout - waited, 0.0)
    return lock._take(entry, plan, timeout, waiter)


def check_transactions(lock: LockBase[Any]) -> None:
    """Raise if a transaction is open in which this lock, or one of these, must not be acquired."""
    plan = lock._plan()
    for spec in plan.specs:
        _check_transactions(spec, plan)


def _check_transactions(spec: LockSpec, plan: Plan) -> None:
    check_no_open_transaction(spec, plan.atomic if spec is plan.specs[-1] else ())


def _find(spec: LockSpec) -> HeldLock | None:
    return table.held_locks.find(current_owner(), spec.key, reads=spec.kind is Kind.READ)


def _start(acquisition: Acquisition, entry: Entry, plan: Plan, deadline: Deadline, waiter: Callable[[], Any]) -> None:
    spec = acquisition.spec
    if waiter is ThreadWaiter:
        _check_transactions(spec, plan)
    timeout, reply_timeout = deadline.left()
    needed = [held.grant for held in entry.held] if len(plan.specs) > 1 else ()
    began = deadline.began if len(entry.acquisitions) == 1 else None  # the first one waits since the call
    acquisition.start(process.current(), waiter(), timeout, reply_timeout, needed, began=began)


def _fresh(plan: Plan, owner: Owner) -> Collection[str]:
    """Return the keys that this call takes first, if it takes several."""
    if len(plan.specs) == 1:
        return ()
    return frozenset(key for key in plan.keys if table.held_locks.find(owner, key) is None)


def _explained(error: BaseException, plan: Plan, fresh: Collection[str], deadline: Deadline) -> ZkLockError | None:
    """Return what the failure of one of several locks means for all, or None if it speaks for itself."""
    if isinstance(error, LockLost) and error.lock in fresh:
        return ZooKeeperUnavailable(f"{error} Not all locks were acquired yet.", lock=error.lock)
    if isinstance(error, LockTimeout) and len(plan.specs) > 1:
        names = ", ".join(map(repr, plan.keys))
        return LockTimeout(
            f"Not all of the locks {names} were free within {deadline.waited:.1f} s. {error}", lock=error.lock
        )
    return None


def _raise_unless(failed: BaseException | None, error: BaseException | None) -> None:
    """Raise the error that goes on at the end of a block, unless it is the one that has ended the block."""
    try:
        if failed is None or failed is error:
            return
        if error is not None and isinstance(failed, ZkLockError):
            raise failed from error
        raise failed
    finally:
        del failed, error
