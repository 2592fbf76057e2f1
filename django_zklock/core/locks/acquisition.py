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
from typing import Any, TypeAlias

from django_zklock.core import clock, hooks, tellers
from django_zklock.core.errors import LockLost, ZooKeeperUnavailable
from django_zklock.core.execution import abort, work
from django_zklock.core.execution.abort import Finalizers
from django_zklock.core.execution.owner import DISPATCHER, Owner, current_owner
from django_zklock.core.execution.waiters import Routine, ThreadWaiter
from django_zklock.core.locks.block import Block
from django_zklock.core.locks.bounds import apply_bounds
from django_zklock.core.locks.held import HeldLock, Use, held_locks
from django_zklock.core.locks.lingering import LingeringWaiter
from django_zklock.core.locks.refusals import AnyContender, block_around, refusal, report_inside
from django_zklock.core.locks.spec import LockSpec
from django_zklock.core.log import Logger
from django_zklock.core.protocol.contender import CallerWait, Contender, Outcome, wait_watchers
from django_zklock.core.protocol.deadlock import DeadlockSearch
from django_zklock.core.protocol.errors import LockNotAcquired, LockTimeout
from django_zklock.core.protocol.grant import Grant
from django_zklock.core.protocol.spec import Caller
from django_zklock.core.zk import process

logger = Logger("django_zklock.locks", always=True)

