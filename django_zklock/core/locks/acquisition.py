"""
One acquisition of one lock, or of several as one: from the call until the release of all, with its block.

The handler of a signal (a soft time limit, Ctrl-C) may raise between any two instructions of the caller. So the caller
changes an acquisition by single steps, and `release` works after any of them.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from django_zklock.core import clock, hooks, tellers
from django_zklock.core.errors import LockLost, ZkLockError, ZooKeeperUnavailable
from django_zklock.core.execution import abort, work
from django_zklock.core.execution.abort import Finalizers
from django_zklock.core.execution.owner import DISPATCHER, Owner, current_owner
from django_zklock.core.execution.waiters import Routine, ThreadWaiter
from django_zklock.core.locks.guard import Guard, apply_bounds
from django_zklock.core.locks.held import RELEASED, Enclosing, HeldLock, enclosing_holds, held_locks
from django_zklock.core.locks.lingering import LingeringWaiter
from django_zklock.core.locks.refusals import INSIDE, AnyContender, block_around, refusal
from django_zklock.core.locks.spec import LockSpec
from django_zklock.core.log import Logger
from django_zklock.core.protocol.contender import CallerWait, Contender, Outcome
from django_zklock.core.protocol.errors import LockBusy, LockNotAcquired, LockTimeout
from django_zklock.core.protocol.grant import Grant, GrantObserver
from django_zklock.core.protocol.resumption import Resumed
from django_zklock.core.protocol.spec import Caller
from django_zklock.core.queue.nodes import Kind
from django_zklock.core.zk import process

logger = Logger("django_zklock.locks", always=True)

LONG_WAIT = 60.0  # seconds; a wait without a limit is logged after this time, and again at each doubling of it
REPLY_TIMEOUT = 0.7
"""
Seconds that ZooKeeper's first replies may take beyond the timeout, for all locks of a call together.

