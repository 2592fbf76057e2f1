"""Releases that a caller asks for, by a lock or by a hold: what they end, and what they report."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from django_zklock.core import hooks
from django_zklock.core.execution import abort
from django_zklock.core.execution.abort import CleanupOnError
from django_zklock.core.execution.waiters import Awaited, Routine, TaskWaiter, ThreadWaiter, run
from django_zklock.core.locks.held import HeldLock, Use, released
from django_zklock.exceptions import LockLost, LockNotHeld
from django_zklock.locks.arguments import check_no_running_loop

_Held = TypeVar("_Held")
Ending: TypeAlias = "tuple[HeldLock, Use, str | None]"  # a held lock, its use to end, and the option release_on


class Releasable:
    """The base of locks and holds: both can be released."""

    __slots__ = ()
    _kind = "lock"

    @abort.shielded
    def release(self) -> None:
        """
        Release a lock, once for each time it was acquired; or the acquisition that returned this hold, and only that.

        Waits at most a second for ZooKeeper's confirmation. If that does not come, the znode is deleted as soon as
        ZooKeeper is back, or with the session. Raises `LockNotHeld` if the calling owner does not hold the lock, or
        one of several: then all stay held. Raises `LockLost` after the release if one was lost; with `abort_on="never"`
        only after `max_hold`. An exception that strikes this call, such as a soft time limit, does not prevent the
        release. Inside a block it is the early end of that block. If the block has begun a transaction, the lock is
        released after its COMMIT.

        **A lock**: If the owner has ended, any owner can release it by the lock object that acquired it.

        **A hold**: Any thread or task can do this, instead of `release` of the lock. Later calls raise `LockNotHeld`,
        and free no newer hold of the same owner. Only its owner can end the hold of a block, or one with
        `release_on="commit"`, which lasts until the transaction has ended: another thread knows nothing of that.
        """
        check_no_running_loop("release", f"await {self._kind}.arelease()")
        uses: list[Ending] = []
        with CleanupOnError(functools.partial(finish_release, uses, self._uses_to_release, release_uses)):
            run(release_all(uses, self._uses_to_release, ThreadWaiter))

    async def arelease(self) -> None:
        """Release as `release` does."""
        uses: list[Ending] = []
        with CleanupOnError(functools.partial(finish_release, uses, self._uses_to_release, release_uses)):
            await Awaited(release_all(uses, self._uses_to_release, TaskWaiter))

    def _uses_to_release(self) -> list[Ending]:
        """Return the uses that a release ends, in the order of the keys. Raises `LockNotHeld`."""
        raise NotImplementedError


@abort.shielded
def release_all(uses: list[Ending], find: Callable[[], list[Ending]], new_waiter: Callable[[], Any]) -> Routine[None]:
    """
    End the uses that `find` returns, and wait for the confirmation. Then raise `LockLost` if a lock was lost.

    It adds them to `uses`, for `finish_release`: a caller needs that, as an exception may strike even its first line.
    """
    uses += find()
    lost = _loss_of(uses)
    release_uses(uses)
    yield from released([held for held, _, _ in uses], new_waiter, confirmed=True)
    if lost is not None:
        raise lost


@abort.shielded
def finish_release(
    held: list[_Held], find: Callable[[], list[_Held]], release: Callable[[list[_Held]], object]
) -> None:
    """
    Finish a release that an exception has interrupted, because its caller does not release a second time.

    `held` is what `find` has returned. It is empty if the exception struck before `find` returned.
    """
    if not held:
        with contextlib.suppress(LockNotHeld):
            held += find()  # before the release, which makes them impossible to find
    release(held)


def _loss_of(uses: list[Ending]) -> LockLost | None:
    """Return the error that follows the release of these uses, if a lock is lost."""
    present = sys.exc_info()[1]
    if present is not None and not isinstance(present, Exception):
        return None  # in a `finally`, it would hide an abort, a cancellation or an exit
    for held, _, _ in uses:
        reason = held.grant.why_invalid()
        if reason is not None and held.policy.stops_at(held.grant):
            loss = held.grant.loss(reason)
            loss.not_rolled_back = not hooks.scope.rolls_back()
            return loss
    return None


@abort.shielded
def release_uses(uses: list[Ending]) -> None:
    """End these uses, the last one first. It is idempotent."""
    for held, use, release_on in reversed(uses):
        held.release_use(use, release_on)
