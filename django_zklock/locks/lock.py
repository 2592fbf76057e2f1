"""Knows the lock as its users take it: `with`, `async with`, and the methods of `threading.Lock`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from django.core.exceptions import SynchronousOnlyOperation

from django_zklock import conf
from django_zklock.conf.options import UNSET, Atomic, Unset, given_options
from django_zklock.exceptions import LockNotAcquired, LockNotHeld, ZkLockError
from django_zklock.execution import abort
from django_zklock.execution.owner import current_owner
from django_zklock.execution.transactions import Transaction
from django_zklock.execution.waiters import TaskWaiter, ThreadWaiter
from django_zklock.locks import hold as holds
from django_zklock.locks.attempt import Attempt
from django_zklock.locks.blocks import Block, Blocks, Exit
from django_zklock.locks.guard import Guard, Receipt
from django_zklock.locks.hold import Hold
from django_zklock.locks.looking import alook, look
from django_zklock.locks.protocol.contender import Outcome
from django_zklock.locks.protocol.grant import Grant
from django_zklock.locks.taking import (
    RELEASE_PATIENCE,
    Take,
    begun,
    give_back,
    hand_over,
    let_go,
    listed,
    report_contention,
    report_waiting,
    take_again,
)
from django_zklock.locks.terms import Terms, resolve
from django_zklock.locks.validation import (
    not_held,
    refuse_arguments,
    refuse_atomic,
    refuse_open_transaction,
    refuse_own_task,
    refuse_running_loop,
    threading_timeout,
)
from django_zklock.queue.nodes import Kind
from django_zklock.zk import process

Beside: TypeAlias = Sequence[Grant] | None
"""The grants of the locks that were taken before one of several; None where it is alone."""

_NOTHING: Mapping[str, Any] = MappingProxyType({})  # shared, as there may be thousands of locks without fields


class Lock:
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
        self.name = name
        self._fields = dict(fields) if fields else _NOTHING
        self._options = given_options(
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
        self._what = what
        self._about = dict(about) if about else _NOTHING
        self._resolved: tuple[conf.Config, Terms] | None = None  # replaced whole; equal whoever makes it
        self._blocks = Blocks()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    @property
    def key(self) -> str:
        """The key, with all fields filled in and escaped. Raises `InvalidLockName`."""
        return self._terms().key

    def _terms(self) -> Terms:
        config = conf.current()
        if self._resolved is None or self._resolved[0] is not config:
            self._resolved = (
                config,
                resolve(config, self.name, self._fields, self._options, what=self._what, about=self._about),
            )
        return self._resolved[1]

    # --- as threading.Lock and RLock --------------------------------------------------------------------------

    def acquire(self, blocking: bool = True, timeout: float = -1) -> Hold | None:
        """
        Take the lock, as `threading.RLock.acquire` does; return the hold, or None if it was not to be had.

        `timeout` is in seconds, -1 waits for ever; the option of that name is for `with`. No work is aborted when a
        lock that was acquired this way is lost: ask `hold.check()`, or use `with`. Raises `ZooKeeperUnavailable` when
        ZooKeeper does not answer: then nobody knows who has the lock.
        """
        wait = threading_timeout(blocking, timeout)
        take = Take()
        try:
            terms = self._terms()
            refuse_atomic("acquire()", terms)
            return begun(self._take(take, terms, wait, keep=True))
        except LockNotAcquired:
            return None
        except BaseException:
            take.undo()
            raise

    async def aacquire(self, blocking: bool = True, timeout: float = -1) -> Hold | None:
        """
        Take the lock as `acquire` does; waiting costs no thread.

        It belongs to the task that calls. So it may not be made a task of its own, which would own the lock and end.
        """
        refuse_own_task(self.aacquire)
        wait = threading_timeout(blocking, timeout)
        take = Take()
        try:
            return begun(await self._atake(take, self._terms(), wait, keep=True))
        except LockNotAcquired:
            return None
        except BaseException:
            take.undo()
            raise

    @abort.shielded
    def release(self) -> None:
        """
        Let go of the lock, once for each time it was taken.

        Waits at most a second for ZooKeeper's word; if that does not come, the node is deleted as soon as ZooKeeper is
        back, or goes with the session. Raises `LockNotHeld` if the calling owner does not hold the lock. An exception
        that strikes from outside meanwhile, such as a soft time limit, does not keep it from letting go.
        """
        hold: Hold | None = None
        count: int | None = None
        try:
            refuse_running_loop("release", "await lock.arelease()")
            hold = self._held()
            count = hold._count - 1
            hold._acquired -= 1
            self._release(hold, count, self._terms().release)
        except (LockNotHeld, SynchronousOnlyOperation):
            raise
        except BaseException:
            hold = hold or self._held()
            give_back(hold, hold._count - 1 if count is None else count, self._terms().release)
            raise

    async def arelease(self) -> None:
        """Let go of the lock as `release` does."""
        hold = self._held()
        hold._acquired -= 1
        await self._arelease(hold, hold._count - 1)

    def locked(self) -> bool:
        """Tell whether anybody holds the lock or waits for it now. Raises `ZooKeeperUnavailable`."""
        refuse_running_loop("locked", "await lock.alocked()")
        if self._find() is not None:
            return True
        return look(self._terms())

    async def alocked(self) -> bool:
        """Tell whether anybody holds the lock or waits for it now."""
        if self._find() is not None:
            return True
        return await alook(self._terms())

    # --- with and async with ------------------------------------------------------------------------------------

    def __enter__(self) -> Hold:
        return self._enter()

    def _enter(self, terms: Terms | None = None, transaction: Transaction | None = None, beside: Beside = None) -> Hold:
        """Begin a block, which may be part of one of several locks, `beside` others, on terms other than its own."""
        take = Take()
        try:
            terms = terms or self._terms()
            hold = self._open(take, self._take(take, terms, terms.timeout, beside=beside), terms, transaction)
            return begun(hold) if beside is None else hold
        except BaseException as error:
            lost = self._back_out(take, error)
            if lost is not None:
                raise lost from error
            raise

    if TYPE_CHECKING:

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
        ) -> None: ...

    else:
        __exit__ = Exit()

    @abort.shielded
    def _leave(
        self, error: BaseException | None, block: Block | None = None, left: Callable[[bool], object] | None = None
    ) -> None:
        """
        End a block, the innermost one of the caller if none is given, which `error` has ended; what `with` calls.

        If there is `left`, this does not wait for ZooKeeper's word, and has it called instead.
        """
        count: int | None = None
        lost: ZkLockError | None = None
        try:
            block = block or self._blocks.innermost()
            count = block.hold._count - 1
            try:
                lost = self._blocks.close(block, error)
            finally:
                self._release(block.hold, count, block.release, left)
        except BaseException:
            self._close_anyway(block, count)
            raise
        if lost is not None:
            raise lost from error

    def __aenter__(self) -> Coroutine[Any, Any, Hold]:
        return self._aenter()

    async def _aenter(self, terms: Terms | None = None, beside: Beside = None) -> Hold:
        take = Take()
        try:
            terms = terms or self._terms()
            hold = self._open(take, await self._atake(take, terms, terms.timeout, beside=beside), terms)
            return begun(hold) if beside is None else hold
        except BaseException as error:
            lost = self._back_out(take, error)
            if lost is not None:
                raise lost from error
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        block: Block | None = None
        count: int | None = None
        lost: ZkLockError | None = None
        try:
            block = self._blocks.innermost()
            count = block.hold._count - 1
            try:
                lost = self._blocks.close(block, error)
            finally:
                # A coroutine that is thrown away cannot wait any more.
                await self._arelease(block.hold, count, wait=kind is not GeneratorExit)
        except BaseException:
            self._close_anyway(block, count)
            raise
        if lost is not None:
            raise lost from error

    @abort.shielded
    def _open(self, take: Take, hold: Hold, terms: Terms, transaction: Transaction | None = None) -> Hold:
        guard = Guard(hold._grant, terms.policy, hold._owner)
        if transaction is None and terms.atomic:
            transaction = Transaction(terms.atomic)
        take.block = Block(hold, guard, transaction, terms.release)
        self._blocks.open(take.block)
        guard.arm()
        if transaction is not None:
            transaction.begin()
        return hold

    @abort.shielded
    def _back_out(self, take: Take, error: BaseException) -> ZkLockError | None:
        """Undo an entry that did not succeed; return what is to be raised instead, if it was stopped."""
        try:
            return self._blocks.close(take.block, error) if take.block is not None else None
        finally:
            take.undo()
            self._blocks.expect_none()

    @abort.shielded
    def _close_anyway(self, block: Block | None, count: int | None) -> None:
        """End a block whose end was struck half way."""
        block = block or self._blocks.innermost()
        self._blocks.shut(block)
        if block.transaction is not None:
            block.transaction.abandon()
        give_back(block.hold, block.hold._count - 1 if count is None else count, block.release)

    # --- small parts --------------------------------------------------------------------------------------------

    def _take(
        self, take: Take, terms: Terms, timeout: float | None, *, keep: bool = False, beside: Beside = None
    ) -> Hold:
        refuse_running_loop("acquire", '"async with" or await lock.aacquire()')
        owner = current_owner()
        held = take_again(take, owner, terms, keep=keep)
        if held is not None:
            return held
        refuse_open_transaction(terms)
        waiter: ThreadWaiter[Outcome] = ThreadWaiter()
        attempt = Attempt(process.current(), terms, waiter, timeout=timeout)
        try:
            report_waiting(attempt)
            attempt.start(beside or ())
            outcome = attempt.waiter.wait(timeout)
            if outcome is None:
                outcome = attempt.waiter.wait(attempt.extra_patience)
            take.hold = attempt.conclude(outcome, owner)
            return listed(attempt, take.hold, keep=keep)
        except BaseException as error:
            attempt.give_up()
            report_contention(attempt, error)
            raise

    async def _atake(
        self, take: Take, terms: Terms, timeout: float | None, *, keep: bool = False, beside: Beside = None
    ) -> Hold:
        refuse_atomic("async code", terms)
        owner = current_owner()
        held = take_again(take, owner, terms, keep=keep)
        if held is not None:
            return held
        attempt = Attempt(process.current(), terms, TaskWaiter[Outcome](), timeout=timeout)
        try:
            report_waiting(attempt)
            attempt.start(beside or ())
            outcome = await attempt.waiter.wait(timeout)
            if outcome is None:
                outcome = await attempt.waiter.wait(attempt.extra_patience)
            take.hold = attempt.conclude(outcome, owner)
            return listed(attempt, take.hold, keep=keep)
        except BaseException as error:
            attempt.give_up()
            report_contention(attempt, error)
            raise

    @abort.shielded
    def _release(
        self, hold: Hold, count: int, release: str | Unset, left: Callable[[bool], object] | None = None
    ) -> None:
        try:
            hand_over(hold, count, release)
            if count > 0 or hold._grant.inherited or hold._kept_by is not None:
                let_go(hold, count)
                if left is not None:
                    left(True)
                return
            if left is not None:
                let_go(hold, 0, left)
                return
            waiter: ThreadWaiter[bool] = ThreadWaiter()
            let_go(hold, 0, waiter.set)
            waiter.wait(RELEASE_PATIENCE)
        except BaseException:
            give_back(hold, count, release)  # struck half way, so once more
            raise

    async def _arelease(self, hold: Hold, count: int, *, wait: bool = True) -> None:
        try:
            if count > 0 or hold._grant.inherited or not wait:
                let_go(hold, count)
                return
            waiter = TaskWaiter[bool]()
            let_go(hold, 0, waiter.set)
            await waiter.wait(RELEASE_PATIENCE)
        except BaseException:
            let_go(hold, count)
            raise

    def _find(self) -> Hold | None:
        terms = self._terms()
        return holds.live_holds.find(current_owner(), terms.key, reads=terms.kind is Kind.READ)

    def _held(self) -> Hold:
        hold = self._find()
        if hold is None or hold._count <= 0:  # the transaction's own share is not to be given back here
            raise not_held(self._terms().key)
        return hold


zk_lock = Lock  # the name that reads well in `with zk_lock(...)`

__all__ = ["Hold", "Lock", "Receipt", "zk_lock"]
