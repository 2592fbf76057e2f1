"""Knows the lock as its users take it: `with`, `async with`, and the methods of `threading.Lock`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any

from django.core.exceptions import SynchronousOnlyOperation
from django.dispatch import Signal

from django_zklock import abort, conf, signals
from django_zklock.conf import UNSET, Unset
from django_zklock.exceptions import LockBusy, LockLost, LockNotAcquired, LockNotHeld
from django_zklock.locks import hold as holds
from django_zklock.locks.attempt import Attempt, Terms
from django_zklock.locks.contender import Busy, Outcome
from django_zklock.locks.guard import Guard, Receipt
from django_zklock.locks.hold import Hold, Policy
from django_zklock.locks.waiting import TaskWaiter, ThreadWaiter
from django_zklock.owner import Owner, current_owner, loop_is_running
from django_zklock.queue import names
from django_zklock.zk import process
from django_zklock.zk.session import Session

DEFAULT_TIMEOUT = 10.0  # seconds to wait for a lock in plain code
RELEASE_PATIENCE = 0.9  # seconds that a release waits to hear that the node is gone; it goes on in the background


@dataclass(frozen=True, slots=True)
class _Block:
    """One `with` block that is open."""

    hold: Hold
    guard: Guard


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
        self._blocks: dict[Owner, list[_Block]] = {}  # each list is its owner's alone

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    @property
    def key(self) -> str:
        """The key, with all fields filled in and escaped. Raises `InvalidLockName`."""
        return self._terms().key

    def _terms(self) -> Terms:
        config = conf.current()
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
        wait = _threading_timeout(blocking, timeout)
        try:
            return self._take(self._terms(), wait, keep=True)
        except LockNotAcquired:
            return None

    async def aacquire(self, blocking: bool = True, timeout: float = -1) -> Hold | None:
        """Take the lock as `acquire` does; waiting costs no thread."""
        wait = _threading_timeout(blocking, timeout)
        try:
            return await self._atake(self._terms(), wait, keep=True)
        except LockNotAcquired:
            return None

    @abort.shielded
    def release(self) -> None:
        """
        Let go of the lock, once for each time it was taken.

        Waits at most a second for ZooKeeper's word; if that does not come, the node is deleted as soon as ZooKeeper is
        back, or goes with the session. Raises `LockNotHeld` if the calling owner does not hold the lock.
        """
        _refuse_running_loop("release", "await lock.arelease()")
        self._release(self._held())

    async def arelease(self) -> None:
        """Let go of the lock as `release` does."""
        await self._arelease(self._held())

    def locked(self) -> bool:
        """Tell whether anybody holds the lock or waits for it now. Raises `ZooKeeperUnavailable`."""
        _refuse_running_loop("locked", "await lock.alocked()")
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
        terms = self._terms()
        hold = self._take(terms, terms.timeout)
        self._open(hold, terms.policy)
        return hold

    @abort.shielded
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        block = self._innermost_block()
        lost: LockLost | None = None
        try:
            lost = self._close(block, error)
        finally:
            self._release(block.hold, quiet=True)
        if lost is not None:
            raise lost from error

    async def __aenter__(self) -> Hold:
        terms = self._terms()
        hold = await self._atake(terms, terms.timeout)
        self._open(hold, terms.policy)
        return hold

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        block = self._innermost_block()
        lost: LockLost | None = None
        try:
            lost = self._close(block, error)
        finally:
            await self._arelease(block.hold, quiet=True)
        if lost is not None:
            raise lost from error

    def _open(self, hold: Hold, policy: Policy) -> None:
        guard = Guard(hold._grant, policy, hold._owner)
        block = _Block(hold, guard)
        self._blocks.setdefault(hold._owner, []).append(block)
        holds.live_holds.open_block(hold._owner, guard)
        guard.arm()

    def _innermost_block(self) -> _Block:
        blocks = self._blocks.get(current_owner())
        if blocks is None and len(self._blocks) == 1:
            # An async generator that nobody finished is closed by a task of the loop's, not by its owner.
            (blocks,) = self._blocks.values()
        if blocks is None:
            raise LockNotHeld("The block is left by another task, greenlet or thread than entered it.")
        return blocks[-1]

    def _close(self, block: _Block, error: BaseException | None) -> LockLost | None:
        """End a block; return what is to be raised instead of its error, if it was stopped or its lock was lost."""
        block.guard.disarm()
        owner = block.hold._owner
        self._blocks[owner].remove(block)
        if not self._blocks[owner]:
            del self._blocks[owner]
        outer_stopped = holds.live_holds.close_block(owner, block.guard)
        if block.hold._grant.inherited:
            return None
        stopped = block.guard.stopped(error)
        reason = block.guard.why_lost()
        if reason is None:
            return None
        receipt = block.guard.receipt(stopped=stopped)
        if block.hold._count == 1:  # else a block around this one has the last word on the same hold
            _send(block.hold, signals.lock_lost, reason=reason, receipt=receipt)
        if (stopped and not outer_stopped) or (error is None and block.guard.matters):
            return LockLost(f"The lock {block.hold.key!r} was lost: {reason}.", lock=block.hold.key)
        return None

    # --- small parts --------------------------------------------------------------------------------------------

    def _take(self, terms: Terms, timeout: float | None, *, keep: bool = False) -> Hold:
        _refuse_running_loop("acquire", '"async with" or await lock.aacquire()')
        owner = current_owner()
        held = _take_again(owner, terms)
        if held is not None:
            return held
        attempt = Attempt(process.current(), terms, ThreadWaiter[Outcome](), timeout=timeout)
        try:
            attempt.contender.start()
            outcome = attempt.waiter.wait(timeout)
            if outcome is None:
                outcome = attempt.waiter.wait(attempt.extra_patience)
            return _list(attempt, attempt.conclude(outcome, owner), keep=keep)
        except BaseException as error:
            attempt.contender.abandon()
            _report_contention(attempt, error)
            raise

    async def _atake(self, terms: Terms, timeout: float | None, *, keep: bool = False) -> Hold:
        owner = current_owner()
        held = _take_again(owner, terms)
        if held is not None:
            return held
        attempt = Attempt(process.current(), terms, TaskWaiter[Outcome](), timeout=timeout)
        try:
            attempt.contender.start()
            outcome = await attempt.waiter.wait(timeout)
            if outcome is None:
                outcome = await attempt.waiter.wait(attempt.extra_patience)
            return _list(attempt, attempt.conclude(outcome, owner), keep=keep)
        except BaseException as error:
            attempt.contender.abandon()
            _report_contention(attempt, error)
            raise

    @abort.shielded
    def _release(self, hold: Hold, *, quiet: bool = False) -> None:
        if _let_go(hold, quiet=quiet):
            waiter = ThreadWaiter[bool]()
            hold._contender.abandon(waiter.set)
            waiter.wait(RELEASE_PATIENCE)

    async def _arelease(self, hold: Hold, *, quiet: bool = False) -> None:
        if _let_go(hold, quiet=quiet):
            waiter = TaskWaiter[bool]()
            hold._contender.abandon(waiter.set)
            await waiter.wait(RELEASE_PATIENCE)

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


def _threading_timeout(blocking: bool, timeout: float) -> float | None:
    if not blocking:
        if timeout != -1:
            raise ValueError("can't specify a timeout for a non-blocking call")
        return 0.0
    if timeout == -1:
        return None
    if timeout < 0:
        raise ValueError("timeout value must be a non-negative number")
    return float(timeout)


def _refuse_running_loop(method: str, instead: str) -> None:
    if loop_is_running():
        raise SynchronousOnlyOperation(
            f"{method}() would block the event loop that runs in this thread, with all its tasks; use {instead}."
        )


def _take_again(owner: Owner, terms: Terms) -> Hold | None:
    held = holds.live_holds.find(owner, terms.key)
    if held is None:
        return None
    if not terms.reentrant:
        raise LockBusy(
            f"The lock {terms.key!r} is not reentrant and its owner has it already; waiting would never end.",
            lock=terms.key,
        )
    reason = held._grant.why_invalid()
    if reason is not None:
        raise LockLost(f"The lock {terms.key!r} was lost: {reason}.", lock=terms.key)
    held._count += 1
    return held


def _list(attempt: Attempt[Any], hold: Hold, *, keep: bool) -> Hold:
    holds.live_holds.add(hold, keep=keep)
    _send(hold, signals.lock_acquired, waited=attempt.waited)
    if keep and signals.lock_lost.has_listeners(Lock):
        hold._grant.session.post(hold._grant.attach, _LossReport(hold))
    return hold


@abort.shielded
def _let_go(hold: Hold, *, quiet: bool) -> bool:
    """Count one release; return whether it was the last. `quiet` in a block, which ends in a forked child, too."""
    if hold._grant.inherited:
        if quiet:
            return False
        raise LockNotHeld("A forked child does not hold its parent's locks.", lock=hold.key)
    hold._count -= 1
    if hold._count > 0:
        return False
    holds.live_holds.remove(hold)
    if hold._grant.lost_reason is None:
        _send(hold, signals.lock_released, held=time.monotonic() - hold._grant.since)
    return True


class _LossReport:
    """Sends `lock_lost` for a hold that no block watches over."""

    def __init__(self, hold: Hold) -> None:
        self._hold = hold

    def on_suspect(self, reason: str) -> None:
        pass

    def on_vouched(self) -> None:
        pass

    def on_lost(self, reason: str) -> None:
        _send(self._hold, signals.lock_lost, reason=reason, receipt=None)


def _send(about: Hold, signal: Signal, **kwargs: object) -> None:
    _send_from(about._grant.session, signal, lock=about.key, hold=about, **kwargs)


def _send_from(session: Session, signal: Signal, **kwargs: object) -> None:
    if signal.has_listeners(Lock):
        session.dispatch(_deliver, signal, kwargs)


def _deliver(signal: Signal, kwargs: dict[str, Any]) -> None:
    signal.send_robust(Lock, **kwargs)


def _report_contention(attempt: Attempt[Any], error: BaseException) -> None:
    if isinstance(error, LockNotAcquired):
        session = attempt.contender.session
        _send_from(
            session, signals.lock_contended, lock=attempt.terms.key, waited=attempt.waited if attempt.timeout else 0.0
        )


def _is_busy(attempt: Attempt[Any], outcome: Outcome | None) -> bool:
    if outcome is None or isinstance(outcome, Exception):
        attempt.conclude(outcome, current_owner())
    return isinstance(outcome, Busy)


__all__ = ["Hold", "Lock", "Receipt", "zk_lock"]
