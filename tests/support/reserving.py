"""The reservations in ZooKeeper, and the task that has a key."""

from __future__ import annotations

import time

from django_zklock.contrib.celery.unique import record, reservations
from django_zklock.contrib.celery.unique.record import Reservation, Verdict
from django_zklock.core.zk.gateway import DirectoryState
from django_zklock.locks.requests import Done, Step
from support.zoo import ROOM, Zoo

for _name in ("start", "conclude", "detach", "end"):  # on a busy machine, a test would else go on too early
    getattr(reservations, _name).__kwdefaults__["reply_timeout"] += min(ROOM, 5.0)


def holder(key: str) -> str | None:
    """Return the id of the task that has the key now, by the rules of the next publisher; None if no task has it."""

    def decide(owner: DirectoryState | None, session_id: int) -> Step:
        if owner is None or (own := Reservation.decode(owner.data)).judge(owner.children, time.time()) is Verdict.DEAD:
            return Done(None)
        return Done(own.task_id)

    owner: str | None = reservations._run(key, decide, 5.0)
    return owner


def reserved_names(zoo: Zoo, key: str = "") -> list[str]:
    return [name for name in zoo.names(record.directory(zoo.base)) if name.endswith(f"!{key}" if key else "")]
