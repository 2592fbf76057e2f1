"""Semaphores of other clients: where their parts are, from the path of the semaphore on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from django_zklock.queue.nodes import Kind


@dataclass(frozen=True, slots=True)
class Recipe:
    """A semaphore with a gate: a lock that who wants a permit takes first."""

    gate: str
    """What is added to the path of the semaphore for that of the gate."""
    leases: str
    """The same for the directory in which each permit has a node."""
    posted: bool
    """Whether the limit is written into the node at the path of the semaphore."""


_RECIPES: Final = {
    "curator": Recipe(gate="/locks", leases="/leases", posted=False),
    "kazoo": Recipe(gate="-__lock__", leases="", posted=True),
}


def recipe_of(kind: Kind, layout: str) -> Recipe | None:
    """Return the recipe by which a contender of this kind does it in this layout, or None: then there is no gate."""
    return _RECIPES.get(layout) if kind is Kind.LEASE else None
