"""
Whose turn it is: from the queue and one's own place in it to a verdict.

All kinds of contenders may stand in one queue, and keep each other out by one principle: nobody passes anybody with
whom it cannot share the lock. So each rule asks only who is ahead, and nobody starves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from django_zklock.queue.nodes import Child, Kind
from django_zklock.queue.order import Queue


@dataclass(frozen=True, slots=True)
class Granted:
    """The lock is ours."""


@dataclass(frozen=True, slots=True)
class WaitFor:
    """
    It is not our turn before one of `children` is gone.

    `alone` says that the first deletion among them grants the lock, without another look at the queue: sequence numbers
    only rise, so nobody can have come in between. `heed_limit` says that the limit counts, which may be changed for all
    (with the data of the directory).
    """

    children: tuple[str, ...]
    alone: bool
    heed_limit: bool = False


@dataclass(frozen=True, slots=True)
class Absent:
    """We are not in the queue: the own node was never made, or is gone with its session or by somebody's hand."""


Verdict: TypeAlias = Granted | WaitFor | Absent


class Rule(Protocol):
    """
    What makes a kind of lock: it reads the queue and never acts.

    `queue` is as `order.ordered` gives it, and `me` the name of the own child.
    """

    def __call__(self, queue: Queue, me: str, /) -> Verdict:
        """Return what the contender `me` has to do."""
        ...


def exclusive(queue: Queue, me: str, /) -> Verdict:
    """
    Grant the lock to the first in the queue; everyone else waits for the one just ahead, and wakes alone.

    A missing own node is a verdict of its own. Taken for an index, "not found" is -1, which is ahead of everyone:
    that granted Curator's locks twice (CURATOR-211, CURATOR-307).
    """
    place = queue.place(me)
    if place is None:
        return Absent()
    if place == 0:
        return Granted()
    return _wait_for(queue[place - 1], alone=place == 1)


def shared(queue: Queue, me: str, /) -> Verdict:
    """
    Grant the lock to a reader that has only readers ahead; else it waits for the last ahead that is none.

    Who comes later is not looked at, so a writer that waits is passed by nobody, and stands in no earlier reader's way
    (kazoo issue 649).
    """
    place = queue.place(me)
    if place is None:
        return Absent()
    others = _others(queue[:place], Kind.READ)
    if not others:
        return Granted()
    return _wait_for(others[-1], alone=len(others) == 1)


@dataclass(frozen=True, slots=True)
class Permits:
    """
    Grant the lock to as many as there are permits, if none but such are ahead.

    A limit that was set for all processes wins over `limit`, the caller's own.
    """

    limit: int

    def __call__(self, queue: Queue, me: str, /) -> Verdict:
        """
        Return whether there is a permit; if not, wait for as many of those just ahead as there are permits.

        Any of that number would do, and fewer would not: of those ahead, all but `limit` - 1 have to go before there is
        a permit, so one of any `limit` of them is among those that went. With a limit of 1 it is the rule of a lock.
        """
        place = queue.place(me)
        if place is None:
            return Absent()
        others = _others(queue[:place], Kind.LEASE)
        if others:
            return _wait_for(others[-1], alone=place == 1)
        limit = self.permits(queue)
        if place < limit:
            return Granted()
        ahead = queue[place - limit : place]
        alone = place == limit and not any(child.replaceable for child in ahead)
        return WaitFor(tuple(child.name for child in ahead), alone, heed_limit=True)

    def permits(self, queue: Queue) -> int:
        """Return how many permits there are."""
        return self.limit if queue.limit is None else queue.limit


def rule_for(kind: Kind, limit: int) -> Rule:
    """Return the rule of a kind of contender; `limit` is its own, if it wants a permit."""
    if kind is Kind.LEASE:
        return Permits(max(1, limit))
    return shared if kind is Kind.READ else exclusive


def _others(ahead: Sequence[Child], kind: Kind) -> list[Child]:
    return [child for child in ahead if child.kind is not kind]


def _wait_for(child: Child, *, alone: bool) -> WaitFor:
    return WaitFor((child.name,), alone and not child.replaceable)
