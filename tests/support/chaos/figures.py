"""Measure a history: how many grants, how long, how far apart."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from support.chaos.holds import Hold, time_of
from support.chaos.kinds import share
from support.chaos.reading import Run


@dataclass(frozen=True, slots=True)
class Figures:
    """Measured values of a history."""

    grants: int
    refusals: int
    losses: int
    """Holds that ended because their holder was told of a loss."""
    handoffs: tuple[float, ...]
    """Seconds from a release to the grant of one who waited, sorted."""
    together: Mapping[str, int]
    """How many had a key at the same time, at most, by kind."""
    downgrades: int
    handed_on: int
    """Grants with the token of the owner before, in its process."""


def measure(run: Run) -> Figures:
    """Measure a run."""
    holds = [hold for of_key in run.holds.values() for hold in of_key]
    handoffs = (_handoff(before, after) for before, after in _successive(run))
    return Figures(
        grants=len(holds),
        refusals=sum(
            call.answer is not None and not call.granted and call.answer.get("definite", True) for call in run.calls
        ),
        losses=sum(hold.lost is not None for hold in holds),
        handoffs=tuple(sorted(seconds for seconds in handoffs if seconds is not None)),
        together=_together(run),
        downgrades=sum(len(hold.downgraded) for hold in holds),
        handed_on=sum(after.in_stay_of(before) for before, after in _successive(run)),
    )


def _successive(run: Run) -> Sequence[tuple[Hold, Hold]]:
    return [pair for holds in run.holds.values() for pair in itertools.pairwise(holds)]


def _together(run: Run) -> dict[str, int]:
    most: dict[str, int] = {}
    for holds in run.holds.values():
        active: list[Hold] = []
        for hold in holds:
            if hold.claimed:
                active = [*(other for other in active if other.end > hold.granted), hold]
                kinds = Counter(other.kind_at(hold.granted) for other in active)
                most |= {kind: max(count, most.get(kind, 0)) for kind, count in kinds.items()}
    return most


def _handoff(before: Hold, after: Hold) -> float | None:
    release = before.release
    if share(before.kind_at(after.granted), after.kind):
        return None
    if release is None or before.lost is not None or not after.start < time_of(release) <= after.granted:
        return None
    return after.granted - time_of(release)
