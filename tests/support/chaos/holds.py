"""
Read a history: the calls of acquire, and until when each grant was claimed.

All processes of a machine share one clock. Every event says of its time whether that was read before or after the deed,
so that a hold is never taken for longer, nor a fault for earlier, than it was.

* A lease ends when its holder learns of a loss, so a `lost` is written before the lock is given back.
* A grant that was written late (its process was paused) may be over by then: its lease says so, and it is no claim.
* SIGKILL gives nothing back, so the lease of a killed process goes on. With `given_back`, another process has its
  session, and releases its locks.
* A fault that takes locks away is written down before it is done. It is over when an event with `what` "done" and
  `of` says so.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Event: TypeAlias = Mapping[str, Any]

LOCK = "lock"
READ = "read"
WRITE = "write"
SEMAPHORE = "semaphore"

FORCES = frozenset({"expire", "delete", "wipe"})  # faults that take locks away, which no lock can prevent
OF_CALL = frozenset({"granted", "refused", "valid", "lost", "release"})
SLOWEST = 10.0  # seconds that a force takes at most, if nobody wrote down its end


def time_of(event):
    return float(event["t"])


@dataclass(slots=True, eq=False)
class Call:
    """One call of acquire, with the hold that it was granted, if any."""

    invoke: Event
    answer: Event | None = None
    valids: list[Event] = field(default_factory=list)
    lost: Event | None = None
    release: Event | None = None
    end: float = -math.inf  # until when the hold was claimed. Before `granted`: it was no use when it came.

    @property
    def process(self):
        return str(self.invoke["p"])

    @property
    def owner(self):
        return str(self.invoke["o"])

    @property
    def key(self):
        return str(self.invoke["key"])

    @property
    def start(self):
        return time_of(self.invoke)

    @property
    def answered(self):
        """When acquire had returned, so a grant itself was before."""
        return math.inf if self.answer is None else time_of(self.answer)

    @property
    def deadline(self):
        """When it has to be answered; never, without a timeout."""
        return math.inf if self.invoke["timeout"] is None else self.start + float(self.invoke["timeout"])

    @property
    def granted(self):
        return self.answer is not None and self.answer["e"] == "granted"

    @property
    def kind(self):
        return str(self.invoke.get("kind", LOCK))

    @property
    def token(self):
        return int((self.answer or {}).get("token") or 0)

    @property
    def leased(self):
        return self.answer is not None and self.answer.get("until") is not None

    @property
    def claimed(self):
        return self.end >= self.answered

    def in_stay_of(self, other):
        """Return whether its process had kept the lock from the other hold on (`linger`)."""
        same = (self.process, self.token) == (other.process, other.token)
        return bool(same and self.token and self.invoke.get("linger") and other.invoke.get("linger"))

    @property
    def events(self):
        known = [self.invoke, self.answer, *self.valids[-1:], self.lost, self.release]
        return [event for event in known if event is not None]

    def add(self, event):
        kind = event["e"]
        if kind in ("granted", "refused"):
            assert self.answer is None, f"two answers to one acquisition: {self.answer} and {event}"
            self.answer = event
            return
        assert self.granted or kind == "lost", f"{event} of what was not granted: {self.answer}"
        if kind == "valid":
            self.valids.append(event)
        elif getattr(self, kind) is None:
            setattr(self, kind, event)


@dataclass(slots=True, eq=False)
class Run:
    events: tuple[Event, ...]
    calls: list[Call] = field(default_factory=list)
    holds: dict[str, list[Call]] = field(default_factory=lambda: defaultdict(list))
    """The calls that were granted, by key, in the order of their answers."""
    nemesis: list[Event] = field(default_factory=list)

    def ended(self, process, start, end):
        ends = (event for event in self.nemesis if event["what"] == "kill" and event.get("target") == process)
        return any(start <= time_of(event) <= end for event in ends)

    def paused(self, process, start, end):
        total, since = 0.0, math.inf
        for event in self.nemesis:
            if event.get("target") == process and event["what"] == "pause":
                since = min(since, time_of(event))
            elif event.get("target") == process and event["what"] == "resume":
                total += max(0.0, min(time_of(event), end) - max(since, start))
                since = math.inf
        return total + max(0.0, end - max(since, start))


def read_run(events):
    """Read a history. An event that makes no sense is a fault of the harness, and raises."""
    run = Run(tuple(sorted(events, key=time_of)))
    calls = {}
    for event in run.events:
        kind = event["e"]
        if kind == "nemesis":
            run.nemesis.append(event)
        elif kind == "invoke":
            # A process that was ended may have a successor of the same name, which counts from 1 again.
            calls[event["p"], event["op"]] = call = Call(event)
            run.calls.append(call)
        elif kind in OF_CALL:
            calls[event["p"], event["op"]].add(event)
    for call in run.calls:
        if call.granted:
            run.holds[call.key].append(call)
            _settle(call, run.nemesis)
    for holds in run.holds.values():
        holds.sort(key=lambda hold: hold.answered)
    return run


def _settle(hold, nemesis):
    """Find the end of the claim: what its holder says, or what took it away by force, or ended its process."""
    proven = max(hold.answered, *(time_of(event) for event in hold.valids), -math.inf)
    leases = [float(event["until"]) for event in (hold.answer or {}, *hold.valids) if event.get("until") is not None]
    learned = min((time_of(event) for event in (hold.lost, hold.release) if event is not None), default=math.inf)
    if leases:
        hold.end = min(max(leases), learned)
    elif hold.release is not None and hold.lost is None:
        hold.end = learned
    else:
        hold.end = proven  # without a lease a silence says nothing: held as long as somebody asked, and was told so
    for index, event in enumerate(nemesis):
        moment = time_of(event)
        if event["what"] in FORCES and _is_meant(event, hold):
            ends = (time_of(e) for e in nemesis[index:] if e["what"] == "done" and e.get("of") == event["what"])
            if next(ends, moment + SLOWEST) >= hold.start:
                hold.end = min(hold.end, moment)
        elif event.get("given_back") and event.get("target") == hold.process and hold.start <= moment < hold.end:
            hold.end = max(moment, proven)


def _is_meant(force, hold):
    about = {"target": hold.process, "key": hold.key, "token": hold.token or force.get("token")}
    return all(force.get(name) in (None, value) for name, value in about.items())
