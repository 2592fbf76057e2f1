"""Check what must hold in every history: each rule yields violations. All are sound on a machine with one clock."""

from __future__ import annotations

import bisect
import itertools
import json
import math
from collections import Counter
from dataclasses import dataclass

from support.chaos.holds import LOCK, SEMAPHORE, WRITE, Call, Run, read_run, time_of

ROOM = 1.0  # seconds that an answer may take; promised
SHOWN = 4  # violations that are printed with their events
EXCLUSIVE = (LOCK, WRITE)


@dataclass(frozen=True, slots=True)
class Violation:
    rule: str
    key: str
    message: str
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    violations: tuple[Violation, ...]
    run: Run

    @property
    def ok(self):
        return not self.violations

    @property
    def rules(self):
        return frozenset(violation.rule for violation in self.violations)

    def short(self):
        counts = Counter(violation.rule for violation in self.violations)
        lines = [f"{dict(counts)}; in {len(self.run.events)} events"]
        for violation in self.violations[:SHOWN]:
            lines.append(f"[{violation.rule}] {violation.key}: {violation.message}")
            lines += [json.dumps(event) for call in violation.calls for event in call.events]
        return "\n".join(lines)

    def figures(self):
        holds = [hold for holds in self.run.holds.values() for hold in holds]
        return {
            "grants": len(holds),
            "losses": sum(hold.lost is not None for hold in holds),
            "handed on": sum(after.in_stay_of(before) for before, after in self._pairs()),
        }

    def together(self, kind):
        most = 0
        for holds in self.run.holds.values():
            of_kind = [hold for hold in holds if hold.kind == kind and hold.claimed]
            for hold in of_kind:
                most = max(most, sum(other.answered <= hold.answered < other.end for other in of_kind))
        return most

    def hand_offs(self):
        return [
            after.answered - time_of(before.release)
            for before, after in self._pairs()
            if before.release is not None and excludes(before, after)
            if before.lost is None and after.start < time_of(before.release) <= after.answered
        ]

    def _pairs(self):
        for holds in self.run.holds.values():
            yield from itertools.pairwise(holds)


def check_history(events, *, left=None):
    """Judge events in any order; `left` are the contenders, by key, that ZooKeeper has when all is quiet."""
    run = read_run(events)
    violations = [*exclusion(run), *permits(run), *tokens(run), *deadlines(run), *orphans(left or {})]
    return Verdict(tuple(violations), run)


def excludes(earlier, hold):
    """Tell whether a hold was granted as something that an earlier one, of somebody else, did not allow then."""
    kind = earlier.kind
    return earlier.owner != hold.owner and (kind != hold.kind or kind in EXCLUSIVE)


def exclusion(run):
    """No two owners claim one key at the same time unless both read; that one claim ends as the next begins is fine."""
    for key, holds in run.holds.items():
        active = []
        for hold in holds:
            active = [other for other in active if other.end > hold.answered]
            others = [other for other in active if excludes(other, hold)] if hold.claimed else []
            if others:
                other = max(others, key=lambda other: other.end)
                early = other.end - hold.answered
                message = f"{hold.owner} was granted the lock {early:.3f} s before the claim of {other.owner} ended"
                yield Violation("exclusion", key, message, (other, hold))
            active.append(hold)


def permits(run):
    """No more permits are claimed at a time than there are."""
    for key, holds in run.holds.items():
        active = []
        for hold in holds:
            if hold.kind == SEMAPHORE and hold.claimed:
                active = [*(other for other in active if other.end > hold.answered), hold]
                if len(active) > max(other.invoke["limit"] for other in active):
                    yield Violation("permits", key, f"{hold.owner} had one of {len(active)} permits", tuple(active))


def tokens(run):
    """
    Every grant of a key has a greater token than those before it that exclude it.

    It is certain which came first if both were claimed when they returned. While a lock lingers in a process, its
    owners there have the same token. If the servers lost their memory, tokens begin again, which no lock can prevent.
    """
    wipes = [time_of(event) for event in run.nemesis if event["what"] == "wipe"]
    for key, holds in run.holds.items():
        greatest = {}
        for hold in holds:
            epoch = bisect.bisect(wipes, hold.answered)
            if not (hold.token and hold.leased and hold.claimed) or epoch != bisect.bisect(wipes, hold.start):
                continue
            for (other_epoch, kind), other in greatest.items():
                apart = kind != hold.kind or kind in EXCLUSIVE
                if epoch == other_epoch and apart and other.token >= hold.token and not hold.in_stay_of(other):
                    message = f"{hold.owner} was granted the lock after {other.owner}, and its token is not greater"
                    yield Violation("tokens", key, message, (other, hold))
            before = greatest.setdefault((epoch, hold.kind), hold)
            greatest[epoch, hold.kind] = max(before, hold, key=lambda hold: hold.token)


def deadlines(run):
    """Each call of acquire is answered within its timeout and `ROOM` seconds, the pauses of its process left out."""
    stop = time_of(run.events[-1]) if run.events else 0.0
    for call in run.calls:
        answered = min(call.answered, stop)
        if call.deadline == math.inf or answered <= call.deadline + ROOM:
            continue
        overrun = answered - call.deadline - run.paused(call.process, call.start, answered)
        if overrun > ROOM and not run.ended(call.process, call.start, answered - overrun + ROOM):
            message = f"{call.owner} had no answer {overrun:.3f} s after its deadline"
            yield Violation("deadline", call.key, message, (call,))


def orphans(left):
    """No contender is left in ZooKeeper that no live process answers for."""
    for key, names in left.items():
        if names:
            yield Violation("orphan", key, f"nobody answers for {', '.join(sorted(names))}")
