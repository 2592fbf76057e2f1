"""
Knows what a piece of work has taken and not released, and lets go of it once the work is over.

What was held before stays held, and so does what others held, threads and greenlets that the work has begun and that
still run among them. What an asyncio task, a greenlet or a thread of the work holds that has ended by now is let go of:
nobody else could ever release it. A plain thread does not know what work it is part of; one that came and went with
the work is taken for its own.
"""

from __future__ import annotations

import logging
import time

from django_zklock.execution import abort, work
from django_zklock.execution.owner import Owner, current_owner
from django_zklock.execution.waiters import ThreadWaiter
from django_zklock.execution.work import Work
from django_zklock.locks import table
from django_zklock.locks.guard import Guard
from django_zklock.locks.held import RELEASE_PATIENCE, HeldLock

logger = logging.getLogger("django_zklock.locks")


class Inventory:
    """What the caller holds as its work begins; made and used by one owner, at the begin and at the end."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._owner = current_owner()
        self._counts = {held: held.count for held in table.held_locks.all() if held.owner == self._owner}
        self._known = frozenset(table.held_locks.all())  # anybody's
        self._guards = table.held_locks.guards(self._owner)

    @abort.shielded
    def settle(self) -> list[str]:
        """
        Let go of what came since, and say so in the log; return the keys. Doing it again changes nothing.

        Waits at most a second for ZooKeeper's word that the nodes are gone.
        """
        settled: list[str] = []
        left = self._leftovers()
        if not left:
            return settled
        for owner in {held.owner for held in left}:
            self._close_blocks(owner)
        waiters = []
        for held in left:
            waiter: ThreadWaiter[bool] = ThreadWaiter()
            count = max(self._counts.get(held, 0), 0)
            settled.append(held.key)
            held.release_to(count, waiter.set)
            if count == 0 and held.observer is None and not held.grant.inherited:
                waiters.append(waiter)
            self._report(held)
        deadline = time.monotonic() + RELEASE_PATIENCE
        for waiter in waiters:
            waiter.wait(max(0.0, deadline - time.monotonic()))
        return settled

    def _leftovers(self) -> list[HeldLock]:
        return [held for held in table.held_locks.all() if self._is_left(held)]

    def _is_left(self, held: HeldLock) -> bool:
        if held.count <= 0:  # its transaction has it, and will let go of it
            return False
        if held in self._counts:  # taken before, and perhaps once more
            return held.count > self._counts[held]
        if held.owner == self._owner:
            return True
        mine = held.work is self._work or (held.work is None and held not in self._known)
        return mine and held.owner.is_over

    def _close_blocks(self, owner: Owner) -> None:
        """End to watch over the blocks that will not be left any more: their abort would strike other work."""
        before: list[Guard] = self._guards if owner == self._owner else []
        for guard in reversed(table.held_locks.guards(owner)):
            if guard not in before:
                guard.disarm()
                table.held_locks.close_block(owner, guard)

    def _report(self, held: HeldLock) -> None:
        about = self._work.about
        logger.warning(
            "the work ended without releasing the lock %s, which is released now%s",
            held.key,
            work.noted(about),
            extra={**held.grant.logged(), **work.logged(about)},
        )
