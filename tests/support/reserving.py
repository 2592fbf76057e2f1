"""The reservations in ZooKeeper, and the task that has a key."""

from __future__ import annotations

import time

from django_zklock.contrib.celery.unique import record, reservations
from django_zklock.contrib.celery.unique.record import Reservation, Verdict
from django_zklock.core.zk.gateway import DirectoryState
from django_zklock.locks.requests import Done, Step
from support.zoo import Zoo


def holder(key: str) -> str | None:
    """Return the id of the task that has the key now, by the rules of the next publisher; None if no task has it."""

    def decide(owner: DirectoryState | None, session_id: int) -> Step:
        if owner is None:
            return Done(None)
        current = Reservation.decode(owner.data)
        dead = current.judge(owner.children, time.time()) is Verdict.DEAD
        return Done(None if dead else current.task_id)

    owner: str | None = reservations._run(key, decide, 5.0)
    return owner


def reserved_names(zoo: Zoo, key: str = "") -> list[str]:
    names = zoo.names(record.directory(zoo.base))
    return [name for name in names if name.endswith(f"!{key}")] if key else names
