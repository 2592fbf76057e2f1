"""Releases that a caller asks for, by a lock or by a hold: what they end, and what they report."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from django_zklock.core import hooks
from django_zklock.core.execution import abort
from django_zklock.core.execution.waiters import Routine
from django_zklock.core.locks.held import HeldLock, released
from django_zklock.core.locks.spec import LockSpec
from django_zklock.exceptions import LockLost, LockNotHeld

_Held = TypeVar("_Held")
Use: TypeAlias = "tuple[HeldLock, object, str | None]"  # a held lock, its use to end, and the option release_on


def release_inside_on(specs: Sequence[LockSpec]) -> list[str | None]:
    """
    Return the option `release_on` of each lock of a block, for a release inside it.

    A transaction of the block itself keeps the locks until it has ended, whatever the option says.
    """
    return [None if specs[-1].atomic else spec.release_on for spec in specs]


@abort.shielded
def release_all(uses: list[Use], find: Callable[[], list[Use]], new_waiter: Callable[[], Any]) -> Routine[None]:
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


def _loss_of(uses: list[Use]) -> LockLost | None:
    """Return the error that follows the release of these uses, if a lock is lost."""
    present = sys.exc_info()[1]
    if present is not None and not isinstance(present, Exception):
        return None  # in a `finally`, it would hide an abort, a cancellation or an exit
    for held, _, _ in uses:
        reason = held.grant.why_lost()
        if reason is not None and held.policy.stops_at(held.grant):
            loss = held.grant.loss(reason)
            loss.after_commit = present is None and not hooks.scope.rolls_back()
            return loss
    return None


@abort.shielded
def release_uses(uses: list[Use]) -> None:
    """End these uses, the last one first. It is idempotent."""
    for held, use, release_on in reversed(uses):
        held.release_use(use, release_on)