Even a call with `timeout=0` needs a reply, to learn whether the lock is free. A call ends at most one second after
its deadline. The rest of that second is for a process that gets no processor for a while.
"""
SHORTEST_WAIT = 0.001  # seconds; with a timeout above 0, the call waits for each lock, even if no time remains

OpenBlocks: TypeAlias = "dict[object, list[Acquisition]]"
"""The acquisitions of one lock object whose blocks are open, by owner; the innermost one last."""


class Acquisition:
    """
    One call of one owner to acquire locks: their specs, and the holds that the owner has so far.

    All processes acquire locks in the order of their keys. So a caller that waits for a key holds only smaller keys,
    and no two callers can wait for each other.
    """

    _loss_observers: tuple[_LossObserver, ...] = ()
    """Of the holds, while it waits for another lock."""
    _open_blocks: OpenBlocks
    """The lock object has them; this is among them while its block is open. It is set before the block."""

    def __init__(self, owner: Owner | None = None) -> None:
        self.owner = owner or current_owner()
        self._timeout: float | None = None  # seconds, for all locks together
        self._new_waiter: Callable[[], Any] = ThreadWaiter
        self._on_wait: Callable[[Any], None] | None = None
        self._began = 0.0  # when the call began, on clock.now()
        self._since = 0.0  # when the wait for the present lock began, on clock.now()
        # Its key in the `uses` of its holds: the acquisition itself would be a reference cycle. The caller of
        # `acquire` sets a `KeptUse` if no block ends it.
        self.use = object()
        self.specs: tuple[LockSpec, ...] = ()
        self.holds: list[HeldLock] = []  # of the first specs, in their order
        self.contenders: list[AnyContender] = []  # of the locks that the owner did not hold before
        self.contender: AnyContender | None = None  # the one that the caller waits for
        self.waiter: Any = None  # for its outcome
        # By waiter. The protocol's thread writes an outcome before it wakes the caller.
        self.outcomes: dict[Any, Outcome] = {}
        self.block: Block | None = None
        self.finalizers: Finalizers | None = None  # of the `__exit__` of the block; None once that has run

    # --- acquire --------------------------------------------------------------------------------------------------

    def acquire(
        self,
        specs: tuple[LockSpec, ...],
        timeout: float | None,
        new_waiter: Callable[[], Any],
        on_wait: Callable[[Any], None] | None = None,
        *,
        lock: object = None,
        kept: bool = False,
    ) -> Routine[None]:
        """
        Acquire all locks, within `timeout` seconds; when this raises, all are released.

        If one of several is lost during the wait for another, no work has begun: all are acquired again. `on_wait` is
        called with each waiter before it waits. A waiter's `on_queued` is called if it has to wait. `lock` is the lock
        object that the caller uses. `kept`: a call of `release` ends the use of the locks, and no block.
        """
        self.specs, self._timeout = specs, timeout
        self._new_waiter, self._on_wait = new_waiter, on_wait
        self._began = self._since = clock.now()
        while True:
            self.contenders.clear()
            self.outcomes.clear()
            try:
                for spec in specs:
                    held = held_locks.find(self.owner, spec.key)
                    if held is None or not self._acquire_again(held, spec, lock, kept=kept):
                        seconds = self._start(spec)
                        self._conclude(spec, (yield from self._wait(seconds)), kept=kept)
                if len(specs) > 1:
                    for hold in self.holds:
                        hold.grant.check()  # it may have been lost during the wait for another
                return
            except BaseException as error:
                if not self._release_after(error):
                    raise

    def _acquire_again(self, held: HeldLock, spec: LockSpec, lock: object, *, kept: bool) -> bool:
        """Add a use to the lock, which the owner holds already. Return False if it has ceased to."""
        if held.drop_left(lock):
            return False
        if held.is_over:
            raise ZkLockError(
                f"The lock {spec.key!r} was acquired by an earlier call in this pool thread, which has ended. If "
                "this call waited, it might prevent the release. In coroutines, use await lock.aacquire().",
                lock=spec.key,
            )
        if spec.kind is Kind.READ:
            held = held_locks.find(self.owner, spec.key, reads=True) or held
        share = held.reentrant_share(spec.kind)
        _refuse_again(spec, share)
        if spec is not held.spec:
            hooks.events.acquires_again(held, spec)
        self.holds.append(share)  # first, so that `release` ends the use, whatever strikes
        if not share.add_use(self.use, spec.policy, kept=kept) or held.uses is RELEASED:
            share.release_use(self.use, "exit")
            self.holds.pop()
            return False  # another thread has just released its hold
        if kept or share is not held:
            held_locks.add(share, keep=kept)  # it may be released after the block that acquired it first
        return True

    def _start(self, spec: LockSpec) -> float | None:
        """Start a contender for this lock. Return the seconds to wait for it."""
        # Coroutines, and messages that wait for their work to begin, have no transactions.
        if self._new_waiter is ThreadWaiter and hooks.scope.is_open():
            hooks.scope.check(spec)
        seconds = self._timeout
        if seconds:
            seconds = max(self._began + seconds - clock.now(), SHORTEST_WAIT)
        self.waiter, self.contender = self._new_contender(spec, seconds)
        self.contender.start()
        if self.holds and self.waiter not in self.outcomes:
            self._observe_losses()
        return seconds

    def _wait(self, seconds: float | None) -> Routine[Outcome | None]:
        """Return the outcome of the contender within this time; ZooKeeper's first reply may take a little longer."""
        waiter, contender = self.waiter, self.contender
        assert contender is not None
        pause = LONG_WAIT if seconds is None else seconds
        outcome = self.outcomes.get(waiter) or (yield from waiter.outcome(pause))
        while outcome is None and seconds is None:
            pause = self._report_long_wait(contender)
            outcome = self.outcomes.get(waiter) or (yield from waiter.outcome(pause))
        if outcome is None and not (contender.waits and contender.has_position):
            late = clock.now() - self._began - (self._timeout or 0.0)
            outcome = yield from waiter.outcome(min(REPLY_TIMEOUT - late, REPLY_TIMEOUT))
        # A busy event loop may run the caller's timer first, so look at `self.outcomes`, too.
        return outcome or self.outcomes.get(waiter)

    def _report_long_wait(self, contender: AnyContender) -> float:
        """Log what a caller waits for that has no limit. Return the seconds until the next such record."""
        waited = clock.now() - self._since
        # A candidate waits until it leads, and Celery's tasks wait without a slot.
        if contender.spec.lasts != "leader" and self.owner.kind != "message":
            logger.warning("still waiting: %s", refusal(contender, self.owner, None, waited))
        return waited

    def _new_contender(self, spec: LockSpec, seconds: float | None) -> tuple[Any, AnyContender]:
        """Return a contender that waits for `seconds` (None: without limit), and the waiter for its outcome."""
        session = process.current()
        waiter = self._new_waiter()
        if self._on_wait is not None:
            self._on_wait(waiter)
        if self.holds:
            self._since = clock.now()  # the wait for the first lock began with the call
        waits = seconds != 0
        caller = describe_caller(spec, self.owner)
        deadline = None if seconds is None else clock.now() + seconds
        wait = CallerWait(functools.partial(self._on_outcome, waiter), since=self._since, deadline=deadline)
        contender = _kind_of_contender(spec)(session, spec, caller, wait, waits=waits)
        # Coroutines that a block has started may be awaited later, after its end.
        block = None if enclosing_holds.get() is None else block_around(contender, self.owner)
        around = None if block is None or block.owner.kind == self.owner.kind else weakref.ref(block)
        wait.on_queued = functools.partial(_on_queued, contender, self.owner, waiter, around)
        if waits:
            # Of several locks, some are granted before this one. The leases of a coordinator belong to many programs.
            if spec.lasts != "lease" and (len(self.specs) > 1 or held_locks.may_have(self.owner)):
                wait.held = functools.partial(held_locks.grants_of, self.owner, self.use)
            for watcher in hooks.watchers:
                watcher(spec, self.specs, self.owner)
        self.contenders.append(contender)
        return waiter, contender

    def _conclude(self, spec: LockSpec, outcome: Outcome | None, *, kept: bool) -> None:
        """Record the lock as held by the owner, or raise the error that the outcome means."""
        contender = self.contender
        assert contender is not None
        if not isinstance(outcome, Grant):
            raise self._refused(contender, outcome)
        held = HeldLock(contender, outcome, self.owner, spec, {self.use: kept})
        self.holds.append(held)
        self.contender = None
        if self._loss_observers:
            self._detach_observers()
        held_locks.add(held, keep=kept)
        if self.owner.kind != "message":  # else the process that runs the task does this
            if spec.max_hold is not None or spec.warn_after is not None:
                apply_bounds(outcome, contender, spec)
            hooks.events.acquired(held, max(0.0, outcome.since - self._since))  # it may be an earlier process's

    def _refused(self, contender: AnyContender, outcome: Outcome | None) -> ZkLockError:
        """Return the error for an outcome that is no grant. Log a timeout inside the block that has the lock."""
        error = refusal(contender, self.owner, outcome, clock.now() - self._since)
        block = block_around(contender, self.owner)
        if isinstance(error, LockTimeout) and block is not None and block.owner.kind == self.owner.kind:
            _report_inside(block)  # a task; of other work, this was known at once
        return error

    def _observe_losses(self) -> None:
        """Cancel the wait if one of the locks is lost that the owner has so far."""
        for hold in self.holds:
            observer = _LossObserver(self, hold.grant)
            self._loss_observers += (observer,)
            hold.grant.observe(observer)

    def _detach_observers(self) -> None:
        while self._loss_observers:
            observer = self._loss_observers[-1]
            observer.grant.detach(observer)
            self._loss_observers = self._loss_observers[:-1]

    @abort.shielded
    def _release_after(self, error: BaseException) -> bool:
        """Release all because of an error, and report it. Return whether to acquire all again."""
        waiting = self.contender
        self.release()  # first, because another exception may strike the rest
        now = clock.now()
        if waiting is not None and type(error) is not LockNotAcquired:  # else its user ended the wait
            hooks.events.failed(waiting, error, now - self._since, waits=bool(self._timeout))
        return len(self.specs) > 1 and self._may_begin_again(error, now - self._began)

    def _may_begin_again(self, error: BaseException, waited: float) -> bool:
        """Return whether to acquire several locks again. Raise an error about all of them, if there is one."""
        fresh = [contender.spec.key for contender in self.contenders]
        if isinstance(error, LockLost) and error.lock in fresh:  # no work has begun under it
            if self._timeout is None or waited < self._timeout:
                return True
            raise ZooKeeperUnavailable(f"{error} Not all locks were acquired yet.", lock=error.lock) from error
        if isinstance(error, LockTimeout):
            keys = ", ".join(repr(spec.key) for spec in self.specs)
            message = f"Not all of the locks {keys} were free within {waited:.1f} s. {error}"
            raise LockTimeout(message, lock=error.lock, ahead=error.ahead) from error
        return False

    # --- the outcome, on the protocol's thread, or where a lock that lingers gets its next owner -----------------

    def _on_outcome(self, waiter: Any, outcome: Outcome) -> None:
        """Wake the caller if it waits for this. A second call with the same outcome changes nothing."""
        if self.outcomes.setdefault(waiter, outcome) is not outcome:
            return
        contender = self.contender  # the owner may set it to None meanwhile
        if waiter is self.waiter and not waiter.set(outcome) and contender is not None:
            contender.abandon()  # the loop of the coroutine is closed

    def cancel(self, error: ZkLockError) -> None:
        """Leave the queue and make the caller raise `error`, unless there is an outcome already."""
        contender = self.contender  # the owner may set it to None meanwhile
        if self.waiter not in self.outcomes:
            if contender is not None:
                contender.abandon()  # its caller may be busy for a while
            self._on_outcome(self.waiter, error)

    # --- the block and the release --------------------------------------------------------------------------------

    @abort.shielded
    def open_block(self, open_blocks: OpenBlocks) -> None:
        """Open the block under the locks."""
        self._open_blocks = open_blocks
        self.block = Block(self.owner, tuple(self.holds), self.specs)
        open_blocks.setdefault(self.owner.subject, []).append(self)
        self.block.open()

    @abort.shielded
    def end_block(self, error: BaseException | None) -> tuple[BaseException | None, list[HeldLock]]:
        """End the block, if there is one, and release. Return the error to raise, and the holds to wait for, if any."""
        holds = self.holds.copy()
        tellers.connect()
        if self.block is not None:
            error = self.block.close(error)
        self.release()
        self.finalizers = None
        return error, [hold for hold in holds if not hold.contender.lingers]

    @abort.shielded
    def release(self) -> None:
        """
        Release all that the acquisition has, in any state; the last lock first. The call is idempotent.

        Waits for nothing; see `held.released`.
        """
        if self.block is not None:
            acquisitions = self._open_blocks.get(self.owner.subject, [])
            if self in acquisitions:
                acquisitions.remove(self)
            if not acquisitions:
                self._open_blocks.pop(self.owner.subject, None)
            if self.block.is_open:
                self.block.discard()
        if self.contender is not None:
            self.contender.abandon()
            self.contender = None
        if self._loss_observers:
            self._detach_observers()
        while self.holds:
            hold, spec = self.holds[-1], self.specs[len(self.holds) - 1]
            release_on = "exit" if self.block is None else spec.release_on  # without a block, nothing was done
            hold.release_use(self.use, release_on)
            self.holds.pop()


