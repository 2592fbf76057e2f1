"""
Check what must hold in every history, and show where it does not.

Each rule is a function that reads a run and yields violations. All are sound on one machine, whose processes share a
clock: what may have happened in an allowed order is taken to have. Where that matters, and what would be a false
alarm:

* A grant that was written down late (its process was paused) may be over by then: its lease says so, and it is no
  claim.
* A fault is written down before it is done, and done by the next nemesis event at the latest; one with `what` "done",
  `of` and the same `target` says it best. A grant that came meanwhile may have been taken away with it: it is a claim
  if its holder still trusts it a second later.
* A lease ends when its holder learns of a loss, and a `lost` has to be written down before the lock is given back:
  written afterwards, the next holder would seem to have been too early.
* SIGKILL gives nothing back, so the lease of a killed process goes on, unless another process has its session; one that
  was asked to end closes its session.
* The tokens of two grants say nothing against the lock unless it is certain which came first: a grant lies anywhere
  between the call and its return. It is certain where one returned before the other was called, and where each proves
  by its lease that it was still held when it returned.

The module `sharing` judges which contenders may hold a key together, and in what order.
"""

from __future__ import annotations

import bisect
import itertools
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from support.chaos.fault_events import blinded, paused
from support.chaos.figures import Figures, measure
from support.chaos.holds import Event, Hold, time_of
from support.chaos.kinds import share
from support.chaos.reading import Run, read_run
from support.chaos.sharing import checked_in_vain, epochs, excludes, exclusion, order, permits, upgrades
from support.chaos.stays import kept_too_long, overtaken
from support.chaos.violations import Violation

