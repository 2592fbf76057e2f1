"""
The waits that holders write into their znodes, and whether a queue confirms them. A search for deadlocks follows them.

A holder that waits for another lock writes `WaitsFor` into its znode. That may be out of date. It is believed only if
the named contender is in the named queue now, behind a holder with which it cannot share the lock, and if its caller
has not given up by then.
"""

from __future__ import annotations

from typing import NamedTuple

from django_zklock.core.queue.nodes import Child, Kind, Payload, has_guid
from django_zklock.core.queue.order import Queue
from django_zklock.core.queue.untrusted import digits


class WaitsFor(NamedTuple):
    """The wait of an owner for a lock: the key, and the contender that waits."""

    key: str
    guid: str
    czxid: int
    """The czxid of that contender. The youngest wait has the highest."""
    until: int = 0
    """When its caller gives up, in milliseconds since 1970 by ZooKeeper's clock; 0 if it has no limit."""
    may_end: int = 0
    """1: another thread may release the lock in whose znode this is, while the owner waits. So it is in no circle."""

    def is_over(self, now: float | None) -> bool:
        """Return whether its caller has given up, at this time of ZooKeeper's clock."""
        return now is not None and 0 < self.until < now * 1000

    def fields(self) -> dict[str, str]:
        """Return it as it is in a payload."""
        return {name: str(value) for name, value in self._asdict().items() if value}

    @classmethod
    def decode(cls, data: bytes) -> WaitsFor | None:
        """Return what the znode with this data says; None if it says nothing. Never raises."""
        payload = Payload.decode(data)
        return None if payload is None else cls.of(payload)

    @classmethod
    def of(cls, payload: Payload) -> WaitsFor | None:
        """Return what a payload says; None if it says nothing. Never raises."""
        fields = payload.waits_for
        numbers = (digits(fields.get(name), default=0) for name in cls._fields[2:])
        wait = cls(fields.get("key", ""), fields.get("guid", ""), *numbers)
        return wait if all(wait[:3]) else None


class Blockers(NamedTuple):
    """The contenders that a waiter waits for."""

    holders: tuple[Child, ...]
    """It waits until all of these are gone."""
    waiters: tuple[Child, ...]
    """It, and the one between if it could share the lock with the holders, but not with that one."""


def blockers(queue: Queue, guid: str) -> Blockers | None:
    """
    Return what the contender with this guid waits for; None if it is not in the queue, or does not wait.

    Holders of permits are none: any of them may release its permit, while the others wait.
    """
    index = next((index for index, child in enumerate(queue) if has_guid(child.name, guid)), 0)
    front = queue.same_kind_at_front if queue and queue[0].kind is Kind.READ else 1
    if index < front or queue[0].kind is Kind.PERMIT:
        return None
    between = queue[front : front + 1] if queue[index].kind is queue[0].kind is Kind.READ else ()
    return Blockers(queue[:front], (queue[index], *between))
