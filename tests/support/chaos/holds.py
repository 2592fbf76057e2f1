"""
One hold in a history: when it was claimed, how long it was trusted, and what its holder learned.

All processes of a machine share one clock, and every event says of its time whether that was read before or after the
deed, so that a hold is never taken for longer, nor a fault for earlier, than it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from support.chaos.kinds import EXCLUSIVE, LOCK, READ

if TYPE_CHECKING:
    from support.chaos.fault_events import Force

Event: TypeAlias = Mapping[str, Any]


@dataclass(slots=True, eq=False)
class Call:
    """One call of acquire."""

    process: str
    owner: str
    key: str
    start: float
    timeout: float | None
    events: list[Event]
    answer: Event | None = None
    hold: Hold | None = None
    early: list[Event] = field(default_factory=list)  # losses that were told before the grant was written down

    @property
    def deadline(self) -> float:
        """When it has to be answered; never, without a timeout."""
        return math.inf if self.timeout is None else self.start + self.timeout

    @property
    def granted(self) -> bool:
        return self.hold is not None

    @property
    def kind(self) -> str:
        """The kind that was requested."""
        return str(self.events[0].get("kind", LOCK))

    @property
    def limit(self) -> float:
        """The limit that a contender for a permit brings along."""
        return float(self.events[0].get("limit") or math.inf)

    @property
    def linger(self) -> float:
        """Seconds for which its process keeps the lock for its own next owners; 0: not at all."""
        return float(self.events[0].get("linger") or 0.0)


@dataclass(slots=True, eq=False)
class Hold:
    """One acquisition with all that belongs to it; a reentrant one is part of the owner's first."""

    first: Call
    grant: Event
    calls: list[Call]
    grants: list[Event]
    valids: list[Event] = field(default_factory=list)
    losts: list[Event] = field(default_factory=list)
    releases: list[Event] = field(default_factory=list)
    answers: list[Event] = field(default_factory=list)  # to the releases
    downgrades: list[Event] = field(default_factory=list)  # calls
    downgraded: list[Event] = field(default_factory=list)  # answers to them
    observed: list[Event] = field(default_factory=list)  # of the guarded counter, by one who reads
    force: Force | None = None
    forced_for_sure: bool = False
    ended: Event | None = None  # its process was, in an orderly way
    end: float = math.inf
    """Until when it was claimed. Before `granted`: it was no use when it came."""
    stopped_by: Event | None = None  # the event that says so

    @property
    def process(self) -> str:
        return self.first.process

    @property
    def owner(self) -> str:
        return self.first.owner

    @property
    def key(self) -> str:
        return self.first.key

    @property
    def start(self) -> float:
        return self.first.start

    @property
    def kind(self) -> str:
        """The kind that was granted."""
        return self.first.kind

    @property
    def reads_since(self) -> float:
        """When its writer began to give up writing: by a downgrade, or as a level of reading is all that is left."""
        if self.kind not in EXCLUSIVE:
            return math.inf
        since = min(map(time_of, self.downgrades), default=math.inf)
        if len(self.calls) > 1:
            since = min(since, self._left_to_readers())
        return since

    def _left_to_readers(self) -> float:
        changes = [(time_of(grant), call, False) for call, grant in zip(self.calls, self.grants, strict=True)]
        by_op = {call.events[0].get("op"): call for call in self.calls}
        changes += [(time_of(event), by_op[event["op"]], True) for event in self.releases if event["op"] in by_op]
        levels: list[Call] = []
        for moment, call, back in sorted(changes, key=lambda change: change[0]):
            if not back:
                levels.append(call)
            elif call in levels:
                levels.remove(call)
                if levels and all(level.kind == READ for level in levels):
                    return moment
        return math.inf

    def kind_at(self, moment: float) -> str:
        """Return as what it is held then; from the call that gives writing up, nobody may rely on that."""
        return READ if moment >= self.reads_since else self.kind

    @property
    def granted(self) -> float:
        """When acquire had returned, so the grant itself was before."""
        return float(self.grant["t"])

    @property
    def token(self) -> int:
        return int(self.grant.get("token") or 0)

    def in_stay_of(self, other: Hold) -> bool:
        """Return whether its process had kept the lock from the other hold on."""
        same = (self.process, self.token) == (other.process, other.token)
        return bool(same and self.token and self.first.linger and other.first.linger)

    @property
    def leased(self) -> bool:
        return _has_lease(self.grant)

    @property
    def open(self) -> bool:
        """Whether the owner has released it less often than acquired it."""
        return len(self.releases) < len(self.grants)

    @property
    def release(self) -> Event | None:
        """The call that gave it back."""
        return None if self.open else self.releases[len(self.grants) - 1]

    @property
    def released(self) -> Event | None:
        """The answer to that call."""
        release = self.release
        answers = [event for event in self.answers if release is not None and event.get("op") == release.get("op")]
        return answers[-1] if answers else None

    @property
    def lost(self) -> Event | None:
        return self.losts[0] if self.losts else None

    @property
    def told(self) -> Event | None:
        """The event that shows that the holder no longer trusts it."""
        return earliest(self.lost, self.release)

    @property
    def trusted_until(self) -> float:
        """The boldest claim that was made of its lease."""
        return max((float(event["until"]) for event in self.claims if _has_lease(event)), default=-math.inf)

    @property
    def claims(self) -> Iterator[Event]:
        yield from self.grants
        yield from self.valids

    @property
    def proven(self) -> float:
        """The last moment at which it was certainly claimed: the start of the last check that passed."""
        # A grant whose lease was over when it came is no claim: nobody knows when within the call the lock was lost.
        first = self.start if self.leased and self.trusted_until < self.granted else self.granted
        return max([self.start, first, *(float(event["t"]) for event in self.valids), *self._reentries])

    @property
    def _reentries(self) -> Iterator[float]:
        return (call.start for call in self.calls[1:])

    @property
    def claimed(self) -> bool:
        """Whether its holder could trust it when it came."""
        return self.end >= self.granted

    @property
    def proves_order(self) -> bool:
        """
        Whether it was certainly held at the time of `granted`, and not merely granted at some time before.

        A process may be paused before it writes down a grant that is over by then, and a lock without leases does not
        know. Two holds of which this is true were granted in the order of their `granted`, or overlap.
        """
        return self.leased and self.claimed and (self.force is None or self.force.start >= self.granted)


def _has_lease(event: Event) -> bool:
    return event.get("until") is not None


def earliest(*events: Event | None) -> Event | None:
    """Return the first of those that there are."""
    known = [event for event in events if event is not None]
    return min(known, key=time_of) if known else None


def time_of(event: Event) -> float:
    return float(event["t"])
