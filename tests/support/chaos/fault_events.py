"""
Which faults the processes of a history suffered, and which of them ended a hold.

The driver writes each fault just before it happens, as a `nemesis` event with `what`, and mostly with a `target`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from support.chaos.holds import Event, Hold, time_of

FORCES: Final = frozenset({"expire", "delete", "wipe"})
"""Faults that take locks away, which no lock can prevent. `"forced": true` makes any other nemesis one."""
ENDS: Final = frozenset({"kill", "terminate", "dismiss", "exit"})
"""
Faults that end a process. All but `kill` let it close its session, so that its locks are free at once. So does a
`kill` that says `"given_back": true`: the session belongs to another process, which releases the locks of the dead one.
"""
BLINDS: Final = frozenset(
    {"blackhole", "cut", "cut off", "delay", "fork", "half-open", "hang", "kill server", "lose", "outage", "partition"}
    | {"pause server", "refuse", "sleep", "slow disks", "stall"}
)
"""Faults that may keep a forced loss from a process until a `heal`. Without a target, they concern all processes."""
BLIND: Final = 10.0  # seconds that such a fault lasts if nobody wrote down its end
RECONNECTED: Final = 2.0  # seconds from its end until there are news again
SETTLED: Final = 1.0  # seconds from a forced loss to the moment when its holder knows
SLOWEST: Final = 10.0  # seconds that the driver takes to expire a session, at most


@dataclass(slots=True, eq=False)
class Force:
    """Something that takes locks away: at some moment from `start` to `done`, which is late if nobody wrote it down."""

    event: Event
    next: Event | None  # that the driver wrote, when this was done
    finished: Event | None = None  # the event that says when it was done

    @property
    def start(self) -> float:
        return time_of(self.event)

    @property
    def done(self) -> float:
        if self.finished is not None:
            return time_of(self.finished)
        if self.event["what"] == "delete":
            return self.start + SETTLED
        return min(self.start + SLOWEST, math.inf if self.next is None else time_of(self.next))

    @property
    def felt(self) -> float:
        """From when on the victim has time to notice; a delete is done at once."""
        return self.start if self.event["what"] == "delete" and self.finished is None else self.done


class Spans:
    """When something was the matter with processes; under None, with all of them."""

    def __init__(self) -> None:
        self._spans: dict[str | None, list[tuple[float, float]]] = defaultdict(list)

    def add(self, process: str | None, start: float, end: float) -> None:
        self._spans[process].append((start, end))

    def within(self, process: str, start: float, end: float) -> float:
        """Return how many seconds of this interval it was."""
        spans = sorted([*self._spans.get(process, ()), *self._spans.get(None, ())])
        total, covered = 0.0, start
        for begun, ended in spans:
            total += max(0.0, min(ended, end) - max(begun, covered))
            covered = max(covered, ended)
        return total


def paused(nemesis: Sequence[Event]) -> Spans:
    """When processes were stopped where they were."""
    spans, since = Spans(), dict[str, float]()
    for event in nemesis:
        target = event.get("target")
        if target is not None and event["what"] == "pause":
            since.setdefault(target, time_of(event))
        elif target in since and event["what"] == "resume":
            spans.add(target, since.pop(target), time_of(event))
    for target, start in since.items():
        spans.add(target, start, math.inf)
    return spans


def blinded(nemesis: Sequence[Event]) -> Spans:
    """When processes may have heard nothing."""
    spans = Spans()
    for index, event in enumerate(nemesis):
        if event["what"] in BLINDS:
            target, start = event.get("target"), time_of(event)
            ends = (e for e in nemesis[index:] if e["what"] == "heal" and e.get("target") in (None, target))
            healed = next((time_of(end) + RECONNECTED for end in ends), start + BLIND)
            spans.add(target, start, healed)
    return spans


def settle(holds: Iterable[Hold], nemesis: Sequence[Event]) -> None:
    """Find for each hold what took it away by force, or ended its process, and so the end of its claim."""
    forces = _forces(nemesis)
    exits = [event for event in nemesis if event["what"] in ENDS and not _is_sudden(event)]
    pauses = paused(nemesis)
    for hold in holds:
        _end_claim(hold)
        for event in exits:
            _apply_exit(event, hold)
        for force in forces:
            if hold.force is None:
                _apply_force(force, hold, pauses)


def _forces(nemesis: Sequence[Event]) -> list[Force]:
    forces: list[Force] = []
    for index, event in enumerate(nemesis):
        if event["what"] in FORCES or event.get("forced"):
            forces.append(Force(event, nemesis[index + 1] if index + 1 < len(nemesis) else None))
        elif event["what"] == "done":
            same = [force for force in forces if force.event["what"] == event.get("of") and _same_victim(force, event)]
            if same:
                same[-1].finished = event
    return forces


def _same_victim(force: Force, event: Event) -> bool:
    return all(force.event.get(name) == event[name] for name in ("target", "key", "token") if name in event)


def _is_sudden(event: Event) -> bool:
    """Whether nothing was given back, so that the leases of the process go on as if it lived."""
    return not event.get("given_back") and event["what"] == "kill" and event.get("signal", 9) in (9, "KILL", "SIGKILL")


def _end_claim(hold: Hold) -> None:
    """Set the end as far as the holder itself says: by its release, by what it was told, by its last claim."""
    notified = hold.told
    if hold.leased:
        last = max(hold.claims, key=lambda event: float(event.get("until") or 0.0))
        hold.end, hold.stopped_by = hold.trusted_until, last
        if notified is not None and time_of(notified) < hold.end:
            hold.end, hold.stopped_by = time_of(notified), notified
    elif notified is not None and notified is hold.release:
        hold.end, hold.stopped_by = time_of(notified), notified
    else:
        # Without a lease a silence says nothing: held as long as somebody asked, and was told so.
        hold.end, hold.stopped_by = hold.proven, hold.valids[-1] if hold.valids else hold.grant


def _apply_exit(event: Event, hold: Hold) -> None:
    moment = time_of(event)
    if event.get("target") == hold.process and hold.start <= moment < hold.end:
        hold.end, hold.stopped_by, hold.ended = max(moment, hold.proven), event, event


def _apply_force(force: Force, hold: Hold, pauses: Spans) -> None:
    meant = _meant_for(force, hold)
    if meant is False or force.start >= hold.end or force.done < hold.start:
        return
    by_name = force.event["what"] == "delete" and meant is True
    sure = meant is True and (by_name or hold.granted <= force.start)
    if not sure:
        # It came while acquire was under way, and may have hit an attempt before the one that succeeded. A hold that is
        # still claimed long after was not hit.
        settled = force.done + SETTLED
        settled += pauses.within(hold.process, force.start, max(settled, hold.granted))
        if max(hold.granted, hold.proven) > settled:
            return
    hold.force, hold.forced_for_sure = force, sure
    hold.end, hold.stopped_by = force.start, force.event


def _meant_for(force: Force, hold: Hold) -> bool | None:
    """Tell whether it took this hold away, if it was one at the time; None: perhaps."""
    event = force.event
    if event.get("target") not in (None, hold.process) or event.get("key") not in (None, hold.key):
        return False
    if event["what"] != "delete":
        return True
    # One node: that of a waiter, unless its number says that it is this hold's.
    if event.get("token") and hold.token:
        return bool(event["token"] == hold.token)
    return None
