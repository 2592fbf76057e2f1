"""
Knows which directories are the two parts of one semaphore with a gate (`queue.recipes`), and who has a permit there.

The gate is a queue, and looks like that of a lock; the permits lie in another directory. Their keys do not tell, as
anybody may have a lock `x/locks` and a semaphore `x/leases`. It is one if those in it say so, or the limit at its path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from django_zklock.locks.protocol.leases import has_to_wait
from django_zklock.queue.nodes import Payload
from django_zklock.queue.order import Queue
from django_zklock.zk.gateway import Node

Nodes: TypeAlias = Mapping[tuple[str, str], Node | None]


@dataclass(frozen=True, slots=True)
class Pool:
    """One semaphore of this kind."""

    layout: str
    gate: str
    """The key of the gate's directory."""
    leases: str
    """The key of the directory in which the permits are."""
    limit: int | None = None
    """How many there are, if that is written at its path."""


def confirmed(pools: Mapping[str, Pool], queues: Mapping[str, Queue], nodes: Nodes) -> dict[str, Pool]:
    """Return those of the supposed semaphores, by key, that are some as far as those in them tell."""
    return {key: pool for key, pool in pools.items() if _is_pool(key, pool, queues, nodes)}


def apart(pools: Mapping[str, Pool], queues: Mapping[str, Queue]) -> int:
    """Return how many of the semaphores are two of the queues each, and not one."""
    return sum(pool.gate in queues and pool.leases in queues for pool in pools.values())


def passing(pool: Pool, queues: Mapping[str, Queue], nodes: Nodes) -> int | None:
    """Return the place among the permits of the one that waits for its turn there already; None if there is none."""
    gate, leases = queues.get(pool.gate, Queue()), queues.get(pool.leases, Queue())
    if not gate or not leases:
        return None
    first, last = nodes.get((pool.gate, gate[0].name)), nodes.get((pool.leases, leases[-1].name))
    if first is None or last is None or not has_to_wait(leases, last, first):
        return None
    return len(leases) - 1


def _is_pool(key: str, pool: Pool, queues: Mapping[str, Queue], nodes: Nodes) -> bool:
    parts = [part for part in (pool.gate, pool.leases) if part in queues]
    if not parts or (key in queues and key not in parts):
        return False
    if pool.limit is not None:
        return True
    found = ((child, nodes.get((part, child.name))) for part in parts for child in queues[part])
    told = [Payload.decode(node.data) for child, node in found if node is not None and child.by_us]
    layouts = {each.layout for each in told if each is not None}
    # A permit that Curator has made can be nothing else; of its gate there may be no more to see than of a lock.
    strange = any(child.by_curator for child in queues.get(pool.leases, ()))
    return layouts <= {pool.layout} and (bool(layouts) or strange)
