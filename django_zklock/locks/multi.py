"""
Knows several locks that are taken as one: all or none, in an order that all processes share.

Each is a `Lock` and stays one, with its own queue, options, hold and guard. What they have in common is said in a plan
(`plans`): the order, one deadline, one transaction inside them all; here it is carried out, and what is taken is let go
of when the next one is not to be had.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from django.core.exceptions import SynchronousOnlyOperation

from django_zklock import conf
from django_zklock.conf.options import UNSET, Atomic, Unset, given_options
from django_zklock.exceptions import (
    InvalidLockName,
    LockNotAcquired,
    LockNotHeld,
)
from django_zklock.execution import abort
from django_zklock.execution.transactions import Transaction
from django_zklock.execution.waiters import TaskWaiter, ThreadWaiter
from django_zklock.locks.entries import Ends, InsideAll, MultiEnd, MultiExit, await_all, leave, wait_all
from django_zklock.locks.hold import Hold
from django_zklock.locks.lock import Lock
from django_zklock.locks.multihold import MultiHold
from django_zklock.locks.plans import Countdown, Plan, stronger
from django_zklock.locks.protocol.grant import Grant
from django_zklock.locks.taking import Take, begun, give_back, keep_alive
from django_zklock.locks.terms import DEFAULT_TIMEOUT
from django_zklock.locks.validation import refuse_arguments, refuse_own_task, refuse_running_loop, threading_timeout


class MultiLock:
    """
    Several locks that one owner has together: all of them, or none.

    They are taken in the order of their keys, whatever order they are named in, and let go of in reverse. So those who
    take overlapping sets never wait for each other in a circle; nor with those who take one of them, but who takes
    another lock in a block of its own can, as ever. A lock that is named twice is taken once.

    Each is a lock as any other, with the options of its own entry in `ZKLOCK["LOCKS"]`, those given here over them.
    When one is lost, the work under all is stopped; if that is before the last one is taken, all are taken anew.

    Args:
        names: as of `Lock`; or a `Lock`, which keeps its own options. Of two for one key, a lock or a write lock is
            taken before a read lock or a permit, else the one that is named first.
        fields: fill all templates in.
        timeout: seconds to wait for all of them; 0 does not wait, None waits for ever. Default: that of
            `ZKLOCK["DEFAULTS"]`, else 10; those of the single locks do not count.
        atomic: the database, or databases, on which the block is a transaction, inside all the locks; those that the
            single locks say are added.

    The other arguments are those of `Lock`, for each lock that is given by its name.

    """

    def __init__(
        self,
        *names: str | Lock,
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
        if unknown:
            refuse_arguments("zk_locks", " ".join(name for name in names if isinstance(name, str)), (), unknown)
        if not names:
            raise InvalidLockName("no lock was named; name those that the work needs.")
        self._timeout = given_options(timeout=timeout).timeout
        self._atomic = given_options(atomic=atomic).atomic
        self._given = tuple(
            name
            if isinstance(name, Lock)
            else Lock(
                name,
                fields=fields,
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
                what=what,
                about=about,
            )
            for name in names
        )
        self._ends = Ends()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(repr(lock.name) for lock in self._given)}>"

    @property
    def locks(self) -> tuple[Lock, ...]:
        """The locks, each once, in the order in which they are taken. Raises `InvalidLockName`."""
        return self._plan().locks

    @property
    def keys(self) -> tuple[str, ...]:
        """Their keys, in that order. Raises `InvalidLockName`."""
        return self._plan().keys

    def _plan(self) -> Plan:
        chosen: dict[str, Lock] = {}
        names: dict[str, str] = {}
        for lock in self._given:
            key = names[lock.name] = lock.key
            chosen[key] = stronger(chosen[key], lock) if key in chosen else lock
        locks = tuple(chosen[key] for key in sorted(chosen))
        terms = tuple(lock._terms() for lock in locks)
        own = () if isinstance(self._atomic, Unset) else self._atomic
        atomic = tuple(dict.fromkeys((*own, *(alias for each in terms for alias in each.atomic))))
        timeout = conf.current().defaults.timeout if isinstance(self._timeout, Unset) else self._timeout
        return Plan(locks, terms, names, DEFAULT_TIMEOUT if isinstance(timeout, Unset) else timeout, atomic)

    # --- as threading.Lock and RLock --------------------------------------------------------------------------

    def acquire(self, blocking: bool = True, timeout: float = -1) -> MultiHold | None:
        """
        Take all the locks, as `Lock.acquire` takes one; return the holds, or None if one was not to be had.

        `timeout` is in seconds, for all of them; -1 waits for ever. Nothing stays taken unless all are. Raises
        `ZooKeeperUnavailable` when ZooKeeper does not answer.
        """
        countdown = Countdown(threading_timeout(blocking, timeout))
        takes: list[Take] = []
        try:
            plan = self._plan()
            plan.refuse_atomic("acquire()")
            fresh = plan.fresh()
            while True:
                try:
                    for lock, terms in plan.parts(countdown):
                        takes.append(Take())
                        lock._take(takes[-1], terms, terms.timeout, beside=_taken(takes))
                    return _kept(plan, takes)
                except BaseException as error:
                    undo(takes)
                    if isinstance(error, LockNotAcquired):
                        return None
                    if not plan.may_try_again(error, fresh, countdown):
                        raise
        except BaseException:
            undo(takes)
            raise

    async def aacquire(self, blocking: bool = True, timeout: float = -1) -> MultiHold | None:
        """Take all the locks as `acquire` does; they belong to the task that calls, and waiting costs no thread."""
        refuse_own_task(self.aacquire)
        countdown = Countdown(threading_timeout(blocking, timeout))
        takes: list[Take] = []
        try:
            plan = self._plan()
            plan.refuse_atomic("async code")
            fresh = plan.fresh()
            while True:
                try:
                    for lock, terms in plan.parts(countdown):
                        takes.append(Take())
                        await lock._atake(takes[-1], terms, terms.timeout, beside=_taken(takes))
                    return _kept(plan, takes)
                except BaseException as error:
                    undo(takes)
                    if isinstance(error, LockNotAcquired):
                        return None
                    if not plan.may_try_again(error, fresh, countdown):
                        raise
        except BaseException:
            undo(takes)
            raise

    @abort.shielded
    def release(self) -> None:
        """
        Let go of all the locks, once for each time they were taken, the last one first.

        Waits at most a second for ZooKeeper's word on all of them, and goes on in the background as `Lock.release`.
        Raises `LockNotHeld` if the calling owner does not hold them all; those that it holds stay held then.
        """
        held: list[_Held] = []
        try:
            refuse_running_loop("release", "await lock.arelease()")
            held += self._held()
            waiters: list[ThreadWaiter[bool]] = []
            for one in held:
                waiters.append(ThreadWaiter())
                one.lock._release(one.hold, one.count, one.lock._terms().release, waiters[-1].set)
            wait_all(waiters)
        except (LockNotHeld, SynchronousOnlyOperation):
            raise
        except BaseException:
            for one in held or self._held():
                give_back(one.hold, one.count, one.lock._terms().release)
            raise

    async def arelease(self) -> None:
        """Let go of all the locks as `release` does."""
        waiters: list[TaskWaiter[bool]] = []
        for one in self._held():
            waiters.append(TaskWaiter())
            one.lock._release(one.hold, one.count, "block", waiters[-1].set)
        await await_all(waiters)

    def locked(self) -> bool:
        """Tell whether anybody holds any of the locks or waits for one now. Raises `ZooKeeperUnavailable`."""
        return any(lock.locked() for lock in self._plan().locks)

    async def alocked(self) -> bool:
        """Tell whether anybody holds any of the locks or waits for one now."""
        for lock in self._plan().locks:
            if await lock.alocked():
                return True
        return False

    def _held(self) -> list[_Held]:
        """Return what the caller holds, and how often it will hold it after a release; the last one first."""
        held = [_Held(lock, hold, hold._count - 1) for lock in self._plan().locks for hold in [lock._held()]]
        return held[::-1]

    # --- with and async with ------------------------------------------------------------------------------------

    def __enter__(self) -> MultiHold:
        end = self._ends.begin(self)
        plan = self._plan()
        countdown, fresh = Countdown(plan.timeout), plan.fresh()
        while True:
            try:
                for lock, terms in plan.parts(countdown):
                    end.begin_block(lock)
                    lock._enter(terms, _transaction(plan, end), end.grants)
                return self._opened(plan, end)
            except BaseException as error:  # noqa: BLE001 - raised again unless what was lost can be taken anew
                failed = self._back_out(plan, end, error, fresh, countdown)
                try:
                    if failed is error:
                        raise
                    if failed is not None:
                        raise failed from error
                finally:
                    del failed  # which has this frame

    if TYPE_CHECKING:

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
        ) -> None: ...

    else:
        __exit__ = MultiExit()

    @abort.shielded
    def _leave(self, end: MultiEnd, error: BaseException | None) -> None:
        """End a block, which `error` has ended; what `with` calls."""
        failed, waiters = leave(end, error, ThreadWaiter[bool])
        try:
            self._ends.forget(end)
            wait_all(waiters)
            if failed is not None and failed is not error:
                raise failed
        finally:
            del failed

    async def __aenter__(self) -> MultiHold:
        end = self._ends.begin(self)
        plan = self._plan()
        plan.refuse_atomic("async code")
        countdown, fresh = Countdown(plan.timeout), plan.fresh()
        while True:
            try:
                for lock, terms in plan.parts(countdown):
                    end.begin_block(lock)
                    await lock._aenter(terms, end.grants)
                return self._opened(plan, end)
            except BaseException as error:  # noqa: BLE001 - raised again unless what was lost can be taken anew
                failed = self._back_out(plan, end, error, fresh, countdown)
                try:
                    if failed is error:
                        raise
                    if failed is not None:
                        raise failed from error
                finally:
                    del failed

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        end = self._ends.innermost()
        failed, waiters = leave(end, error, TaskWaiter[bool])
        try:
            self._ends.forget(end)
            if kind is not GeneratorExit:  # a coroutine that is thrown away cannot wait any more
                await await_all(waiters)
            if failed is not None and failed is not error:
                raise failed
        finally:
            del failed

    @abort.shielded
    def _opened(self, plan: Plan, end: MultiEnd) -> MultiHold:
        hold = plan.hold(block.block.hold for block in end.blocks if block.block is not None)
        self._ends.opened(end)
        for one in hold:
            begun(one)
        return hold

    @abort.shielded
    def _back_out(
        self, plan: Plan, end: MultiEnd, error: BaseException, fresh: frozenset[str], countdown: Countdown
    ) -> BaseException | None:
        """Let go of what was taken; return what is to be raised, or None if all is to be tried again."""
        failed, _ = leave(end, error, ThreadWaiter[bool])
        self._ends.forget(end)
        if plan.may_try_again(failed or error, fresh, countdown):
            return None
        return plan.explained(failed or error, fresh, countdown)


@dataclass(frozen=True, slots=True)
class _Held:
    """One of several locks that the caller holds."""

    lock: Lock
    hold: Hold
    count: int  # after it is let go of once


def _transaction(plan: Plan, end: MultiEnd) -> Transaction | None:
    """Return the part in the common transactions of the block that is about to be opened."""
    if not plan.atomic:
        return None
    outer = [(block.block.hold, block.block.guard) for block in end.blocks if block.block is not None]
    # Of the others, too, nobody is told of a loss after COMMIT.
    return InsideAll(plan.atomic, outer) if len(end.blocks) == len(plan.locks) else Transaction(())


def _taken(takes: list[Take]) -> list[Grant]:
    return [take.hold._grant for take in takes if take.hold is not None]


def _kept(plan: Plan, takes: list[Take]) -> MultiHold:
    """Return the holds of all, which no block has from now on; not before: a list would keep what is torn off here."""
    hold = plan.hold(take.hold for take in takes if take.hold is not None)
    for one in hold:
        keep_alive(one)
        begun(one)
    return hold


@abort.shielded
def undo(takes: list[Take]) -> None:
    """Give back all that was taken, the last one first; doing it again changes nothing."""
    try:
        for take in reversed(takes):
            take.undo()
    except BaseException:
        for take in reversed(takes):
            take.undo()
        raise
    takes.clear()


zk_locks = MultiLock  # the name that reads well in `with zk_locks(...)`

Locks: TypeAlias = "Lock | MultiLock"


def locks_of(lock: Locks) -> tuple[Lock, ...]:
    """Return the single locks that a call takes, in order."""
    return lock.locks if isinstance(lock, MultiLock) else (lock,)


def keys_of(lock: Locks) -> tuple[str, ...]:
    """Return their keys."""
    return lock.keys if isinstance(lock, MultiLock) else (lock.key,)