def _kind_of_contender(spec: LockSpec) -> Any:
    if spec.linger:
        return LingeringWaiter
    return Contender if spec.resumes is None else Resumed


_NO_WORK = work.Work("", {})
_file_name = functools.lru_cache(os.path.basename)  # cached, as each acquisition needs that of the program


def describe_caller(spec: LockSpec, owner: Owner) -> Caller:
    """Describe the caller and its work for others in the queue. Call it in the thread that wants the lock."""
    current = work.current() or _NO_WORK  # at each call, as the object of the lock may live longer than the work
    what = spec.what or current.what or _file_name(sys.argv[0]) or "python"
    about = spec.about or current.about
    if hooks.events.about is not None:
        about = {**about, **hooks.events.about()}
    # Under gevent, the thread that acquires for messages has no name of its own.
    thread = DISPATCHER if owner.kind == "message" else threading.current_thread().name
    return Caller(thread=thread, owner=owner.number, what=what, about=about)


def _refuse_again(spec: LockSpec, share: HeldLock) -> None:
    """Raise if the owner may not acquire again what it has as this share."""
    if not spec.reentrant and (share.uses or share.observer):
        raise LockBusy(
            f"The lock {spec.key!r} is not reentrant and its owner has it already; release it first.", lock=spec.key
        )


