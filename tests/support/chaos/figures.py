"""Measure a history: how many grants, how long, how far apart."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from support.chaos.fault_events import paused
from support.chaos.holds import Hold, earliest, time_of
from support.chaos.kinds import share
from support.chaos.reading import Run
from support.chaos.sharing import excludes


@dataclass(frozen=True, slots=True)
class Figures:
    """What a history measures; times in seconds, each tuple sorted."""

    grants: int
    refusals: int
    unknown: int
    """Calls that were interrupted, or whose process ended: nobody can say what became of them."""
    losses: int
    """Holds that ended because their holder was told of a loss."""
    handoffs: tuple[float, ...]
    """From a release to the grant of one who waited."""
    told: tuple[float, ...]
    """From a forced loss to the moment when the holder was told, or gave the lock back."""
    overlaps: tuple[float, ...]
    """For how long a holder continued, unaware, while the next one held: the risk of work without a fence."""
    overrun: float | None
    """The latest answer after its deadline; negative if each was before."""
    lost_updates: int
    """Of the counters without a fence: allowed, as no lock prevents them, and counted."""
    together: Mapping[str, int]
    """How many had a key at the same time, at most, by kind."""
    downgrades: int
    handed_on: int
    """Grants with the token of the owner before, in its process."""

    def __str__(self) -> str:
        parts = [f"{self.grants} grants, {self.refusals} refusals, {self.unknown} unknown, {self.losses} losses"]
        for name in ("handoffs", "told", "overlaps"):
            values: tuple[float, ...] = getattr(self, name)
            if values:
                parts.append(f"{name}: {len(values)}, median {statistics.median(values):.3f}, max {values[-1]:.3f} s")
        if self.lost_updates:
            parts.append(f"{self.lost_updates} updates without a fence lost")
        return "; ".join(parts)


def measure(run: Run) -> Figures:
    """Measure a run."""
    holds = [hold for of_key in run.holds.values() for hold in of_key]
    answered = [call for call in run.calls if call.answer is not None]
    refused = [call for call in answered if not call.granted]
    definite = [call for call in refused if (call.answer or {}).get("definite", True)]
    pauses = paused(run.nemesis)
    overruns = [
        (end := time_of(call.answer)) - call.deadline - pauses.within(call.process, call.start, end)
        for call in answered
        if call.answer is not None and call.deadline < math.inf
    ]
    return Figures(
        grants=len(holds),
        refusals=len(definite),
        unknown=len(run.calls) - len(answered) + len(refused) - len(definite),
        losses=sum(hold.lost is not None for hold in holds),
        handoffs=_sorted(_handoff(before, after) for before, after in _neighbours(run)),
        told=_sorted(_told(hold) for hold in holds),
        overlaps=_sorted(_overlap(run, before, after) for before, after in _neighbours(run)),
        overrun=max(overruns, default=None),
        lost_updates=_lost_updates(run),
        together=_together(run),
        downgrades=sum(len(hold.downgraded) for hold in holds),
        handed_on=sum(after.in_stay_of(before) for before, after in _neighbours(run)),
    )


def _sorted(values: Iterable[float | None]) -> tuple[float, ...]:
    return tuple(sorted(value for value in values if value is not None))


def _neighbours(run: Run) -> Sequence[tuple[Hold, Hold]]:
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


def _told(hold: Hold) -> float | None:
    if hold.force is None or not hold.forced_for_sure or hold.told is None:
        return None
    since = hold.force.start if hold.force.finished is None else hold.force.done
    return max(0.0, time_of(hold.told) - max(since, hold.granted))


def _overlap(run: Run, before: Hold, after: Hold) -> float | None:
    """How long the work went on after the next grant, whether or not it was entitled to."""
    died = run.ended(before.process, before.granted, math.inf)
    end = earliest(before.told, died)
    if end is None or not excludes(before, after) or time_of(end) <= after.granted:
        return None
    return time_of(end) - after.granted


def _lost_updates(run: Run) -> int:
    written: dict[str, list[int]] = defaultdict(list)
    for event in run.store:
        if event["e"] == "plain":
            written[event["key"]].append(int(event["value"]))
    return sum(len(values) - len(set(values)) for values in written.values())
