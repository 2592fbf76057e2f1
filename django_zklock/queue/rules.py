"""
The rules of a queue: whether a contender is granted, or which predecessors it waits for.

Contenders of all kinds share one queue by one principle: a contender never passes another with which it cannot share
the lock. So a rule looks only at those ahead, and no contender starves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from django_zklock.queue.nodes import Child, Kind
from django_zklock.queue.order import Queue


@dataclass(frozen=True, slots=True)
class Granted:
    """The contender is granted the lock."""


@dataclass(frozen=True, slots=True)
class WaitFor:
    """
    The contender waits until one of `children` is gone.

    `is_last`: nothing else is to be waited for. When one of `children` is deleted, the lock is granted without another
    listing, as later contenders only come behind. `depends_on_limit`: a change of the limit may change the verdict. It
    writes the data of the directory, so the waiter watches these, too.
    """

    children: tuple[str, ...]
    is_last: bool
    depends_on_limit: bool = False


@dataclass(frozen=True, slots=True)
class Absent:
    """The contender is not in the queue: its znode was not created, or was deleted, or its session is over."""


Verdict: TypeAlias = Granted | WaitFor | Absent


Rule: TypeAlias = Callable[[Queue, str], Verdict]
"""The rule of one kind of lock. It gets the queue and the name of the contender's znode, and has no side effects."""


def exclusive(queue: Queue, me: str, /) -> Verdict:
    """
    Grant the lock to the first in the queue. Each other contender waits for the one just ahead.

    A contender that is not in the queue gets a verdict of its own. As an index, "not found" would be -1, which is ahead
    of all others. Curator granted locks twice for that reason (CURATOR-211, CURATOR-307).
    """
    index = queue.index_of(me)
    if index is None:
        return Absent()
    if index == 0:
        return Granted()
    return _wait_for(queue[index - 1], is_last=index == 1)


def shared(queue: Queue, me: str, /) -> Verdict:
    """
    Grant the lock to a reader with only readers ahead. Any other reader waits for the last writer ahead.

    Later contenders do not matter. So no reader passes a waiting writer, and a waiting writer does not block an earlier
    reader (kazoo issue 649).
    """
    index = queue.index_of(me)
    if index is None:
        return Absent()
    others = _others(queue[:index], Kind.READ)
    if not others:
        return Granted()
    return _wait_for(others[-1], is_last=len(others) == 1)


@dataclass(frozen=True, slots=True)
class Permits:
    """
    Grant the lock to as many contenders as there are permits, if all contenders ahead want permits, too.

    A limit that is set for all processes wins over `limit`, the one in the contender's code.
    """

    limit: int

    def __call__(self, queue: Queue, me: str, /) -> Verdict:
        """
        Return whether there is a permit; if not, wait for the `limit` contenders just ahead.

        A permit is free when fewer than `limit` contenders are ahead. So of any `limit` contenders ahead, at least one
        must leave first. With fewer watches, the waiter might miss that. With a limit of 1 this is the rule of
        an exclusive lock.
        """
        index = queue.index_of(me)
        if index is None:
            return Absent()
        others = _others(queue[:index], Kind.PERMIT)
        if others:
            return _wait_for(others[-1], is_last=index == 1)
        limit = self.limit if queue.limit is None else queue.limit
        if index < limit:
            return Granted()
        ahead = queue[index - limit : index]
        is_last = index == limit and not any(child.replaceable for child in ahead)
        return WaitFor(tuple(child.name for child in ahead), is_last, depends_on_limit=True)


def rule_for(kind: Kind, limit: int) -> Rule:
    """Return the rule for a kind of contender; `limit` is the one in its code, if it wants a permit."""
    if kind is Kind.PERMIT:
        return Permits(max(1, limit))
    return shared if kind is Kind.READ else exclusive


def _others(ahead: Sequence[Child], kind: Kind) -> list[Child]:
    return [child for child in ahead if child.kind is not kind]


def _wait_for(child: Child, *, is_last: bool) -> WaitFor:
    return WaitFor((child.name,), is_last and not child.replaceable)
