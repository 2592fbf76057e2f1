"""
Knows where those are who hold a lock, for who steps in from outside: in its queue, or behind the gate of a semaphore.

The permits of a semaphore with a gate (`queue.recipes`) are not in the queue of its key. All that are there are held,
but that of the first at the gate, which may have to wait yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django_zklock.locks.errand import Errand
from django_zklock.queue import order, recipes, standing
from django_zklock.queue.nodes import Child, Payload
from django_zklock.queue.order import Queue
from django_zklock.queue.recipes import Recipe
from django_zklock.queue.segments import SEQUENCE_TAIL
from django_zklock.zk.gateway import DirectoryState, Node
from django_zklock.zk.requests import Done, Step


@dataclass(frozen=True, slots=True)
class Ranks:
    """Those among whom the holders are."""

    errand: Errand
    """For the directory in which they are."""
    queue: Queue
    gate: Errand | None = None
    """For the directory of the gate, if there is one."""

    def held(self) -> tuple[Child, ...]:
        """Return those who hold the lock. Raises `ZooKeeperUnavailable`."""
        if self.gate is None:
            return tuple(self.queue[place] for place in standing.held(self.queue, self.errand.limits_in(self.queue)))
        waiting = self._waiting(self.gate)
        return tuple(child for child in self.queue if child.name != waiting)

    def may_hold(self, child: Child, node: Node) -> bool:
        """Tell whether nobody can tell if one that has no permit by the rule has one. Raises likewise."""
        place = self.queue.place(child.name)
        if self.gate is not None or place is None or self.queue.sign is None or self.queue.sign.sure:
            return False
        sign = self.errand.read(self.queue.sign.name)
        return sign is not None and standing.may_hold(self.queue, place, node.czxid, sign.czxid)

    def _waiting(self, gate: Errand) -> str:
        """Return the name of the permit that waits for its turn; empty if none does."""
        at_gate = order.ordered(_contending(gate.follow(family)))
        first = gate.read(at_gate[0].name) if at_gate else None
        if first is None:
            return ""
        last = self.errand.read(self.queue[-1].name) if self.queue else None
        return last.name if last is not None and has_to_wait(self.queue, last, first) else ""


def has_to_wait(leases: Queue, last: Node, first: Node) -> bool:
    """
    Tell whether the last of the permits is that of the first at the gate, and waits for its turn.

    Nobody else can wait there, as the first leaves the gate when it has its turn. kazoo's clients make none before
    that, and theirs have no number.
    """
    told = Payload.decode(last.data)
    beyond = told is None or not told.limit or len(leases) > told.limit
    return beyond and leases[-1].sequence >= 0 and last.owner == first.owner and last.czxid > first.czxid


def ranks(errand: Errand) -> Ranks:
    """Return where the holders of a lock are. Raises `UnreadableQueue` and `ZooKeeperUnavailable`."""
    found: DirectoryState | None = errand.follow(family)
    kazoos = _permits(errand, "kazoo", found)
    if kazoos is not None:
        return _behind_gate(errand, recipes.KAZOO, kazoos)
    queue = order.ordered(() if found is None else found.children)
    if not queue and found is not None and recipes.may_be_curators(found.children):
        curators = _curators(errand)
        if curators is not None:
            return _behind_gate(errand, recipes.CURATOR, curators)
    return Ranks(errand, queue)


def has_gate(errand: Errand) -> bool:
    """Tell whether a lock is a semaphore of kazoo's that somebody has a permit of. Raises `ZooKeeperUnavailable`."""
    return bool(_permits(errand, "kazoo", errand.follow(family)))


def layout_of(errand: Errand) -> str:
    """
    Return the layout of the semaphore with a gate that is found there; empty if there is none to be seen.

    kazoo's is known by the limit at its path, also while nobody has a permit. Raises `ZooKeeperUnavailable`.
    """
    found: DirectoryState | None = errand.follow(family)
    if _permits(errand, "kazoo", found) is not None:
        return "kazoo"
    if found is None or not recipes.may_be_curators(found.children):
        return ""
    return "curator" if _curators(errand) else ""


def family(found: DirectoryState | None, session_id: int) -> Step:
    """Answer with all there is to see of a directory; a plan."""
    return Done(found)


def _curators(errand: Errand) -> list[str] | None:
    there = errand.at(recipes.CURATOR.leases)
    return _permits(there, "curator", there.follow(family))


def _permits(errand: Errand, layout: str, found: DirectoryState | None) -> list[str] | None:
    """Return the permits in a directory, or None if it is, as far as one can tell, none of that layout's permits."""
    while True:
        if layout == "kazoo" and (found is None or recipes.posted_limit(found.data) is None):
            return None
        names = found.children if found is not None else ()
        witness = recipes.witness(names)
        node = errand.read(witness) if witness else None
        if node is not None and not recipes.testifies(node.data, layout):
            return None
        if node is not None or not witness:
            return recipes.permits(names)
        found = errand.follow(family)  # it has left just now


def _behind_gate(errand: Errand, recipe: Recipe, permits: list[str]) -> Ranks:
    return Ranks(errand.at(recipe.leases), order.leases(permits), errand.at(recipe.gate))


def _contending(found: Any) -> list[str]:
    return [name for name in (found.children if found is not None else ()) if SEQUENCE_TAIL.search(name)]
