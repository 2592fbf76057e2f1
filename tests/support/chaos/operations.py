"""
Read a history as operations on a lock, each of which took effect between its call and its return.

A loss is an operation, too: the owner holds the lock no more, however often it took it. Where a model that took the
history at its word would raise false alarms, the operations are made wider:

* Nobody knows when a lock was lost, only when the last check that passed began and when the holder was told. The loss
  was at any moment between; one of which nobody was told, at any moment since, or never.
* A holder may find its lease over and release the lock nevertheless, as one that was paused does. If the lease was
  over by the release, the hold ended at any moment between.
* A release that failed, or whose process was killed, may or may not have been; so may an acquire that was interrupted.
  To such a one belongs a loss that may have been at any time, as its contender is cleared away some time.
* A hold whose owner was granted the lock again, not reentrantly, had ended by then, if it was no permit.
* An inner level that was taken or released near a loss may have found nothing; it is left out, as a loss ends all.
* A fence of 0 is "unknown". Fences of before and after the servers lost their memory cannot be compared: do not feed
  such a history to a fenced model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from support.chaos.holds import Call, Event, Hold, time_of
from support.chaos.kinds import LOCK, SEMAPHORE
from support.chaos.reading import read_run

Kind: TypeAlias = Literal["acquire", "release", "lose", "downgrade", "limit"]


@dataclass(frozen=True, slots=True)
class Op:
    """One operation on a lock, which took effect at one moment from `call` to `back`."""

    kind: Kind
    owner: str
    call: float
    back: float = math.inf
    certain: bool = True
    """Whether it did take effect; if not, it may have, at any time since `call`, or never."""
    fence: int = 0
    key: str = ""
    hold: int = 0
    """Which hold of the history it belongs to."""
    mode: str = LOCK
    """What was taken, or given back."""
    limit: int = 0
    """Permits: that the contender brings along, or that are set for all; 0: none."""

    def __str__(self) -> str:
        fence = f" fence={self.fence}" if self.fence else ""
        mode = "" if self.mode == LOCK else f" {self.mode}"
        mode += f" limit={self.limit}" if self.limit else ""
        return f"{self.owner} {self.kind}{mode}{fence}{'' if self.certain else ' (perhaps)'}"


def operations(events: Sequence[Event], *, reentrant: bool = True) -> list[Op]:
    """Return the operations of a history; without the inner levels, for a model that knows none."""
    run = read_run(events)
    found: list[Op] = []
    for holds in run.holds.values():
        next_grants = _next_grants(holds)
        for number, hold in enumerate(holds):
            found += _of_hold(hold, number, next_grants.get(number, math.inf), reentrant)
    for number, call in enumerate(run.calls):
        if not call.granted and _unknown(call):
            # It may have been granted, and cleared away: two more operations that may have been, or not.
            acquire = _acquire(call, -1 - number)
            found += [acquire, replace(acquire, kind="lose")]
    for key, changes in run.limits.items():
        for change in changes:
            if change.call < math.inf:
                found.append(
                    Op("limit", "all", change.call, change.back, change.certain, key=key, limit=change.limit or 0)
                )
    return sorted(found, key=lambda op: op.call)


def _acquire(call: Call, hold: int) -> Op:
    limit = 0 if call.limit == math.inf else int(call.limit)
    return Op("acquire", call.owner, call.start, certain=False, key=call.key, hold=hold, mode=call.kind, limit=limit)


def _unknown(call: Call) -> bool:
    return call.answer is None or not call.answer.get("definite", True)


def _next_grants(holds: Sequence[Hold]) -> dict[int, float]:
    """Return when the owner of each hold had the next one of the same key."""
    later: dict[str, float] = {}
    found: dict[int, float] = {}
    for number in range(len(holds) - 1, -1, -1):
        hold = holds[number]
        if hold.owner in later and hold.kind != SEMAPHORE:
            found[number] = later[hold.owner]
        later[hold.owner] = hold.granted
    return found


def _of_hold(hold: Hold, number: int, next_grant: float, reentrant: bool) -> Iterator[Op]:
    """Yield what became of one hold; `next_grant` is when its owner had the next one."""
    base = replace(_acquire(hold.first, number), back=hold.granted, certain=True, fence=hold.token)
    yield base
    since, by = _loss(hold)
    if reentrant:
        yield from _inner(hold, base, since)
    yield from _downgrades(hold, base, since)
    if since < math.inf:
        by = min(by, next_grant)
        kind: Kind = "lose"
    else:
        since, by = _time(hold.release), _time(hold.released)
        kind = "release" if reentrant and all(map(_succeeded, hold.answers)) else "lose"
    back = by if by == math.inf else max(since, by, hold.granted)
    mode = _mode(hold, hold.release) if kind == "release" else hold.kind
    yield replace(base, kind=kind, call=since, back=back, certain=back < math.inf, fence=0, mode=mode, limit=0)


def _inner(hold: Hold, base: Op, since: float) -> Iterator[Op]:
    for call, grant in zip(hold.calls[1:], hold.grants[1:], strict=True):
        if time_of(grant) < since:
            yield replace(
                base, call=call.start, back=time_of(grant), fence=int(grant.get("token") or 0), mode=call.kind
            )
    for release, answer in zip(hold.releases[: len(hold.grants) - 1], hold.answers, strict=False):
        if time_of(answer) < since and _succeeded(answer):
            mode = _mode(hold, release)
            yield replace(
                base, kind="release", call=time_of(release), back=time_of(answer), fence=0, mode=mode, limit=0
            )


def _mode(hold: Hold, release: Event | None) -> str:
    """Return what the level was that this release gives back."""
    op = release.get("op") if release is not None else None
    return next((call.kind for call in hold.calls if call.events[0].get("op") == op), hold.kind)


def _downgrades(hold: Hold, base: Op, since: float) -> Iterator[Op]:
    answers = [*map(time_of, hold.downgraded), *[math.inf] * len(hold.downgrades)]
    for event, back in zip(hold.downgrades, answers, strict=False):
        if time_of(event) < since:
            certain = back < since
            answered = back if certain else math.inf
            yield replace(base, kind="downgrade", call=time_of(event), back=answered, certain=certain, fence=0)


def _loss(hold: Hold) -> tuple[float, float]:
    """Return from when to when the hold was lost: from infinity, if it was given back as it should be."""
    release, told = _time(hold.release), _time(hold.lost)
    released = _time(hold.released if hold.released is not None and _succeeded(hold.released) else None)
    gone = min(told, released)
    if hold.force is not None:
        return max(hold.start, hold.force.start), gone
    if hold.ended is not None:
        return max(hold.start, min(hold.proven, time_of(hold.ended))), gone
    if hold.leased and hold.trusted_until < release < math.inf and told == math.inf:
        return max(hold.start, hold.trusted_until), gone
    if gone == released < math.inf and told == math.inf:
        return math.inf, math.inf
    return min(hold.proven, release), gone


def _succeeded(answer: Event) -> bool:
    return bool(answer["e"] == "released")


def _time(event: Event | None) -> float:
    return math.inf if event is None else time_of(event)
