"""Who has the key of a reservation."""

from __future__ import annotations

import time

from django_zklock.operations import reservations
from django_zklock.queue import reservations as rules
from django_zklock.queue.reservations import Reservation, Verdict
from django_zklock.zk.gateway import DirectoryState
from django_zklock.zk.requests import Done, Step


def holder(key: str) -> str | None:
    """Return the id of the task that has the key now, by the rules of the next publisher; None if no task has it."""

    def decide(found: DirectoryState | None, session_id: int) -> Step:
        if found is None:
            return Done(None)
        current = Reservation.decode(found.data)
        dead = rules.judge(current, found.children, time.time()) is Verdict.DEAD
        return Done(None if dead else current.task_id)

    found: str | None = reservations._run(key, decide, 5.0)
    return found
