"""The order in which contenders have their turn."""

from __future__ import annotations

from collections.abc import Iterable

from django_zklock.exceptions import UnreadableQueue
from django_zklock.queue.nodes import Child, parse
from django_zklock.queue.segments import shown

LAST_SEQUENCE = 2**31 - 2**20
"""The highest sequence number still taken; the million beyond it is the time to act, with the lock closed."""


def ordered(names: Iterable[str]) -> tuple[Child, ...]:
    """
    Return the contenders among the children of a lock's directory, who came first being first.

    The order is that of the numbers: by string, a contender of another client's grammar would stand wherever its
    prefix puts it, and negative numbers would stand backwards (kazoo issue 730).

    Raises `UnreadableQueue` rather than grant a lock twice: for a child nobody's grammar knows, and for a sequence
    number that is negative, repeated or nearly exhausted. ZooKeeper counts the children ever made in a directory
    (`cversion`) in a signed 32-bit int. From 2147483647 it goes on, depending on the version, with -2147483648, which
    is ahead of everyone (ZOOKEEPER-2944), or sticks and gives 2147483647 to all (measured with 3.8).
    """
    queue = sorted((child for child in map(parse, names) if child is not None), key=lambda child: child.sequence)
    before: Child | None = None
    for child in queue:
        if child.sequence < 0:
            raise UnreadableQueue(f"The sequence number of {shown(child.name)} is negative: {_EXHAUSTED}")
        if child.sequence > LAST_SEQUENCE:
            raise UnreadableQueue(f"The sequence number of {shown(child.name)} is nearly the last: {_EXHAUSTED}")
        if before is not None and before.sequence == child.sequence:
            raise UnreadableQueue(
                f"{shown(before.name)} and {shown(child.name)} have the same sequence number, so nobody can tell "
                "who came first; ZooKeeper gives each number once, so find out who made them, and delete them."
            )
        before = child
    return tuple(queue)


_EXHAUSTED = (
    "ZooKeeper's 32-bit counter for this directory is exhausted, or nearly so; let the contenders finish, then "
    "delete the directory (the parent of this node) once it is empty, so that ZooKeeper starts it anew from 0."
)
