"""Semaphores of other clients: where their parts are, from the path of the semaphore on."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from django_zklock.exceptions import UnreadableQueue
from django_zklock.queue.nodes import Child, Kind, Payload, parse
from django_zklock.queue.segments import SEQUENCE_TAIL


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


GATED: Final = frozenset(_RECIPES)
"""The layouts in which a semaphore has a gate."""
CURATOR: Final = _RECIPES["curator"]
KAZOO: Final = _RECIPES["kazoo"]

_OF_CURATOR: Final = frozenset({CURATOR.gate[1:], CURATOR.leases[1:]})
_UUID: Final = re.compile(r"[0-9a-f]{32}")


def may_be_curators(names: Collection[str]) -> bool:
    """Tell whether a directory with these children looks like a semaphore of Curator's; an empty part may be gone."""
    return not _OF_CURATOR.isdisjoint(names)


def posted_limit(data: bytes) -> int | None:
    """Return the limit that kazoo's semaphores write into their directory, or None if these data are none."""
    return int(data) if data.isdigit() and len(data) < 10 else None


def is_bare(name: str) -> bool:
    """Tell whether the name of a child may be that of a permit of kazoo's, which has no number."""
    return _UUID.fullmatch(name) is not None


def permits(names: Collection[str]) -> list[str]:
    """Return those children of a directory of permits that are permits; keys may be nested below it, and signs."""
    return [name for name in names if is_bare(name) or SEQUENCE_TAIL.search(name)]


def witness(names: Collection[str]) -> str:
    """
    Return the name of the one who tells whether a directory that looks like that of a recipe's permits is that still.

    kazoo's limit stays there when all processes have moved to another recipe, and the names of Curator's parts may be
    anybody's keys. So it is the newest of ours, or whoever wants something else than a permit; empty if nobody speaks
    against it.
    """
    found = [child for name in names if not is_bare(name) and (child := _parsed(name)) is not None]
    others = [child for child in found if child.kind is not Kind.LEASE]
    ours = [child for child in found if child.by_us]
    return max(others or ours, key=lambda child: child.sequence).name if others or ours else ""


def testifies(data: bytes, layout: str) -> bool:
    """Tell whether a witness with these data wants a permit by the recipe of this layout."""
    payload = Payload.decode(data)
    return payload is not None and payload.layout == layout


def _parsed(name: str) -> Child | None:
    try:
        return parse(name)
    except UnreadableQueue:
        return None
