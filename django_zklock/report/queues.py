"""The causes that are in one queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_zklock.report import formatting
from django_zklock.report.incident import MANY, Incident

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from django_zklock.inspection import LockInfo
    from django_zklock.report.facts import Facts

CROWD: Final = 50
"""Callers behind a lock that are named at once."""
LONG_WAIT: Final = 60.0
"""Seconds of the first waiter from which on a queue may be a convoy: no holder hangs, and all wait for long."""


class Unreadable(Incident):
    """A znode of another program is in the queue, or its counter is at its end. Nobody gets the lock."""

    cause = "unreadable"
    severity = "error"
    title = _("The queue of %(keys)s cannot be read")
    remedy = _("Do what this text says. Until then, nobody gets the lock.")
    ends = "The znode or the directory is deleted."
    command = "show"

    @classmethod
    def find(cls, facts: Facts) -> Iterator[Self]:
        for lock in facts.snapshot.locks:
            if lock.is_unreadable:
                yield cls(keys=(lock.key,), blocked=lock.waiting, detail=lock.problem)


class Crowded(Incident):
    """
    50 callers wait, or the first has waited for a minute, and for the `warn_after` of the holder.

    With one or two waiters, it is a long wait. No other card names the lock: each holder has it for a short time only.
    """

    cause = "crowded"
    title = _("Long queue: %(keys)s")
    remedy = _("Look at the holder. If its work goes on, hold the lock for a shorter time, or set `max_waiters`.")
    ends = "The queue is shorter."
    command = "show"

    @classmethod
    def find(cls, facts: Facts) -> Iterator[Self]:
        for lock in facts.snapshot.locks:
            if not lock.waiting or lock.lasts == "leader" or lock.deadlocked:  # candidates stand by
                continue
            waiting, behind = facts.behind([lock.key])
            why = _crowd(lock, waiting)
            if why is None or facts.is_victim(lock):
                continue
            detail = " ".join([*formatting.reasons(lock)[:1], why]).rstrip()
            kind: type[Any] = LongWait if why and lock.waiting < MANY else cls
            yield kind(keys=(lock.key,), blocked=waiting, behind=behind, detail=detail)


class LongWait(Crowded):
    """One or two callers have waited for long. A limit of waiters would not help them."""

    title = _("Long wait: %(keys)s")
    remedy = _("Look at the holder. If its work goes on, hold the lock for a shorter time.")


def _crowd(lock: LockInfo, waiting: int) -> str | None:
    """Return in what a queue is unusual; None if it is not too long."""
    waited = lock.longest_wait or 0.0
    long_wait = max([LONG_WAIT, *(holder.long_after for holder in lock.holders)])
    if waited >= long_wait and not lock.lasts and lock.operator is None:
        return gettext("The first has waited for %(time)s.") % {"time": formatting.duration(waited)}
    return "" if waiting >= CROWD else None