ROOM = 1.0  # seconds that an answer, and the news of a forced loss, may take; promised
SHOWN = 4  # violations that are printed with their events
WIDTH = 118  # characters of a line


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a check: violations and figures."""

    violations: tuple[Violation, ...]
    figures: Figures
    events: tuple[Event, ...] = field(repr=False)

    @property
    def ok(self) -> bool:
        """Whether every promise was kept, and the history makes sense."""
        return not self.violations

    @property
    def rules(self) -> frozenset[str]:
        """The rules that were broken."""
        return frozenset(violation.rule for violation in self.violations)

    def short(self) -> str:
        """Return a short text: some violations with the events that show them, times from the first event on."""
        start = time_of(self.events[0]) if self.events else 0.0
        counts = Counter(violation.rule for violation in self.violations)
        lines = [f"{', '.join(f'{rule}: {count}' for rule, count in counts.items())}; in {len(self.events)} events"]
        first = {violation.rule: violation for violation in reversed(self.violations)}
        shown = [*first.values(), *(violation for violation in self.violations if violation not in first.values())]
        for violation in shown[:SHOWN]:
            lines.append(f"[{violation.rule}] {violation.key}: {violation.message}")
            lines += [_line_of(event, start) for event in sorted(violation.events, key=time_of)]
        return "\n".join(lines)


def _line_of(event: Event, start: float) -> str:
    """Return an event as a line: when, who, what, and what is said of it; times are those since the start."""
    about = {
        name: round(value - start, 3) if name in ("until", "since") and value is not None else value
        for name, value in event.items()
        if name not in ("t", "p", "o", "e", "op", "key")
    }
    text = " ".join(f"{name}={value}" for name, value in about.items())
    return f"  {time_of(event) - start:+10.3f}  {event.get('o') or event['p']:<14} {event['e']} {text}"[:WIDTH]


def check_history(
    events: Sequence[Event],
    *,
    left: Mapping[str, Sequence[str]] | None = None,
    final: Mapping[str, int] | None = None,
) -> Verdict:
    """
    Judge a history: events as they were written down, in any order.

    `left` are the contenders, by key, that ZooKeeper has when all is quiet, and nobody answers for. `final` are what
    the fenced counters have come to: each is incremented by one from 0, by nobody but those who write it down.
    """
    run = read_run(events)
    violations = [
        *malformed(run),
        *exclusion(run),
        *permits(run),
        *checked_in_vain(run),
        *upgrades(run),
        *told_late(run),
        *tokens(run),
        *order(run),
        *overtaken(run),
        *kept_too_long(run),
        *deadlines(run),
        *orphans(left or {}),
        *fenced(run, final),
        *stale(run),
        *unsettled(run),
    ]
    return Verdict(tuple(violations), measure(run), run.events)


def keep(verdict: Verdict, events: Sequence[Event], directory: Path) -> Path:
    """
    Keep a history that failed, with its verdict; return where.

    In a directory of its own: lying among the files of the processes it would be read with them the next time.
    """
    kept = directory / "kept"
    kept.mkdir(parents=True, exist_ok=True)
    path = next(p for p in (kept / f"history-{n}.jsonl" for n in itertools.count(1)) if not p.exists())
    path.write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
    path.with_suffix(".txt").write_text(verdict.short() + "\n", encoding="utf-8")
    return path


# --- the rules ------------------------------------------------------------------------------------------------------


def malformed(run: Run) -> Iterator[Violation]:
    """The history makes sense."""
    for key, message, events in run.malformed:
        yield Violation("malformed", key, message, events)


def told_late(run: Run) -> Iterator[Violation]:
    """
    A check tells the holder of a loss by force within `ROOM` seconds, without pauses and deaf times.

    Only a check that passes later breaks this rule, because a holder that never asks need not know. The force must
    have succeeded: it says so itself, or another owner was granted the lock.
    """
    pauses, silences = paused(run.nemesis), blinded(run.nemesis)
    for key, holds in run.holds.items():
        for index, hold in enumerate(holds):
            force = hold.force
            if force is None or not hold.forced_for_sure or not hold.valids:
                continue
            base, last = max(force.felt, hold.granted), hold.valids[-1]
            late = time_of(last) - base
            if late > ROOM:
                late -= pauses.within(hold.process, base, time_of(last))
                late -= silences.within(hold.process, base, time_of(last))
            later = (other for other in holds[index + 1 :] if force.start < other.granted < time_of(last))
            if late > ROOM and (force.finished is not None or any(excludes(hold, other) for other in later)):
                message = f"check() passed for {hold.owner} {late:.3f} s after it had lost the lock by force"
                events = [hold.grant, force.event, last, hold.told]
                yield Violation("told", key, message, tuple(event for event in events if event is not None))


def tokens(run: Run) -> Iterator[Violation]:
    """
    Every grant of a key has a greater token than those before it; a reentrant one has that of the first.

    While a lock lingers in a process, its owners there have the same token.
    """
    for key, holds in run.holds.items():
        for hold in holds:
            yield from _reentrant_tokens(key, hold)
        for epoch in epochs(run, holds):
            yield from _rising(key, epoch)


def _reentrant_tokens(key: str, hold: Hold) -> Iterator[Violation]:
    shown = {int(event["token"]) for event in hold.grants if event.get("token")}
    if len(shown) > 1:
        message = f"a reentrant grant to {hold.owner} shows another token than its first"
        yield Violation("tokens", key, message, tuple(hold.grants))


def _rising(key: str, holds: Sequence[Hold]) -> Iterator[Violation]:
    known = [hold for hold in holds if hold.token]
    times = [hold.granted for hold in known]
    greatest = list(itertools.accumulate(known, _greater))
    tokens_seen: dict[int, Hold] = {}
    proven: dict[str, Hold] = {}  # by kind: those who share may be granted the lock in any order
    for hold in known:
        returned = bisect.bisect_left(times, hold.start)  # before this one was called
        other = greatest[returned - 1] if returned else None
        if hold.proves_order:
            rivals = [rival for kind, rival in proven.items() if not share(kind, hold.kind)]
            other = max([*rivals, *([] if other is None else [other])], key=lambda hold: hold.token, default=None)
            proven[hold.kind] = _greater(proven.get(hold.kind, hold), hold)
        if other is not None and other.token >= hold.token and not hold.in_stay_of(other):
            message = f"{hold.owner} was granted the lock after {other.owner}, and its token is not greater"
            calls = other.first.events[0], other.grant, hold.first.events[0], hold.grant
            yield Violation("tokens", key, message, calls)
        elif (twin := tokens_seen.setdefault(hold.token, hold)) is not hold and not hold.in_stay_of(twin):
            message = f"{hold.owner} was granted the lock with the token of {twin.owner}"
            yield Violation("tokens", key, message, (twin.grant, hold.grant))


def _greater(first: Hold, other: Hold) -> Hold:
    return other if other.token > first.token else first


def deadlines(run: Run) -> Iterator[Violation]:
    """Each call of acquire is answered within its timeout and `ROOM` seconds, the pauses of its process left out."""
    pauses = paused(run.nemesis)
    for call in run.calls:
        if call.deadline == math.inf:
            continue
        answered = run.stop if call.answer is None else time_of(call.answer)
        if answered <= call.deadline + ROOM:
            continue
        overrun = answered - call.deadline - pauses.within(call.process, call.start, answered)
        if overrun <= ROOM or run.ended(call.process, call.start, answered - overrun + ROOM):
            continue
        if call.answer is None:
            message = f"{call.owner} had no answer {overrun:.3f} s after its deadline of {call.timeout:g} s"
        else:
            message = f"{call.owner} was answered {overrun:.3f} s after its deadline of {call.timeout:g} s"
        yield Violation("deadline", call.key, message, tuple(e for e in (call.events[0], call.answer) if e is not None))


def orphans(left: Mapping[str, Sequence[str]]) -> Iterator[Violation]:
    """No contender is left in ZooKeeper that no live process answers for."""
    for key, names in left.items():
        if names:
            yield Violation("orphan", key, f"nobody answers for {', '.join(sorted(names))}")


def fenced(run: Run, final: Mapping[str, int] | None) -> Iterator[Violation]:
    """No acknowledged update of a fenced counter is lost: no value comes twice, none falls, and the sum is right."""
    done: dict[str, list[Event]] = defaultdict(list)
    for event in run.store:
        if event["e"] == "fenced" and event.get("ok"):
            done[event["key"]].append(event)
    for key, writes in done.items():
        yield from _lost_updates(key, writes)
    for key, value in (final or {}).items():
        yield from _final(key, value, len(done[key]), _ambiguous(run, key))


def _lost_updates(key: str, done: Sequence[Event]) -> Iterator[Violation]:
    seen: dict[int, Event] = {}
    for event in done:
        earlier = seen.setdefault(int(event["value"]), event)
        if earlier is not event:
            yield Violation("fenced", key, f"an update was lost: {event['value']} was written twice", (earlier, event))
    # The store takes the writes of a lesser token before those of a greater one, or not at all.
    in_order = sorted((event for event in done if event.get("token")), key=lambda e: (int(e["token"]), time_of(e)))
    for earlier, event in itertools.pairwise(in_order):
        if int(event["value"]) < int(earlier["value"]):
            message = f"the counter fell from {earlier['value']} to {event['value']}"
            yield Violation("fenced", key, message, (earlier, event))


def _ambiguous(run: Run, key: str) -> int:
    """Count the writes that may or may not have been made: begun and never answered, or answered so."""
    begun: Counter[tuple[str, int, int]] = Counter()
    for event in run.store:
        if event["key"] != key or event["e"] not in ("writing", "fenced"):
            continue
        write = _write_of(event)
        if event["e"] == "writing":
            begun[write] += 1
        elif event.get("ok") is not None:
            begun[write] -= 1
        else:
            begun[write] = max(1, begun[write])
    return sum(count for count in begun.values() if count > 0)


def _final(key: str, value: int, acknowledged: int, ambiguous: int) -> Iterator[Violation]:
    if not acknowledged <= value <= acknowledged + ambiguous:
        message = f"the counter is {value} after {acknowledged} acknowledged and {ambiguous} ambiguous increments"
        yield Violation("fenced", key, message)


def stale(run: Run) -> Iterator[Violation]:
    """No write is accepted that began after somebody with a greater token had raised the fence."""
    raised: dict[str, Event] = {}
    begun: dict[tuple[str, int, int], Event | None] = {}  # writes, and the fence that stood when they began
    for event in run.store:
        if event["e"] == "claimed" and event.get("ok"):
            highest = raised.get(event["key"])
            if highest is None or event["token"] > highest["token"]:
                raised[event["key"]] = event
        elif event["e"] == "writing":
            begun[_write_of(event)] = raised.get(event["key"])
        elif event["e"] == "fenced" and event.get("ok"):
            fence = begun.get(_write_of(event))
            if fence is not None and fence["token"] > event["token"]:
                yield Violation("fenced", event["key"], "a stale write was accepted", (fence, event))


def unsettled(run: Run) -> Iterator[Violation]:
    """A holder reads the same value of the guarded counter as long as it holds the lock."""
    for key, holds in run.holds.items():
        for hold in holds:
            certain = [event for event in hold.observed if time_of(event) <= hold.end]
            for earlier, event in itertools.pairwise(certain):
                if event["value"] != earlier["value"]:
                    message = f"{hold.owner} read {earlier['value']}, and then {event['value']}, under one hold"
                    yield Violation("unsettled", key, message, (hold.grant, earlier, event))


def _write_of(event: Event) -> tuple[str, int, int]:
    return event["p"], int(event.get("op", 0)), int(event["value"])
