"""The queue: the contenders of a directory in their order, and the limit that its marker sets."""

from __future__ import annotations

import operator
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, overload

from django_zklock.exceptions import UnreadableQueue
from django_zklock.queue import markers
from django_zklock.queue.escaping import quoted
from django_zklock.queue.nodes import Child, Kind, parse

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

    @property
    def stale_marker(self) -> str:
        """
        The name of an outdated limit marker, which the first contender deletes; empty if there is none.

        The marker of a cleared limit shows which contenders may still hold a permit. A contender that is alone holds
        one in any case.
        """
        return self.limit_marker if self.limit is None and len(self.children) < 2 else ""

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
    if not marked:
        return Queue(tuple(queue))
    readers = {markers.reader_of(name) for name in marked} - {""}
    if readers:
        # Also for the kind LOCK: in kazoo's grammar a writer has the name of an exclusive lock.
        queue = [child._replace(kind=Kind.READ) if child.guid in readers else child for child in queue]
    marker = limit_marker_in(marked)
    return Queue(tuple(queue), markers.limit_in(marker) or None, marker)


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
    "delete the directory (the parent of this znode) once it is empty, so that ZooKeeper counts from 0 again."
)
"""The end of each `UnreadableQueue` whose cause is the counter, and its cure."""
