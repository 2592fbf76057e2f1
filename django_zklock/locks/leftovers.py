"""
Knows what a piece of work has taken and not released, and lets go of it once the work is over.

What was held before stays held, and so does what others hold, threads and greenlets that the work has begun and that
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
from django_zklock.locks import hold as holds
from django_zklock.locks.guard import Guard
from django_zklock.locks.hold import Hold
from django_zklock.locks.taking import RELEASE_PATIENCE, let_go

logger = logging.getLogger("django_zklock.locks")


class Inventory:
    """What the caller holds as its work begins; made and used by one owner, at the begin and at the end."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._owner = current_owner()
        self._counts = {hold: hold._count for hold in holds.live_holds.all() if hold._owner == self._owner}
        self._known = frozenset(holds.live_holds.all())  # anybody's
        self._guards = holds.live_holds.guards(self._owner)

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
        for owner in {hold._owner for hold in left}:
            self._close_blocks(owner)
        waiters = []
        for hold in left:
            waiter: ThreadWaiter[bool] = ThreadWaiter()
            count = max(self._counts.get(hold, 0), 0)
            settled.append(hold.key)
            let_go(hold, count, waiter.set)
            if count == 0 and hold._kept_by is None and not hold._grant.inherited:
                waiters.append(waiter)
            self._report(hold)
        deadline = time.monotonic() + RELEASE_PATIENCE
        for waiter in waiters:
            waiter.wait(max(0.0, deadline - time.monotonic()))
        return settled

    def _leftovers(self) -> list[Hold]:
        return [hold for hold in holds.live_holds.all() if self._is_left(hold)]

    def _is_left(self, hold: Hold) -> bool:
        if hold._count <= 0:  # its transaction has it, and will let go of it
            return False
        if hold in self._counts:  # taken before, and perhaps once more
            return hold._count > self._counts[hold]
        if hold._owner == self._owner:
            return True
        mine = hold._work is self._work or (hold._work is None and hold not in self._known)
        return mine and hold._owner.is_over

    def _close_blocks(self, owner: Owner) -> None:
        """End to watch over the blocks that will not be left any more: their abort would strike other work."""
        before: list[Guard] = self._guards if owner == self._owner else []
        for guard in reversed(holds.live_holds.guards(owner)):
            if guard not in before:
                guard.disarm()
                holds.live_holds.close_block(owner, guard)

    def _report(self, hold: Hold) -> None:
        about = self._work.about
        logger.warning(
            "the work ended without releasing the lock %s, which is released now%s",
            hold.key,
            work.noted(about),
            extra={**hold._grant.logged(), **work.logged(about)},
        )
