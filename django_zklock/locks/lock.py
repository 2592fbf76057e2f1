"""Knows the lock as its users take it: `with`, `async with`, and the methods of `threading.Lock`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any

from django.core.exceptions import SynchronousOnlyOperation

from django_zklock import abort, conf
from django_zklock.conf import UNSET, Unset
from django_zklock.exceptions import LockLost, LockNotAcquired, LockNotHeld, ZkLockError
from django_zklock.locks import hold as holds
from django_zklock.locks.attempt import Attempt, Terms
from django_zklock.locks.blocks import Block, Blocks, Exit
from django_zklock.locks.contender import Busy, Outcome
from django_zklock.locks.guard import Guard, Receipt
from django_zklock.locks.hold import Hold, Policy
from django_zklock.locks.refusals import refuse_own_task, refuse_running_loop, threading_timeout
from django_zklock.locks.taking import Take, let_go, listed, report_contention, take_again, tell_lost
from django_zklock.locks.waiting import TaskWaiter, ThreadWaiter
from django_zklock.owner import current_owner
from django_zklock.queue import names
from django_zklock.zk import process

DEFAULT_TIMEOUT = 10.0  # seconds to wait for a lock in plain code
RELEASE_PATIENCE = 0.9  # seconds that a release waits to hear that the node is gone; it goes on in the background


class Lock:
    """
    A lock that one owner at a time has, in all processes on all machines that use the same ZooKeeper.

    `name` is one of `ZKLOCK["LOCKS"]`, or else a path template itself; `fields` fills the template in. The owner is the
    current asyncio task, else greenlet, else thread. One object may be used by any number of owners, and two objects
    of the same key are the same lock. Nothing is sent before it is first acquired.

    Options that are not given come from the lock's entry in `ZKLOCK["LOCKS"]`, then from `ZKLOCK["DEFAULTS"]`.

    Args:
        timeout: seconds to wait for the lock in `with`; 0 does not wait, None waits for ever. Default 10.
        abort_on: when the block's work is stopped: "suspended" (default), "lost" or "never".
        grace: seconds that a suspended connection may last before the work is stopped, never past the lease. Default 0.
        reentrant: whether its owner may take it again (default). If not, that raises `LockBusy` at once.
        what: the work it is for, shown to others in the queue.

    """

    def __init__(
        self,
        name: str,
        *,
        fields: Mapping[str, object] | None = None,
        timeout: float | timedelta | Unset | None = UNSET,
        abort_on: str | Unset = UNSET,
        grace: float | timedelta | Unset = UNSET,
        reentrant: bool | Unset = UNSET,
        what: str = "",
    ) -> None:
        self.name = name
        self._fields = dict(fields or {})
        self._options = conf.given_options(timeout=timeout, abort_on=abort_on, grace=grace, reentrant=reentrant)
        self._what = what
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
            self._resolved = config, self._resolve(config)
        return self._resolved[1]

    def _resolve(self, config: conf.Config) -> Terms:
        names.check_type(self.name)
        options = self._options.merged_over(config.options_for(self.name))
        template = names.Template.parse(options.path or self.name)
        key = template.render(self._fields)
        return Terms(
            key=key,
            template=template.text,
            parent=names.path(config.base, key),
            timeout=DEFAULT_TIMEOUT if isinstance(options.timeout, Unset) else options.timeout,
            policy=Policy(
                abort_on="suspended" if isinstance(options.abort_on, Unset) else options.abort_on,
                grace=0.0 if isinstance(options.grace, Unset) else options.grace,
            ),
            reentrant=True if isinstance(options.reentrant, Unset) else options.reentrant,
            what=self._what or os.path.basename(sys.argv[0]) or "python",
        )

    # --- as threading.Lock and RLock --------------------------------------------------------------------------

    def acquire(self, blocking: bool = True, timeout: float = -1) -> Hold | None:
        """
        Take the lock, as `threading.RLock.acquire` does; return the hold, or None if it was not to be had.

        `timeout` is in seconds, -1 waits for ever. No work is aborted when a lock that was acquired this way is lost:
        ask `hold.check()`, or use `with`. Raises `ZooKeeperUnavailable` when ZooKeeper does not answer: then nobody
        knows who has the lock.
        """
        wait = threading_timeout(blocking, timeout)
        take = Take()
        try:
            return self._take(take, self._terms(), wait, keep=True)
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
            return await self._atake(take, self._terms(), wait, keep=True)
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
            self._release(hold, count)
        except (LockNotHeld, SynchronousOnlyOperation):
            raise
        except BaseException:
            hold = hold or self._held()
            let_go(hold, hold._count - 1 if count is None else count)
            raise

    async def arelease(self) -> None:
        """Let go of the lock as `release` does."""
        hold = self._held()
        await self._arelease(hold, hold._count - 1)

    def locked(self) -> bool:
        """Tell whether anybody holds the lock or waits for it now. Raises `ZooKeeperUnavailable`."""
        refuse_running_loop("locked", "await lock.alocked()")
        if self._find() is not None:
            return True
        attempt = self._look(ThreadWaiter[Outcome]())
        try:
            outcome = attempt.waiter.wait(attempt.timeout)
        finally:
            attempt.contender.abandon()
        return _is_busy(attempt, outcome)

    async def alocked(self) -> bool:
        """Tell whether anybody holds the lock or waits for it now."""
        if self._find() is not None:
            return True
        attempt = self._look(TaskWaiter[Outcome]())
        try:
            outcome = await attempt.waiter.wait(attempt.timeout)
        finally:
            attempt.contender.abandon()
        return _is_busy(attempt, outcome)

    # --- with and async with ------------------------------------------------------------------------------------

    def __enter__(self) -> Hold:
        take = Take()
        try:
            terms = self._terms()
            return self._open(take, self._take(take, terms, terms.timeout), terms.policy)
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
    def _leave(self, error: BaseException | None) -> None:
        """End the innermost block of the caller, which `error` has ended; what `with` calls."""
        block: Block | None = None
        count: int | None = None
        lost: ZkLockError | None = None
        try:
            block = self._blocks.innermost()
            count = block.hold._count - 1
            try:
                lost = self._close(block, error)
            finally:
                self._release(block.hold, count)
        except BaseException:
            self._close_anyway(block, count)
            raise
        if lost is not None:
            raise lost from error

    async def __aenter__(self) -> Hold:
        take = Take()
        try:
            terms = self._terms()
            return self._open(take, await self._atake(take, terms, terms.timeout), terms.policy)
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
                lost = self._close(block, error)
            finally:
                # A coroutine that is thrown away cannot wait any more.
                await self._arelease(block.hold, count, wait=kind is not GeneratorExit)
        except BaseException:
            self._close_anyway(block, count)
            raise
        if lost is not None:
            raise lost from error

    @abort.shielded
    def _open(self, take: Take, hold: Hold, policy: Policy) -> Hold:
        guard = Guard(hold._grant, policy, hold._owner)
        take.block = self._blocks.open(hold, guard)
        guard.arm()
        return hold

    @abort.shielded
    def _back_out(self, take: Take, error: BaseException) -> ZkLockError | None:
        """Undo an entry that did not succeed; return what is to be raised instead, if it was stopped."""
        lost = self._close(take.block, error) if take.block is not None else None
        take.undo()
        self._blocks.expect_none()
        return lost

    @abort.shielded
    def _close_anyway(self, block: Block | None, count: int | None) -> None:
        """End a block whose end was struck half way."""
        block = block or self._blocks.innermost()
        self._blocks.shut(block)
        let_go(block.hold, block.hold._count - 1 if count is None else count)

    @abort.shielded
    def _close(self, block: Block, error: BaseException | None) -> ZkLockError | None:
        """End a block; return what is to be raised instead of its error, if it was stopped or its lock was lost."""
        around = self._blocks.shut(block)
        hold, guard = block.hold, block.guard
        if hold._grant.inherited:
            return None
        stopped = guard.stopped(error)
        reason = guard.why_lost()
        if reason is None:
            if hold._count or error is not None:
                return None
            return LockNotHeld("The lock was released inside the block.", lock=hold.key)
        receipt = guard.receipt(stopped=stopped)
        if not any(outer.grant is hold._grant for outer in around):
            tell_lost(hold, reason, receipt)
        outer_stopped = any(outer.asked_at is not None for outer in around)  # then that block will say so itself
        if (stopped and not outer_stopped) or (error is None and guard.matters):
            return LockLost(f"The lock {hold.key!r} was lost: {reason}.", lock=hold.key)
        return None

    # --- small parts --------------------------------------------------------------------------------------------

    def _take(self, take: Take, terms: Terms, timeout: float | None, *, keep: bool = False) -> Hold:
        refuse_running_loop("acquire", '"async with" or await lock.aacquire()')
        owner = current_owner()
        held = take_again(take, owner, terms, keep=keep)
        if held is not None:
            return held
        waiter: ThreadWaiter[Outcome] = ThreadWaiter()
        attempt = Attempt(process.current(), terms, waiter, timeout=timeout)
        try:
            attempt.contender.start()
            outcome = attempt.waiter.wait(timeout)
            if outcome is None:
                outcome = attempt.waiter.wait(attempt.extra_patience)
            take.hold = attempt.conclude(outcome, owner)
            return listed(attempt, take.hold, keep=keep)
        except BaseException as error:
            attempt.contender.abandon()
            report_contention(attempt, error)
            raise

    async def _atake(self, take: Take, terms: Terms, timeout: float | None, *, keep: bool = False) -> Hold:
        owner = current_owner()
        held = take_again(take, owner, terms, keep=keep)
        if held is not None:
            return held
        attempt = Attempt(process.current(), terms, TaskWaiter[Outcome](), timeout=timeout)
        try:
            attempt.contender.start()
            outcome = await attempt.waiter.wait(timeout)
            if outcome is None:
                outcome = await attempt.waiter.wait(attempt.extra_patience)
            take.hold = attempt.conclude(outcome, owner)
            return listed(attempt, take.hold, keep=keep)
        except BaseException as error:
            attempt.contender.abandon()
            report_contention(attempt, error)
            raise

    @abort.shielded
    def _release(self, hold: Hold, count: int) -> None:
        try:
            if count > 0 or hold._grant.inherited:
                let_go(hold, count)
                return
            waiter: ThreadWaiter[bool] = ThreadWaiter()
            let_go(hold, 0, waiter.set)
            waiter.wait(RELEASE_PATIENCE)
        except BaseException:
            let_go(hold, count)  # struck half way, so once more
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
        return holds.live_holds.find(current_owner(), self._terms().key)

    def _held(self) -> Hold:
        hold = self._find()
        if hold is None:
            raise LockNotHeld(lock=self._terms().key)
        return hold

    def _look(self, waiter: Any) -> Attempt[Any]:
        session = process.current()
        attempt = Attempt(session, self._terms(), waiter, timeout=session.options.connect_timeout, only_look=True)
        attempt.contender.start()
        return attempt


def zk_lock(
    name: str,
    *,
    fields: Mapping[str, object] | None = None,
    timeout: float | timedelta | Unset | None = UNSET,
    abort_on: str | Unset = UNSET,
    grace: float | timedelta | Unset = UNSET,
    reentrant: bool | Unset = UNSET,
) -> Lock:
    """
    Return the lock of this name, to be used with `with` or `async with`.

    The arguments are those of `Lock`. The block raises `LockBusy` (for `timeout=0`) or `LockTimeout` when somebody else
    has the lock, `ZooKeeperUnavailable` when nobody can tell, and `LockLost` when the lock was lost under the work.
    """
    return Lock(name, fields=fields, timeout=timeout, abort_on=abort_on, grace=grace, reentrant=reentrant)


def _is_busy(attempt: Attempt[Any], outcome: Outcome | None) -> bool:
    if outcome is None or isinstance(outcome, Exception):
        attempt.conclude(outcome, current_owner())
    return isinstance(outcome, Busy)


__all__ = ["Hold", "Lock", "Receipt", "zk_lock"]
