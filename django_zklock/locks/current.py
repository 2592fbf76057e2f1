"""Knows what the caller holds, for code that is run under a lock and was not handed its hold."""

from __future__ import annotations

from django_zklock.exceptions import LockNotHeld
from django_zklock.execution.owner import current_owner
from django_zklock.locks import hold as holds
from django_zklock.locks.hold import Hold
from django_zklock.locks.validation import not_held


def holds_any() -> bool:
    """Tell whether the caller (this asyncio task, greenlet or thread) holds any lock."""
    return holds.live_holds.any_of(current_owner())


def current_hold(key: str | None = None) -> Hold:
    """
    Return the hold of the innermost block that the caller is in, or of the innermost one of this `key`.

    It is for the body of a function under `@zk_locked`. Raises `LockNotHeld` if the caller (this asyncio task, greenlet
    or thread) is in no such block; a lock that it has by `acquire()` is found by its key.
    """
    owner = current_owner()
    for guard in reversed(holds.live_holds.guards(owner)):
        hold = holds.live_holds.find(owner, guard.grant.key) if key in (None, guard.grant.key) else None
        if hold is not None:
            return hold
    held = None if key is None else holds.live_holds.find(owner, key)
    if held is None or held._count <= 0:
        raise LockNotHeld("The caller is under no lock.") if key is None else not_held(key)
    return held
