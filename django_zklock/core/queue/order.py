"""
The queue of a lock: the contenders of a directory in their order, the limit that a marker sets, and the rules.

A rule says whether a contender is granted, or which predecessors it waits for. Contenders of all kinds share one queue
by one principle: a contender never passes another with which it cannot share the lock. So a rule looks only at those
ahead, and no contender starves.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias, overload

from django_zklock.core.errors import UnreadableQueue
from django_zklock.core.queue import markers
from django_zklock.core.queue.escaping import quoted
from django_zklock.core.queue.nodes import Child, Kind, parse

LAST_SEQUENCE = 2**31 - 2**20
"""The highest sequence number that is accepted. The lock is closed a million numbers before the counter overflows."""


@dataclass(frozen=True, slots=True)
class Queue(Sequence[Child]):
    """The contenders of one lock, in the order of their sequence numbers."""

    children: tuple[Child, ...] = ()
    limit: int | None = None
    """The limit of the semaphore, if one was set for all processes."""
    limit_marker: str = ""
    """The name of the marker that sets or has cleared the limit; empty if there is none."""
    stale_marker: str = ""
    """The name of an outdated limit marker, which the first contender deletes; empty if there is none."""

    @overload
    def __getitem__(self, index: int) -> Child: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Child, ...]: ...
    def __getitem__(self, index: int | slice) -> Child | tuple[Child, ...]:
        return self.children[index]

    def __len__(self) -> int:
        return len(self.children)

    def __iter__(self) -> Iterator[Child]:
        return iter(self.children)

    @property
    def same_kind_at_front(self) -> int:
        """How many contenders at the front of the queue are of one kind."""
        return next((index for index, child in enumerate(self) if child.kind is not self[0].kind), len(self))

    def index_of(self, name: str) -> int | None:
        """Return the index of a contender; None if it is not in the queue."""
        for index, child in enumerate(self.children):
            if child.name == name:
                return index
        return None

    def without(self, names: Collection[str]) -> Queue:
        """Return the queue without these contenders."""
        return replace(self, children=tuple(child for child in self.children if child.name not in names))

    def with_newcomer(self, name: str, kind: Kind) -> Queue:
        """Return the queue with one more contender at its end."""
        return replace(self, children=(*self.children, Child(name, kind, "", self[-1].sequence + 1 if self else 0)))


def ordered(names: Iterable[str]) -> Queue:
    """
    Return the queue in the children of a lock's directory.

    The order is that of the numbers. The order of the names would sort contenders of different clients by their
    prefixes, and negative numbers backwards (kazoo issue 730).

    Raises `UnreadableQueue` where a lock might be granted twice: for a numbered child that no client writes, for a
    sequence number that is negative, repeated or nearly exhausted, and for a contender of Curator that does not see all
    others. ZooKeeper counts the children that were ever created in a directory in a signed 32-bit int (`cversion`).
    After 2147483647 it continues with -2147483648, which would be first in the queue (ZOOKEEPER-2944), or gives
    2147483647 to all (measured with 3.8).
    """
    children: list[Child] = []
    marked: list[str] = []
    for name in names:
        child = parse(name)
        if child is not None:
            children.append(child)
        elif markers.is_marker(name):
            marked.append(name)
    queue = sorted(children, key=operator.attrgetter("sequence"))
    _refuse_numbers(queue)
    if len(queue) > 1:
        _refuse_mixture(queue)
    return _marked(queue, marked) if marked else Queue(tuple(queue))


def _marked(queue: Sequence[Child], marked: Sequence[str]) -> Queue:
    """Return the queue with the limit that its markers set."""
    marker = limit_marker_in(marked)
    limit = markers.limit_in(marker) or None
    # The marker of a cleared limit shows which contenders may still hold a permit. A contender that is alone holds one
    # in any case.
    is_stale = limit is None and len(queue) < 2
    return Queue(tuple(queue), limit, marker, marker if is_stale else "")


def limit_marker_in(names: Iterable[str]) -> str:
    """Return the name of the marker of the limit among the children of a directory; empty if there is none."""
    limits = [name for name in names if markers.limit_in(name) is not None]
    # Normally there is one. If an operator has made more by hand, the lowest limit counts.
    return min(limits, key=lambda name: markers.limit_in(name) or sys.maxsize, default="")


def _refuse_numbers(queue: Sequence[Child]) -> None:
    before: Child | None = None
    for child in queue:
        if child.sequence < 0:
            raise UnreadableQueue(f"The sequence number of {quoted(child.name)} is negative: {EXHAUSTED}")
        if child.sequence > LAST_SEQUENCE:
            raise UnreadableQueue(f"The sequence number of {quoted(child.name)} is almost the last: {EXHAUSTED}")
        if before is not None and before.sequence == child.sequence:
            raise UnreadableQueue(
                f"{quoted(before.name)} and {quoted(child.name)} have the same sequence number, so there is no "
                "order. ZooKeeper gives each number once. Find out which program created them, and delete them."
            )
        before = child


_FAMILIES = {Kind.LOCK: "mutex", Kind.READ: "read-write lock", Kind.WRITE: "read-write lock", Kind.PERMIT: "semaphore"}


def _refuse_mixture(queue: Sequence[Child]) -> None:
    """Refuse a contender of Curator next to one that it does not see: it would acquire the lock at the same time."""
    if len({(child.kind, child.in_grammar_of_curator) for child in queue}) < 2:
        return
    of_curator = next((child for child in queue if child.by_curator), None)
    if of_curator is None:
        return
    family = _FAMILIES[of_curator.kind]
    of_kazoo = next((child for child in queue if not child.in_grammar_of_curator), None)
    if of_kazoo is not None:
        raise UnreadableQueue(
            f"The queue holds a {family} of Apache Curator ({quoted(of_curator.name)}) and a znode in kazoo's grammar "
            f"({quoted(of_kazoo.name)}). Curator does not see it, so both might hold the lock. Give one of the "
            "programs another path."
        )
    unseen = next((child for child in queue if _FAMILIES[child.kind] != family), None)
    if unseen is not None:
        raise UnreadableQueue(
            f"The queue holds a {family} of Apache Curator ({quoted(of_curator.name)}) and a {_FAMILIES[unseen.kind]} "
            f"znode ({quoted(unseen.name)}). Curator does not see it, so both might hold the lock. With Curator's "
            'InterProcessReadWriteLock use kind="read" or kind="write", with its InterProcessMutex an exclusive lock. '
            "Or give that program another path."
        )


EXHAUSTED: Final = (
    "ZooKeeper's 32-bit counter of this directory is exhausted, or nearly so. Let the contenders finish. Then "
    "delete the directory once it is empty, so that ZooKeeper counts from 0 again."
)
"""The end of each `UnreadableQueue` whose cause is the counter, and its cure."""


# --- the rules ------------------------------------------------------------------------------------------------------


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


def verdict(queue: Queue, me: str, kind: Kind, limit: int) -> Verdict:
    """
    Apply the rule of one kind of lock to the contender `me`. `limit` is the one in its code, if it wants a permit.

    A contender waits for the last one ahead with which it cannot share the lock. Later ones do not matter. So no reader
    passes a waiting writer, and a waiting writer does not block an earlier reader (kazoo issue 649).

    A contender that is not in the queue gets a verdict of its own. As an index, "not found" would be -1, which is ahead
    of all others. Curator granted locks twice for that reason (CURATOR-211, CURATOR-307).
    """
    index = queue.index_of(me)
    if index is None:
        return Absent()
    others = queue[:index]
    if kind in (Kind.READ, Kind.PERMIT):
        others = tuple(child for child in others if child.kind is not kind)
    if others:
        blocking = index if kind is Kind.PERMIT else len(others)  # the limit may keep it from a permit, too
        return WaitFor((others[-1].name,), is_last=blocking == 1 and not others[-1].replaceable)
    return _permit(queue, index, limit) if kind is Kind.PERMIT else Granted()


def _permit(queue: Queue, index: int, limit: int) -> Verdict:
    """
    Return whether there is a permit, with only permits ahead; if not, wait for the `limit` contenders just ahead.

    A permit is free when fewer than `limit` contenders are ahead. So of any `limit` contenders ahead, at least one must
    leave first. With fewer watches, the waiter might miss that. A limit that is set for all processes wins.
    """
    limit = limit if queue.limit is None else queue.limit
    if index < limit:
        return Granted()
    ahead = queue[index - limit : index]
    is_last = index == limit and not any(child.replaceable for child in ahead)
    return WaitFor(tuple(child.name for child in ahead), is_last, depends_on_limit=True)


def waiters_ahead(queue: Queue, name: str, limit: int) -> int:
    """Return how many waiters are ahead of the waiter with this name; `limit` is the one in its code."""
    kind = queue[0].kind
    holders = 1
    if kind is Kind.READ:
        holders = queue.same_kind_at_front
    elif kind is Kind.PERMIT:
        holders = min(queue.limit or limit, queue.same_kind_at_front)
    return max(0, (queue.index_of(name) or 0) - holders)
