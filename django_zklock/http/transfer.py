"""
Transfer a hold from the block of a view to the body of its response.

The body is computed after the view has returned: part by part, perhaps in another thread, and its last part may never
be requested. So a transferred hold is another part of the same grant. While it lasts, the lock stays held. Between two
parts it has no owner: otherwise the next request in the same thread could acquire the lock again as its own.
"""

from __future__ import annotations

from types import TracebackType

from django_zklock.exceptions import LockNotHeld
from django_zklock.execution.abort import shielded
from django_zklock.execution.cleanup import CleanupOnError
from django_zklock.execution.owner import Owner, current_owner
from django_zklock.locks import notify, table
from django_zklock.locks.guard import Guard
from django_zklock.locks.held import HeldLock
from django_zklock.locks.hold import Hold, MultiHold, held_of
from django_zklock.locks.lock import Lock
from django_zklock.locks.multi import Locks, locks_of


class TransferredHold:
    """
    The lock or locks of a call, held on after its block; `with transferred:` surrounds each step of the work.

    During a step the caller owns the locks, and is aborted if one is lost. Any thread may end the hold, any number of
    times. All attributes are written by the caller of the current step, except `_ended`, which any thread may set.
    """

    def __init__(self, lock: Locks, hold: Hold | MultiHold) -> None:
        each = (hold,) if isinstance(hold, Hold) else hold
        self._parts = tuple(_BodyPart(*both) for both in zip(locks_of(lock), each, strict=True))
        self._owner: Owner | None = None  # of the current or last step
        self._running = False
        self._ended = False

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of all locks."""
        return tuple(part.held.key for part in self._parts)

    @property
    def running(self) -> bool:
        """Whether a caller is in a step now."""
        return self._running

    @property
    def ended(self) -> bool:
        """Whether no further step can begin."""
        return self._ended

    @shielded
    def __enter__(self) -> None:
        if self._running:
            raise RuntimeError(f"This response body is being iterated twice at the same time (lock {_listed(self)}).")
        self._owner = current_owner()
        self._running = True  # before `_ended` is read: `end` sets that first, and reads this afterwards
        if self._ended or any(part.released for part in self._parts):
            raise LockNotHeld(
                "The response was closed, or its lock released, before its body was complete.", lock=self.keys[0]
            )
        for part in self._parts:
            part.begin_step(self._owner)
        for part in self._parts:
            part.check()

    @shielded
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        outer = {part: part.end_step() for part in reversed(self._parts)}
        failed = None if isinstance(error, (StopIteration, StopAsyncIteration)) else error
        for part, guards in outer.items():
            failed = part.result(failed, guards)
        self._running = False
        if self._ended:
            self._release()
        try:
            if failed is not None and failed is not error:
                raise failed
        finally:
            del failed  # its traceback has this frame

    @shielded
    def end(self) -> None:
        """End the hold: now, or when the current step ends."""
        self._ended = True
        if not self._running:
            self._release()

    @shielded
    def abort(self) -> None:
        """
        End the hold after a step that failed, in the same thread or task.

        Does nothing if that step could not begin because another caller is in one.
        """
        if not self._running or self._owner == current_owner():
            self._ended = True
            self._running = False
            self._release()

    @shielded
    def _release(self) -> None:
        with CleanupOnError(self._release_parts):
            self._release_parts()

    @shielded
    def _release_parts(self) -> None:
        for part in reversed(self._parts):
            part.release()


class _BodyPart:
    """One of the locks: another part of its grant, and the guard of the steps."""

    def __init__(self, lock: Lock, hold: Hold) -> None:
        policy, held = lock.spec.policy, held_of(hold)
        self.held = HeldLock(held.contender, held.grant, held.owner, policy, reads=held.reads)
        self.held.acquired = 1  # no block ends it
        self._guard = Guard(held.grant, policy, held.owner)
        self._stopped = False  # whether the abort ended the last step
        self._count: int | None = None  # of the held lock after its release, once that has begun
        self._guard.watch()

    @property
    def released(self) -> bool:
        return self.held.count <= 0

    @shielded
    def begin_step(self, owner: Owner) -> None:
        self.held.owner = owner
        if table.held_locks.find(owner, self.held.key) is None:
            table.held_locks.add(self.held, keep=False)
        self._guard.begin_step(owner)
        table.held_locks.open_block(owner, self._guard)

    def check(self) -> None:
        """Raise `LockLost` if the lock is lost already. Called when the guard is armed, so that no loss is missed."""
        reason = self.held.grant.why_invalid()
        if reason is not None and self._guard.loss_matters:
            raise self.held.grant.loss(reason)

    @shielded
    def end_step(self) -> list[Guard]:
        """Disarm the guard, and have no owner until the next step; return the guards of the blocks around it."""
        self._guard.end_step()
        table.held_locks.remove(self.held)
        return table.held_locks.close_block(self.held.owner, self._guard)

    @shielded
    def result(self, error: BaseException | None, outer: list[Guard]) -> BaseException | None:
        """Return what a step that ended with `error` has to raise."""
        self._stopped = self._guard.stopped(error)
        reason = self.held.grant.why_invalid()
        outer_stopped = any(
            guard.abort_requested_at is not None for guard in outer
        )  # then the outer block reports the loss
        if reason is not None and (
            (self._stopped and not outer_stopped) or (error is None and self._guard.loss_matters)
        ):
            loss = self.held.grant.loss(reason)
            loss.__cause__ = error
            return loss
        if self.released and error is None:
            return LockNotHeld("The lock was released inside the body of the response.", lock=self.held.key)
        return error

    @shielded
    def release(self) -> None:
        """Give this part of the grant back. Further calls change nothing."""
        self.end_step()
        self._guard.disarm()
        if self._count is None:
            self._count = self.held.count - 1
            reason = self.held.grant.why_invalid()
            if reason is not None and not self.held.grant.inherited:
                notify.send_lost(self.held, reason, self._guard.receipt(stopped=self._stopped))
        self.held.release_to(self._count)


def _listed(hold: TransferredHold) -> str:
    return ", ".join(map(repr, hold.keys))
