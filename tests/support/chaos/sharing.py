"""
Which contenders may hold a key together, and in what order; find where a history breaks this.

Readers share, permits share as far as their limit goes, and everything else excludes all. A writer that becomes a
reader keeps its hold, and excludes writers all along. Two facts are certain on one machine:

* Of permits that were claimed at the same moment, one was granted last, while all others were held. So at some moment
  between its call and its return the limit was as high as they are many; and so on for the others without it.
* The node of a hold was there from its creation to the end of the claim. A younger node that was
  granted the lock meanwhile came past it, whenever the older one was told.
"""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence

from support.chaos.holds import Event, Hold, time_of
from support.chaos.kinds import EXCLUSIVE, READ, SEMAPHORE, Limits, share
from support.chaos.reading import Run
from support.chaos.violations import Violation


def exclusion(run: Run) -> Iterator[Violation]:
    """No two owners claim one key at the same time unless both read; that one claim ends as the next begins is fine."""
    for key, holds in run.holds.items():
        active: list[Hold] = []
        for hold in holds:
            if not hold.claimed:
                continue
            active = [other for other in active if other.end > hold.granted]
            others = [other for other in active if excludes(other, hold)]
            other = max(others, key=lambda other: other.end, default=None)
            active.append(hold)
            if other is not None:
                message = (
                    f"{hold.owner} was granted the lock {other.end - hold.granted:.3f} s before"
                    f" the claim of {other.owner} ended"
                )
                yield Violation("exclusion", key, message, _proof(other, hold))


def excludes(earlier: Hold, hold: Hold) -> bool:
    """Tell whether a hold was granted as something that an earlier one, of somebody else, did not allow then."""
    return earlier.owner != hold.owner and not share(earlier.kind_at(hold.granted), hold.kind)


def _proof(before: Hold, after: Hold) -> tuple[Event, ...]:
    proof_events = [before.grant, before.stopped_by, before.told, after.grant, after.stopped_by]
    return tuple(event for event in proof_events if event is not None)


def permits(run: Run) -> Iterator[Violation]:
    """No more permits are claimed at a time than the limit allowed when the last of them was granted."""
    for key, holds in run.holds.items():
        limits = Limits(run.limits.get(key, ()))
        active: list[Hold] = []
        for hold in holds:
            if hold.kind != SEMAPHORE or not hold.claimed:
                continue
            active = [*(other for other in active if other.end > hold.granted), hold]
            seen = [limits.most(permit.first.limit, permit.start, permit.granted) for permit in active]
            if _too_many(seen) and not _too_many(seen[:-1]):
                message = (
                    f"{hold.owner} was granted one of {len(active)} permits, when there were {max(seen):g} at most"
                )
                proof = [hold.first.events[0], *(permit.grant for permit in active)]
                yield Violation("permits", key, message, tuple(proof))


def _too_many(limits: Sequence[float]) -> bool:
    """Tell whether holders that may each have seen such a limit cannot have been granted in any order."""
    return any(limit < index for index, limit in enumerate(sorted(limits), start=1))


def checked_in_vain(run: Run) -> Iterator[Violation]:
    """No check passes that began after somebody else was granted what excludes its holder."""
    for holds in run.holds.values():
        claimed = [hold for hold in holds if hold.claimed]
        for index, hold in enumerate(claimed):
            # What was taken by force was checked before the holder could know; how long, another rule says.
            if hold.force is not None or not hold.valids:
                continue
            last = time_of(hold.valids[-1])
            later = itertools.islice(claimed, index + 1, None)
            for other in later:
                if other.granted >= last:
                    break
                if excludes(hold, other):
                    yield _in_vain(hold, other)
                    break


def _in_vain(hold: Hold, other: Hold) -> Violation:
    late = [event for event in hold.valids if time_of(event) > other.granted]
    message = (
        f"check() passed for {hold.owner} {time_of(late[-1]) - other.granted:.3f} s after"
        f" {other.owner} was granted the lock, and {len(late)} times"
    )
    return Violation("check", hold.key, message, (hold.grant, other.grant, late[0], late[-1]))


def upgrades(run: Run) -> Iterator[Violation]:
    """No reader is granted the write side in addition: two readers that try would wait for each other for ever."""
    for key, holds in run.holds.items():
        for hold in holds:
            for call, grant in zip(hold.calls[1:], hold.grants[1:], strict=True):
                if call.kind in EXCLUSIVE and hold.kind_at(call.start) == READ:
                    yield Violation("upgrade", key, f"{hold.owner} read, and was let write", (hold.grant, grant))


def order(run: Run) -> Iterator[Violation]:
    """
    Of those who stand in each other's way, the one whose node was created first is granted the lock first.

    The number is that of the node which was granted, so one that gave up, or lost the session and queued again, is
    counted with none or with the later one. A permit may be granted before an older one is, as long as there is room
    for all that are older.
    """
    for key, holds in run.holds.items():
        limits = Limits(run.limits.get(key, ()))
        for epoch in epochs(run, holds):
            older: list[Hold] = []  # whose claims are certain, by their ends
            for hold in sorted((hold for hold in epoch if hold.claimed and created(hold)), key=created):
                ahead = older[bisect.bisect_right(older, hold.granted, key=_end) :]
                yield from _came_past(key, hold, ahead, limits)
                if hold.leased:
                    bisect.insort(older, hold, key=_end)


def _came_past(key: str, hold: Hold, ahead: Sequence[Hold], limits: Limits) -> Iterator[Violation]:
    """Find a waiter that this hold came past. Another rule judges those that were granted the lock by then."""
    waiting = [
        other for other in ahead if other.start < hold.granted < other.granted and created(other) < created(hold)
    ]
    past = next((other for other in waiting if excludes(other, hold)), None)
    if past is None and waiting and hold.kind == SEMAPHORE:
        permits = [other for other in ahead if other.kind == SEMAPHORE]
        if len(permits) >= limits.most(hold.first.limit, hold.start, hold.granted):
            past = next((other for other in waiting if other.kind == SEMAPHORE), None)
    if past is not None:
        message = f"{hold.owner} was granted the lock before {past.owner}, which had come first"
        yield Violation("order", key, message, (past.first.events[0], hold.first.events[0], hold.grant, past.grant))


def _end(hold: Hold) -> float:
    return hold.end


def created(hold: Hold) -> int:
    """Return the transaction that made the node, if that is known."""
    return int(hold.grant.get("czxid") or hold.token)


def epochs(run: Run, holds: Sequence[Hold]) -> Iterator[list[Hold]]:
    """Split the holds where the servers lost their memory: transaction ids begin again, which no lock can prevent."""
    wipes = [time_of(event) for event in run.nemesis if event["what"] == "wipe"]
    by_epoch: dict[int, list[Hold]] = defaultdict(list)
    for hold in holds:
        epoch = bisect.bisect(wipes, hold.granted)
        if epoch == bisect.bisect(wipes, hold.start):  # else it may be of either
            by_epoch[epoch].append(hold)
    yield from by_epoch.values()
