"""
Find where a process that keeps a lock for its own next owners (`linger`) is unfair, to one of them or to the others.

All holds of one stay have the same token. When exactly a caller lines up is in no history: `SURE` seconds after its
call, pauses left out, it has.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from support.chaos.fault_events import paused
from support.chaos.holds import Call, Hold, time_of
from support.chaos.reading import Run
from support.chaos.violations import Violation

SURE = 1.0  # seconds after which a caller has lined up, and its process knows of it


def stays(run: Run) -> Iterator[list[Hold]]:
    """Return the holds of each stay, in the order of their grants."""
    for holds in run.holds.values():
        by_stay: dict[tuple[str, int], list[Hold]] = defaultdict(list)
        for hold in holds:
            if hold.token and hold.first.linger:
                by_stay[hold.process, hold.token].append(hold)
        yield from by_stay.values()


def overtaken(run: Run) -> Iterator[Violation]:
    """Of those who wait in one process, the one that came first is granted the lock first."""
    pauses = paused(run.nemesis)
    for stay in stays(run):
        late = stay[0]  # the one of those before that came last
        for hold in stay[1:]:
            ahead = late.start - hold.start
            if ahead > SURE and ahead - pauses.within(hold.process, hold.start, late.start) > SURE:
                message = f"{late.owner} was granted the lock before {hold.owner}, which had come {ahead:.3f} s before"
                calls = hold.first.events[0], late.first.events[0], late.grant, hold.grant
                yield Violation("overtaken", hold.key, message, calls)
            late = max(late, hold, key=lambda earlier: earlier.start)


def kept_too_long(run: Run) -> Iterator[Violation]:
    """While there was no fault yet, nobody in another process waits for more than `linger`, one hold and a second."""
    quiet = min((time_of(event) for event in run.nemesis), default=math.inf)
    for stay in stays(run):
        for before, hold in pairwise(stay):
            release = before.release
            if release is None or hold.granted >= quiet:
                continue
            known = time_of(release) - SURE  # the process knows of all that wait by then
            if known > stay[0].granted + before.first.linger:
                waiting = _waits(run, hold, known)
                if waiting is not None:
                    message = f"{hold.owner} was granted the lock while {waiting.owner} had waited for its time to end"
                    events = waiting.events[0], stay[0].grant, release, hold.grant
                    yield Violation("kept", hold.key, message, events)


def _waits(run: Run, hold: Hold, since: float) -> Call | None:
    """Return a call of another process that waited from then on until this hold was granted."""
    for call in run.calls:
        if call.key == hold.key and call.process != hold.process and call.start < since:
            answered = run.stop if call.answer is None else time_of(call.answer)
            if min(answered, call.deadline) > hold.granted:
                return call
    return None
