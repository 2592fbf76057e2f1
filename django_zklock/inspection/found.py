"""Knows what a walk has found: the queues, and what their nodes say; and who has the lock in each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from django_zklock.locks.protocol.operator_holds import read_hold
from django_zklock.queue import standing
from django_zklock.queue.nodes import Kind, own_limit
from django_zklock.queue.order import Queue
from django_zklock.queue.standing import Limits
from django_zklock.zk.gateway import Node


@dataclass(frozen=True, slots=True)
class Found:
    """What was found."""

    base: str
    queues: Mapping[str, Queue]
    """By key; those that are read, in the order of their keys."""
    nodes: Mapping[tuple[str, str], Node | None]
    """By key and name; None for one that was gone by then. What is missing was not read."""
    unreadable: Mapping[str, tuple[int, str]]
    """By key: how many contend, and why nobody can tell more."""
    max_waiters: int | None
    """How many of those who wait are wanted; None: all."""
    total: int
    """How many queues there are."""
    notes: tuple[str, ...]
    ended: float
    """On `clock.now()`."""
    began_at: float
    """In seconds since 1970 by ZooKeeper's clock."""
    taken_at: float
    """When it ended, by the same."""
    listed: bool
    """Whether all queues were found."""
    problem: str
    """Why this is not all; empty if it is."""
    over: frozenset[tuple[str, str]] = frozenset()
    """By key and name, operators' holds that are over: whoever wants the lock next ends them."""

    @property
    def complete(self) -> bool:
        """Whether all queues are among these."""
        return self.listed and self.total == len(self.queues)

    @property
    def lapsed(self) -> int:
        """How many queues there are with nobody in them but holds that are over."""
        keys = {key for key, _ in self.over if key in self.queues}
        return sum(all((key, child.name) in self.over for child in self.queues[key]) for key in keys)

    def held(self, key: str) -> tuple[int, ...]:
        """Return the places of those in a queue that have the lock, or a permit."""
        places = standing.held(self.queues[key], self.limits(key))
        return tuple(place for place in places if (key, self.queues[key][place].name) not in self.over)

    def limits(self, key: str) -> Limits:
        """Return by name how many permits those in a queue know of, where that counts."""
        queue = self.queues[key]
        if queue.limit is not None or not queue or queue[0].kind is not Kind.LEASE:
            return standing.UNKNOWN
        found = ((child.name, self.nodes.get((key, child.name))) for child in queue)
        return {name: own_limit(node.data) for name, node in found if node is not None}


def holds_over(nodes: Mapping[tuple[str, str], Node | None], passed: float) -> frozenset[tuple[str, str]]:
    """Return the key and name of each operator's hold that ended before a time of the server's clock."""
    found: set[tuple[str, str]] = set()
    for (key, name), node in nodes.items():
        if node is None or node.owner:  # first, as that is nearly all of them
            continue
        hold = read_hold(key, node)
        if hold is not None and hold.is_over(passed):
            found.add((key, name))
    return frozenset(found)
