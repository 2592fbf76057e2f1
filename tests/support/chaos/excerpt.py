"""Print a piece of a history: some events and those around them, one line each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from support.chaos.holds import Event, time_of

HIDDEN = frozenset({"t", "p", "o", "e", "op", "key"})  # said otherwise, or by nobody understood
QUIET = frozenset({"valid", "gauge"})  # of these there are too many to show those that prove nothing
MOMENTS = frozenset({"until", "done", "since"})  # fields that are times of the same clock
WIDTH = 118


def lines_around(events: Sequence[Event], proof: Sequence[Event], key: str, start: float, room: int) -> list[str]:
    """Return at most `room` lines: the events of the proof, marked, and what else there is of the key."""
    if not proof:
        return []
    marked = {id(event) for event in proof}
    shown = sorted({id(event): event for event in proof}.values(), key=time_of)[:room]
    left = room - len(shown)
    first, last = time_of(shown[0]), time_of(shown[-1])
    others = [event for event in _of_key(events, key) if id(event) not in marked]
    between = [event for event in others if first <= time_of(event) <= last]
    near = sorted(others, key=lambda event: max(first - time_of(event), time_of(event) - last, 0.0))
    chosen = near[:left] if len(between) <= left else _first_and_last(between, left)
    lines = sorted([*shown, *chosen], key=time_of)
    return [line_of(event, start, "> " if id(event) in marked else "  ") for event in lines]


def _of_key(events: Sequence[Event], key: str) -> Iterator[Event]:
    for event in events:
        if event["e"] not in QUIET and (event.get("key") == key or event["e"] == "nemesis"):
            yield event


def _first_and_last(events: list[Event], room: int) -> list[Event]:
    return [*events[: room - room // 2], *events[len(events) - room // 2 :]]


def line_of(event: Event, start: float, mark: str = "") -> str:
    """Return an event as a line: when, who, what, and what is said of it."""
    kind = event["e"]
    who = str(event.get("o") or event["p"])
    if kind == "nemesis":
        who, kind = "nemesis", str(event["what"])
    about = " ".join(
        f"{name}={_value(name, value, start)}" for name, value in event.items() if name not in {*HIDDEN, "what"}
    )
    return f"{mark}{time_of(event) - start:+10.3f}  {who:<14} {kind} {about}".rstrip()[:WIDTH]


def _value(name: str, value: Any, start: float) -> str:
    if name in MOMENTS and isinstance(value, (int, float)):
        return f"{value - start:+.3f}"
    return str(value)