wait_watchers.append(DeadlockSearch)

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

    _open_blocks: OpenBlocks
    """The lock object has them; this is among them while its block is open. It is set before the block."""

    def __init__(self, owner: Owner | None = None, use: Use | None = None) -> None:
        self.owner = owner or current_owner()
        # One of the `uses` of its holds: the acquisition itself would be a reference cycle.
        self.use = use or Use()
        self._timeout: float | None = None  # seconds, for all locks together
        self._new_waiter: Callable[[], Any] = ThreadWaiter
        self._on_wait: Callable[[Any], None] | None = None
        self._began = 0.0  # when the call began, on clock.now()
        self._since = 0.0  # when the wait for the present lock began, on clock.now()
        self.specs: tuple[LockSpec, ...] = ()
        self.holds: list[HeldLock] = []  # of the first specs, in their order
        self._fresh: list[str] = []  # the keys of the locks that the owner did not hold before
        self.contender: AnyContender | None = None  # the one that the caller waits for
        self.waiter: Any = None  # for its outcome
        self.block: Block | None = None
        self.finalizers: Finalizers | None = None  # of the `__exit__` of the block; None once that has run

    # --- acquire --------------------------------------------------------------------------------------------------

    def acquire(
        self,
        specs: tuple[LockSpec, ...],
        timeout: float | None,
        new_waiter: Callable[[], Any],
        on_wait: Callable[[Any], None] | None = None,
    ) -> Routine[None]:
        """
        Acquire all locks, within `timeout` seconds; when this raises, all are released.

        If one of several is lost during the wait for another, no work has begun: all are acquired again. `on_wait` is
        called with each waiter before it waits. A waiter's `on_queued` is called if it has to wait.
        """
        self.specs, self._timeout = specs, timeout
        self._new_waiter, self._on_wait = new_waiter, on_wait
        self._began = self._since = clock.now()
        while True:
            self._fresh.clear()
            try:
                for spec in specs:
                    held = held_locks.find(self.owner, spec.key)
                    if held is None or not self._acquire_again(held, spec):
                        seconds = self._start(spec)
                        self._conclude(spec, (yield from self._wait(seconds)))
                if len(specs) > 1:
                    for hold in self.holds:
                        hold.grant.check()  # it may have been lost during the wait for another
                return
            except BaseException as error:
                if not self._release_after(error):
                    raise

    def _acquire_again(self, held: HeldLock, spec: LockSpec) -> bool:
        """Add a use to the lock, which the owner holds already. Return False if it has ceased to."""
        if held.drop_left(self.use.lock):
            return False
        held.check_again(spec)
        if spec is not held.spec:
            hooks.events.acquires_again(held, spec)
        self.holds.append(held)  # first, so that `release` ends the use, whatever strikes
        if not held.add_use(self.use, spec):
            held.release_use(self.use, "exit")
            self.holds.pop()
            return False  # another thread has just released its hold
        if self.use.kept:
            held_locks.add(held, keep=True)  # it may be released after the block that acquired it first
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
        return seconds

    def _wait(self, seconds: float | None) -> Routine[Outcome | None]:
        """Return the outcome of the contender within this time; ZooKeeper's first reply may take a little longer."""
        waiter, contender = self.waiter, self.contender
        assert contender is not None
        outcome: Outcome | None = yield from waiter.outcome(LONG_WAIT if seconds is None else seconds)
        while outcome is None and seconds is None:
            outcome = yield from waiter.outcome(self._report_long_wait(contender))
        if outcome is None and not (contender.waits and contender.has_position):
            late = clock.now() - self._began - (self._timeout or 0.0)
            outcome = yield from waiter.outcome(min(REPLY_TIMEOUT - late, REPLY_TIMEOUT))
        return outcome

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
        new_contender = LingeringWaiter if spec.linger else spec.contender or Contender
        contender = new_contender(session, spec, caller, wait, waits=waits)
        block = block_around(contender, self.owner)
        # A task that the block has started may be awaited after its end. Any other work is waited for by the block.
        around = None if block is None or block.owner.kind == self.owner.kind else weakref.ref(block)
        wait.on_queued = functools.partial(_on_queued, contender, self.owner, waiter, around)
        if waits:
            self._look_for_deadlock(spec, wait)
            for watcher in hooks.watchers:
                watcher(spec, self.specs, self.owner)
        self._fresh.append(spec.key)
        return waiter, contender

    def _look_for_deadlock(self, spec: LockSpec, wait: CallerWait) -> None:
        """Let the wait look for a deadlock, if the owner may hold other locks."""
        # Of several locks, some are granted before this one. The leases of a coordinator belong to many programs.
        if spec.lasts != "lease" and (len(self.specs) > 1 or held_locks.may_have(self.owner)):
            wait.held = functools.partial(held_locks.grants_of, self.owner, self.use)

    def _conclude(self, spec: LockSpec, outcome: Outcome | None) -> None:
        """Record the lock as held by the owner, or raise the error that the outcome means."""
        contender = self.contender
        assert contender is not None
        if not isinstance(outcome, Grant):
            raise refusal(contender, self.owner, outcome, clock.now() - self._since)
        held = HeldLock(contender, outcome, self.owner, spec, (self.use,))
        self.holds.append(held)
        self.contender = None
        held_locks.add(held, keep=self.use.kept)
        if self.owner.kind != "message":  # else the process that runs the task does this
            if spec.max_hold is not None or spec.warn_after is not None:
                apply_bounds(outcome, contender, spec)
            hooks.events.acquired(held, max(0.0, outcome.since - self._since))  # it may be an earlier process's

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
        if isinstance(error, LockLost) and error.lock in self._fresh:  # no work has begun under it
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
        contender = self.contender  # the owner may set it to None meanwhile
        if waiter is self.waiter and not waiter.set(outcome) and contender is not None:
            contender.abandon()  # the loop of the coroutine is closed

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
        if tellers.awaited:
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
        while self.holds:
            hold, spec = self.holds[-1], self.specs[len(self.holds) - 1]
            release_on = "exit" if self.block is None else spec.release_on  # without a block, nothing was done
            hold.release_use(self.use, release_on)
            self.holds.pop()


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


def _on_queued(contender: AnyContender, owner: Owner, waiter: Any, around: weakref.ref[HeldLock] | None) -> None:
    block = None if around is None else around()
    if block is not None:
        report_inside(block)
    if waiter.on_queued is not None:
        waiter.on_queued()
    hooks.events.waiting(contender, owner)
