"""Knows how to look at every contender in every queue, once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from django_zklock.execution.waiters import ThreadWaiter
from django_zklock.inspection.found import Found
from django_zklock.inspection.walk import Extent, Walk
from django_zklock.locks.looking import Contending
from django_zklock.queue.nodes import Payload
from django_zklock.zk import process

SLACK = 0.25  # seconds beyond one's patience, for a busy process


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found in all queues."""

    queues: Mapping[str, tuple[Contending, ...]]
    """By key, the contenders in their order; without operators' holds that are over."""
    held_by: Mapping[str, frozenset[str]]
    """By key, the names of those who hold it: several if they read, or have permits."""
    problem: str
    """Why there may be more; empty if this is all."""


def survey(patience: float) -> Survey:
    """
    Look at every queue, for at most `patience` seconds; return what was found by then.

    One list for each key and one read for each contender. The queues are looked at side by side, so this is no
    picture of one moment. Never raises because ZooKeeper is away; the survey says so.
    """
    session = process.current()
    waiter: ThreadWaiter[Found] = ThreadWaiter()
    walk = Walk(session, Extent(None, None), patience, waiter.set)
    session.post(walk.begin)
    found = waiter.wait(patience + SLACK)
    if found is None:
        return Survey({}, {}, session.explain())
    queues: dict[str, tuple[Contending, ...]] = {}
    held_by: dict[str, frozenset[str]] = {}
    for key, queue in found.queues.items():
        names = [child.name for child in queue if (key, child.name) not in found.over]
        if names:
            queues[key] = tuple(Contending(name, _payload(found, key, name)) for name in names)
            held_by[key] = frozenset(queue[place].name for place in found.held(key))
    odd = [f"{key}: {why}" for key, (_, why) in found.unreadable.items()] + list(found.notes)
    return Survey(queues, held_by, found.problem or "; ".join(odd))


def _payload(found: Found, key: str, name: str) -> Payload | None:
    node = found.nodes.get((key, name))
    return None if node is None else Payload.decode(node.data)