def _report_inside(block: HeldLock | None) -> None:
    if block is not None and not block.inside_reported:
        block.inside_reported = True
        logger.warning("lock %r is wanted by work of its own block: %s", block.key, INSIDE)


def _on_queued(contender: AnyContender, owner: Owner, waiter: Any, around: weakref.ref[HeldLock] | None) -> None:
    if around is not None:
        _report_inside(around())
    if waiter.on_queued is not None:
        waiter.on_queued()
    hooks.events.waiting(contender, owner)


@dataclass(slots=True, eq=False)
class _LossObserver(GrantObserver):
    """Cancels the wait for one of several locks when a lock is lost that was acquired before."""

    _acquisition: Acquisition
    grant: Grant

    def on_lost(self, reason: str) -> None:
        self._acquisition.cancel(self.grant.loss(reason))


class Block:
    """One open `with` block, under one lock, several, or none: that is for a block that does without a busy lock."""

    def __init__(self, owner: Owner, holds: tuple[HeldLock, ...], specs: tuple[LockSpec, ...]) -> None:
        self._owner = owner
        self._holds = holds  # in the order of their keys
        self._guards = [Guard(hold.grant, spec.policy, owner) for hold, spec in zip(holds, specs, strict=True)]
        self._transaction = hooks.scope.transaction(specs[-1].atomic) if specs and specs[-1].atomic else None
        self._enclosing: tuple[Enclosing | None, Enclosing | None] = None, None  # around the block, and in it
        self.is_open = True

    @abort.shielded
    def open(self) -> None:
        """Arm the guards, and begin the transaction and the work."""
        for guard in self._guards:
            held_locks.open_block(self._owner, guard)
            guard.arm()
        around = enclosing_holds.get()
        while around is not None and around[0]() is None:
            around = around[1]  # that of a generator, which has ended inside another block
        inside = around
        for hold in self._holds:
            inside = weakref.ref(hold), inside
        self._enclosing = around, inside
        enclosing_holds.set(inside)
        if self._transaction is not None:
            self._transaction.begin()
        for hold in self._holds:
            hold.grant.begun = True

    @abort.shielded
    def close(self, error: BaseException | None) -> BaseException | None:
        """End the block, but do not release its locks. Return the error to raise, if any."""
        outer_guards = self._disarm()  # first, so that no abort interrupts COMMIT
        committed = False
        if self._transaction is not None:
            error, committed = self._end_transaction(self._transaction, error)
        for hold, guard in zip(self._holds, self._guards, strict=True):
            # Without uses it was released inside the block, so a loss after that is none.
            is_lost = hold.uses and hold.grant.why_invalid() is not None
            if is_lost or guard.abort_requested_at is not None:
                error = self._report_losses(error, outer_guards, committed=committed) or error
                break
        self.is_open = False
        return error

    @abort.shielded
    def _end_transaction(
        self, transaction: hooks.Transaction, error: BaseException | None
    ) -> tuple[BaseException | None, bool]:
        """
        Commit if the locks are still held; roll back if `error` has ended the block.

        Return the error to raise, and whether the work was committed. After a commit, the loss of a lock is no failure.
        """
        if self._is_inherited:
            transaction.forget()
            return error, False
        try:
            transaction.end(error, self._check)
        except BaseException as failed:  # noqa: BLE001 - the caller raises it after the release
            transaction.abandon()  # its end may not have begun
            return failed, False
        return error, error is None

    @abort.shielded
    def discard(self) -> None:
        """End what remains of a block that an exception has destroyed: disarm its guards, and roll back."""
        self._disarm()
        if self._transaction is not None and self._is_inherited:
            self._transaction.forget()
        elif self._transaction is not None:
            self._transaction.abandon()
        self.is_open = False

    @property
    def _is_inherited(self) -> bool:
        """Whether a fork inside the block has made this process. Then the locks are the parent's."""
        return bool(self._holds) and self._holds[0].grant.inherited

    @abort.shielded
    def _disarm(self) -> list[Guard]:
        """Disarm the guards. Return those of the blocks around this one, outermost first. The call is idempotent."""
        outer_guards: list[Guard] = []
        for guard in reversed(self._guards):
            guard.disarm()
            outer_guards = held_locks.close_block(self._owner, guard)
        around, inside = self._enclosing
        if enclosing_holds.get() is inside:  # not in another context, nor in a block inside that is still open
            enclosing_holds.set(around)
        return outer_guards

    def _check(self) -> None:
        for hold, guard in zip(self._holds, self._guards, strict=True):
            if guard.loss_matters:
                hold.check()

    @abort.shielded
    def _report_losses(
        self, error: BaseException | None, outer_guards: list[Guard], *, committed: bool
    ) -> ZkLockError | None:
        """Report lost locks. Return the error that replaces `error`; None if `error` remains."""
        if self._is_inherited:
            return None
        lost: ZkLockError | None = None
        guards = outer_guards + self._guards
        for held in reversed(self._holds):
            guard = guards.pop()
            if held.uses or guard.abort_requested_at is not None:
                lost = self._report_loss(held, guard, guards, lost or error, committed=committed) or lost
        return lost

    @abort.shielded
    def _report_loss(
        self, held: HeldLock, guard: Guard, outer: list[Guard], cause: BaseException | None, *, committed: bool
    ) -> ZkLockError | None:
        """Report one lock, if it is lost. Return the error that replaces `cause`, if that does not end the block."""
        stopped = guard.stopped(cause)
        reason = held.grant.why_invalid()
        if reason is None:
            return None
        receipt = guard.receipt(stopped=stopped)
        if all(around.grant is not held.grant for around in outer):  # else the block around this one reports it
            held.report_loss(reason, receipt)
        if stopped:
            is_failure = all(around.abort_requested_at is None for around in outer)  # else the block around fails
        else:
            is_failure = cause is None and guard.loss_matters and not committed
        if not is_failure:
            return None
        lost = held.grant.loss(reason)
        lost.not_rolled_back = self._transaction is None and not hooks.scope.rolls_back()
        return lost
