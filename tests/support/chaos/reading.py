"""
Read a history: which events form a call and a hold, and which make no sense.

It knows no rule of locks. It reports events that it cannot read as malformed, and leaves them out.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from support.chaos.fault_events import ENDS, settle
from support.chaos.holds import Call, Event, Hold, time_of
from support.chaos.kinds import EXCLUSIVE, LOCK, READ, SEMAPHORE, LimitChange

STORED: Final = {
    "claimed": ("token",),
    "writing": ("token", "value"),
    "fenced": ("token", "value"),
}  # events of the store, and the numbers that they have


@dataclass(slots=True, eq=False)
class Run:
    """A whole history, read."""

    events: tuple[Event, ...]
    calls: list[Call] = field(default_factory=list)
    holds: dict[str, list[Hold]] = field(default_factory=lambda: defaultdict(list))
    """The holds of each key, in the order of `granted`."""
    nemesis: list[Event] = field(default_factory=list)
    limits: dict[str, list[LimitChange]] = field(default_factory=lambda: defaultdict(list))
    """The calls that changed the limit of a key for all."""
    store: list[Event] = field(default_factory=list)
    """The events of the shared store: `claimed`, `writing`, `fenced`."""
    malformed: list[tuple[str, str, tuple[Event, ...]]] = field(default_factory=list)  # key, message, events

    @property
    def stop(self) -> float:
        """The time of the last event: of what comes after, nothing is known."""
        return time_of(self.events[-1]) if self.events else 0.0

    def ended(self, process: str, start: float, end: float) -> Event | None:
        """Return what ended the process in this interval."""
        ends = (e for e in self.nemesis if e["what"] in ENDS and e.get("target") == process)
        return next((event for event in ends if start <= time_of(event) <= end), None)


def read_run(events: Sequence[Event]) -> Run:
    """Read a history. Events that make no sense are reported as malformed, and left out."""
    sound = [event for event in events if _has_basics(event)]
    run = Run(tuple(sorted(sound, key=time_of)))
    run.malformed += [
        ("", "an event without time, process or kind", (event,)) for event in events if not _has_basics(event)
    ]
    reader = _Reader(run)
    for event in run.events:
        reader.read(event)
    for holds in run.holds.values():
        holds.sort(key=lambda hold: hold.granted)
    settle([hold for holds in run.holds.values() for hold in holds], run.nemesis)
    return run


def _has_basics(event: Event) -> bool:
    t = event.get("t")
    return (
        isinstance(t, (int, float))
        and math.isfinite(t)
        and isinstance(event.get("p"), str)
        and isinstance(event.get("e"), str)
        and (event["e"] != "nemesis" or isinstance(event.get("what"), str))
    )


class _Reader:
    """Puts each event where it belongs."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._calls: dict[tuple[str, int], Call] = {}
        self._current: dict[tuple[str, str], Hold] = {}  # by owner and key
        self._ends: dict[str, float] = {}
        self._changes: dict[tuple[str, int], int] = {}  # by process and number: which of the limits of its key
        self._readers: dict[str, Callable[[Event, Call], str | None]] = {
            "granted": self._granted,
            "refused": self._refused,
            "valid": self._valid,
            "lost": self._lost,
            "release": self._release,
            "released": self._answered,
            "release_failed": self._answered,
            "downgrade": self._downgrade,
            "downgraded": self._downgraded,
            "downgrade_failed": self._downgraded,
            "observed": self._observed,
        }

    def read(self, event: Event) -> None:
        kind = event["e"]
        if kind == "nemesis":
            self._run.nemesis.append(event)
            if event["what"] in ENDS and isinstance(event.get("target"), str):
                self._ends[event["target"]] = time_of(event)
            return
        try:
            if kind in STORED:
                wrong = self._stored(event)
            elif kind == "invoke":
                wrong = self._invoke(event)
            elif kind in ("set_limit", "limit_set", "limit_failed"):
                wrong = self._limit(event)
            elif kind in self._readers:
                wrong = self._of_call(kind, event)
            else:
                return
        except (KeyError, TypeError, ValueError) as error:
            wrong = f"an event that cannot be read ({type(error).__name__}: {error})"
        if wrong is not None:
            call = self._calls.get((event["p"], event.get("op", 0)))
            before = call.events if call is not None else []
            self._run.malformed.append((str(event.get("key", "")), wrong, (*before[-4:], event)))

    def _stored(self, event: Event) -> str | None:
        event["key"], int(event.get("op", 0))
        for name in STORED[event["e"]]:
            int(event[name])  # or it cannot be read
        self._run.store.append(event)
        return None

    def _invoke(self, event: Event) -> str | None:
        call_id = event["p"], int(event["op"])
        earlier = self._calls.get(call_id)
        # A process that was ended may have a successor of the same name, which counts from 1 again.
        if earlier is not None and self._ends.get(event["p"], -math.inf) < earlier.start:
            return "the number of an acquisition is used twice"
        timeout = None if event["timeout"] is None else float(event["timeout"])
        float(event.get("limit") or 0), float(event.get("linger") or 0)  # or it cannot be read
        if event.get("kind", LOCK) not in (*EXCLUSIVE, READ, SEMAPHORE):
            return "an acquisition of an unknown kind"
        call = Call(event["p"], _owner(event), str(event["key"]), time_of(event), timeout, [event])
        self._calls[call_id] = call
        self._run.calls.append(call)
        return None

    def _limit(self, event: Event) -> str | None:
        call_id, changes = (event["p"], int(event["op"])), self._run.limits[str(event["key"])]
        if event["e"] == "set_limit":
            limit = None if event["limit"] is None else int(event["limit"])
            self._changes[call_id] = len(changes)
            changes.append(LimitChange(str(event["key"]), limit, time_of(event), certain=False))
            return None
        number = self._changes.pop(call_id, None)
        if number is None:
            return "a limit was set that nobody had asked for"
        if event["e"] == "limit_set":
            changes[number] = replace(changes[number], back=time_of(event), certain=True)
        elif event.get("definite"):
            changes[number] = replace(changes[number], call=math.inf)  # it never did
        return None

    def _of_call(self, kind: str, event: Event) -> str | None:
        call = self._calls.get((event["p"], int(event["op"])))
        if call is None:
            return f'"{kind}" of an acquisition that never began'
        wrong = self._readers[kind](event, call)
        if wrong is None:
            call.events.append(event)
        return wrong

    def _granted(self, event: Event, call: Call) -> str | None:
        if call.answer is not None:
            return "two answers to one acquisition"
        int(event.get("token") or 0), float(event.get("until") or 0.0)  # or it cannot be read
        current = self._current.get((call.owner, call.key))
        if event.get("again"):
            if current is None or not current.open:
                return "a reentrant grant to an owner who holds nothing"
            call.hold = current
            current.calls.append(call)
            current.grants.append(event)
        else:
            call.hold = Hold(call, event, [call], [event])
            self._current[call.owner, call.key] = call.hold
            self._run.holds[call.key].append(call.hold)
        call.answer = event
        call.hold.losts += call.early
        return None

    def _refused(self, event: Event, call: Call) -> str | None:
        if call.answer is not None:
            return "two answers to one acquisition"
        call.answer = event
        return None

    def _valid(self, event: Event, call: Call) -> str | None:
        hold = call.hold
        if hold is None:
            return "a check passed before the grant, or without one"
        released = hold.released
        if released is not None and time_of(event) > time_of(released):
            return "a check passed after the release had returned"
        if event.get("until") is not None:
            float(event["until"])  # or it cannot be read
        hold.valids.append(event)
        return None

    def _lost(self, event: Event, call: Call) -> str | None:
        if call.hold is not None:
            call.hold.losts.append(event)
        elif call.answer is None:
            call.early.append(event)
        else:
            return "a loss of what was refused"
        return None

    def _release(self, event: Event, call: Call) -> str | None:
        if call.hold is None:
            return "a release of what was not granted"
        if not call.hold.open:
            return "a release of what was released"
        call.hold.releases.append(event)
        return None

    def _downgrade(self, event: Event, call: Call) -> str | None:
        if call.hold is None or not call.hold.open:
            return "a downgrade of what is not held"
        call.hold.downgrades.append(event)
        return None

    def _downgraded(self, event: Event, call: Call) -> str | None:
        if call.hold is None or len(call.hold.downgraded) >= len(call.hold.downgrades):
            return "a downgrade that ended and had not begun"
        call.hold.downgraded.append(event)
        return None

    def _observed(self, event: Event, call: Call) -> str | None:
        if call.hold is None:
            return "the counter was read under a lock that was not granted"
        int(event["value"])  # or it cannot be read
        call.hold.observed.append(event)
        return None

    def _answered(self, event: Event, call: Call) -> str | None:
        if call.hold is None or len(call.hold.answers) >= len(call.hold.releases):
            return "a release that ended and had not begun"
        call.hold.answers.append(event)
        return None


def _owner(event: Event) -> str:
    return str(event.get("o") or event["p"])
