"""
Knows how a lock stays taken after its owner's block: by a share, which whoever runs takes up step by step.

The body of a response is computed after the view has returned, one part after the other, perhaps in another thread, and
its last part may never be asked for. So a share is a hold of its own of the same grant. While it lasts, the lock is not
let go of; between two steps it is nobody's, or the next request of the same thread would take the lock again as its
own. It may be ended from any thread or loop, by a finalizer too, and any number of times.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeAlias

from django_zklock.exceptions import LockNotHeld
from django_zklock.execution import abort
from django_zklock.execution.owner import current_owner
from django_zklock.locks import notify, table
from django_zklock.locks.guard import Guard
from django_zklock.locks.held import HeldLock
from django_zklock.locks.hold import Hold, MultiHold
from django_zklock.locks.lock import Lock
from django_zklock.locks.multi import Locks, locks_of


class Share:
    """
    A part in a hold that outlives its owner's block; `with share:` round each step of the work that it is for.

    In the step the caller owns the lock, and is stopped if it is lost. Written by whoever is in a step, but for
    `_ending`, which anybody may set.
    """

    def __init__(self, lock: Lock, hold: Hold) -> None:
        policy = lock.terms.policy
        held = hold._held
        self._held = HeldLock(held.contender, held.grant, held.owner, policy, reads=held.reads)
        self._held.acquired = 1  # between two steps, there is no work to be stopped
        self._guard = Guard(held.grant, policy, held.owner)
        self._count: int | None = None  # to be left of the hold, once the share has ended
        self._running = False
        self._ending = False
        self._stopped = False
        self._finalizer: weakref.finalize[..., Any] | None = None  # until the share has ended
        self._guard.watch()

    @property
    def key(self) -> str:
        """The key of the lock."""
        return self._held.key

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of all locks that it is a share in."""
        return (self.key,)

    @property
    def running(self) -> bool:
        """Whether somebody is in a step."""
        return self._running

    @property
    def ended(self) -> bool:
        """Whether there will be no more steps."""
        return self._ending

    def when_dropped(self, thing: object, call: Callable[..., object], *args: object) -> None:
        """Have `call(share, *args)` run when this thing is dropped before the share has ended."""
        self._finalizer = weakref.finalize(thing, call, self, *args)
        self._finalizer.atexit = False  # the session ends with the process

    @abort.shielded
    def __enter__(self) -> Hold:
        if self._running:
            raise RuntimeError(f"Two at a time ask for the body of one response, which holds the lock {self.key!r}.")
        self._running = True  # first, then look whether it was ended: `end` does it the other way round
        held, owner = self._held, current_owner()
        held.owner = owner
        if self._ending or held.count <= 0:
            raise LockNotHeld(
                "The response was closed, or its lock released, before its body was done.",
                lock=self.key,
            )
        if table.held_locks.find(owner, self.key) is None:
            table.held_locks.add(held, keep=False)
        self._guard.begin_step(owner)
        table.held_locks.open_block(owner, self._guard)
        reason = self._guard.why_lost()  # after it can be told, so that no loss comes in between
        if reason is not None and self._guard.matters:
            raise self._held.grant.loss(reason)
        return held.hold

    @abort.shielded
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, (StopIteration, StopAsyncIteration)):
            error = None  # the body is done
        around = self._rest()
        self._stopped = stopped = self._guard.stopped(error)
        reason, released = self._guard.why_lost(), self._held.count <= 0
        self._running = False
        if self._ending:
            self._finish()
        outer_stopped = any(outer.asked_at is not None for outer in around)  # then that block will say so itself
        if reason is not None and ((stopped and not outer_stopped) or (error is None and self._guard.matters)):
            raise self._held.grant.loss(reason) from error
        if released and error is None:
            raise LockNotHeld("The lock was released inside the body of the response.", lock=self.key)

    @abort.shielded
    def end(self) -> None:
        """End the share: now, or with the step that somebody is in. Doing it again changes nothing."""
        self._ending = True
        if not self._running:
            self._finish()

    @abort.shielded
    def break_off(self) -> None:
        """
        End the share after a step that failed, in the same thread or task; the end of the step may have, too.

        One that could not begin, as somebody else is in a step, ends nothing.
        """
        if not self._running or self._held.owner == current_owner():
            self._ending = True
            self._running = False
            self._finish()

    @abort.shielded
    def _finish(self) -> None:
        try:
            self._let_go()
        except BaseException:
            self._let_go()  # struck half way, so once more
            raise

    @abort.shielded
    def _let_go(self) -> None:
        held = self._held
        self._rest()
        self._guard.disarm()
        if self._count is None:
            self._count = held.count - 1
            reason = self._guard.why_lost()
            if reason is not None and not held.grant.inherited:
                notify.send_lost(held, reason, self._guard.receipt(stopped=self._stopped))
        held.release_to(self._count)
        if self._finalizer is not None:
            # An exception that strikes in a finalizer goes nowhere, so it is left to those that have something to do.
            self._finalizer.detach()

    @abort.shielded
    def _rest(self) -> list[Guard]:
        """Stop nobody and be nobody's until the next step; return the guards of the blocks round the step."""
        self._guard.end_step()
        table.held_locks.remove(self._held)
        return table.held_locks.close_block(self._held.owner, self._guard)


class Shares:
    """A share in each of several holds that were taken as one; used as one `Share` is."""

    def __init__(self, shares: tuple[Share, ...]) -> None:
        self._shares = shares
        self._finalizer: weakref.finalize[..., Any] | None = None

    @property
    def key(self) -> str:
        """The key of the first lock."""
        return self._shares[0].key

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of all locks."""
        return tuple(share.key for share in self._shares)

    @property
    def running(self) -> bool:
        """Whether somebody is in a step."""
        return any(share.running for share in self._shares)

    @property
    def ended(self) -> bool:
        """Whether there will be no more steps."""
        return any(share.ended for share in self._shares)

    def when_dropped(self, thing: object, call: Callable[..., object], *args: object) -> None:
        """Have `call(shares, *args)` run when this thing is dropped before the shares have ended."""
        self._finalizer = weakref.finalize(thing, call, self, *args)
        self._finalizer.atexit = False

    @abort.shielded
    def __enter__(self) -> None:
        for share in self._shares:
            share.__enter__()  # who is kept out of one breaks off all

    @abort.shielded
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        failed = error
        for share in reversed(self._shares):
            try:
                share.__exit__(type(failed) if failed is not None else None, failed, None)
            except BaseException as raised:  # noqa: BLE001 - raised when all steps have ended
                failed = raised
        try:
            if failed is not None and failed is not error:
                raise failed
        finally:
            del failed

    def end(self) -> None:
        """End all shares: now, or with the step that somebody is in. Doing it again changes nothing."""
        self._each(Share.end)

    def break_off(self) -> None:
        """End all shares after a step that failed, as `Share.break_off` does."""
        self._each(Share.break_off)

    @abort.shielded
    def _each(self, end: Callable[[Share], None]) -> None:
        try:
            for share in reversed(self._shares):
                end(share)
        except BaseException:
            for share in reversed(self._shares):
                end(share)  # struck half way, so once more
            raise
        if self._finalizer is not None and self.ended and not self.running:
            self._finalizer.detach()


AnyShare: TypeAlias = "Share | Shares"


def share_of(lock: Locks, hold: Hold | MultiHold) -> AnyShare:
    """Return a share in what a call holds, one lock or several."""
    if isinstance(hold, Hold):
        return Share(locks_of(lock)[0], hold)
    return Shares(tuple(Share(each, one) for each, one in zip(locks_of(lock), hold, strict=True)))
