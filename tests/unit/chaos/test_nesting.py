"""The judge of deadlocks finds one that was no circle, and believes in those that may have been."""

from __future__ import annotations

import pytest
from support.chaos.nesting import false_deadlocks

A_HAS_1, B_HAS_2 = "1 A wants 1\n1.1 A has 1", "1 B wants 2\n1.1 B has 2"


def history(text: str) -> list[dict[str, object]]:
    """Read a line for each event: `time owner what keys`, where the keys of the locks outside are before a slash."""
    events = []
    for line in text.splitlines():
        t, owner, what, keys = line.split()
        *outer, wanted = keys.split("/")
        about = {"e": "nesting", "what": what, "depth": len(outer), "keys": wanted.split("+")}
        if what == "deadlock":
            about = {"e": "deadlock", "circle": [("A", "1", "2"), ("B", "2", "1")]}
        events.append({"t": float(t), "o": f"P/{owner}", **about})
    return sorted(events, key=lambda event: float(str(event["t"])))


@pytest.mark.parametrize(
    ("rest", "is_false"),
    [
        ("2 A wants 1/2\n2 B wants 2/1\n3 A deadlock 1/2", False),
        ("2 A wants 1/2\n2 B wants 2/3\n3 A deadlock 1/2", True),
        ("2 A wants 1/2\n3 A deadlock 1/2\n3.1 B wants 2/1", True),
        ("2 B wants 2/1\n2.1 B left 2/1\n2.2 A wants 1/2\n3 A deadlock 1/2", True),
        ("2 B wants 2/1\n2.1 B left 2\n2.2 A wants 1/2\n3 A deadlock 1/2", True),
        ("2 A wants 1/2\n2.5 B wants 2/1\n2.7 B left 2/1\n3 A deadlock 1/2", False),
        ("1.5 A wants 1/2\n1.6 B wants 2/1\n1.9 B left 2/1\n3 A deadlock 1/2", True),
        ("2 A wants 1/2\n2 B wants 2/3+1\n3 A deadlock 1/2", False),
    ],
)
def test_a_deadlock_is_false_if_there_was_no_circle_before_it(rest: str, is_false: bool) -> None:
    """Its links are locks that the owners may have had, and waits that may have lasted, all at one moment."""
    assert bool(false_deadlocks(history(f"{A_HAS_1}\n{B_HAS_2}\n{rest}"), within=1.0)) is is_false
