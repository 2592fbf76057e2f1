"""A broken promise: the rule, the place, and the events that show it."""

from __future__ import annotations

from dataclasses import dataclass

from support.chaos.holds import Event


@dataclass(frozen=True, slots=True)
class Violation:
    """One promise that was not kept, and the events that show it."""

    rule: str
    key: str
    message: str
    events: tuple[Event, ...] = ()
