"""Whose turn it is: from the queue and one's own place in it to a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from django_zklock.queue import guids
from django_zklock.queue.guids import Mark
from django_zklock.queue.nodes import Child


@dataclass(frozen=True, slots=True)
class Granted:
    """The lock is ours."""


@dataclass(frozen=True, slots=True)
class WaitFor:
    """
    It is not our turn before `child` is gone.

    `alone` says that nobody else is in the way. Then its deletion grants the lock without another look at the queue:
    sequence numbers only rise, so nobody can have come in between. It is never said of one whose node may be replaced
    by another in its place (`Mark.RESTS`).
    """

    child: str
    alone: bool


@dataclass(frozen=True, slots=True)
class Absent:
    """We are not in the queue: the own node was never made, or is gone with its session or by somebody's hand."""


Verdict: TypeAlias = Granted | WaitFor | Absent


class Rule(Protocol):
    """
    What makes a kind of lock: it reads the queue and never acts.

    `queue` is in the order `order.ordered` gives it, and `me` the name of the own child.
    """

    def __call__(self, queue: Sequence[Child], me: str, /) -> Verdict:
        """Return what the contender `me` has to do."""
        ...


def exclusive(queue: Sequence[Child], me: str, /) -> Verdict:
    """
    Grant the lock to the first in the queue; everyone else waits for the one just ahead, and wakes alone.

    A missing own node is a verdict of its own. Taken for an index, "not found" is -1, which is ahead of everyone:
    that granted Curator's locks twice (CURATOR-211, CURATOR-307).
    """
    place = next((index for index, child in enumerate(queue) if child.name == me), None)
    if place is None:
        return Absent()
    if place == 0:
        return Granted()
    ahead = queue[place - 1]
    return WaitFor(ahead.name, alone=place == 1 and guids.mark_of(ahead.guid) is not Mark.RESTS)
