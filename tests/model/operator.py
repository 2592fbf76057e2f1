"""A person who changes the number of permits while others request them."""

from __future__ import annotations

from dataclasses import dataclass

from model import reference

BASE = "/zklock"
THINKS = 0.02  # seconds between the look at the queue and the change


@dataclass(frozen=True, slots=True)
class LimitChange:
    begins: float
    value: int | None  # None: each contender's own counts again
    key: str = "k"


class Operator:
    """Looks at a queue, and changes its limit in one transaction that also writes the directory."""

    def __init__(self, ensemble):
        self._ensemble = ensemble
        self._world = ensemble.world

    def plan(self, changes):
        for change in changes:
            self._world.after(change.begins, self._look, change)

    def _look(self, change):
        tree, parent = self._ensemble.truth, f"{BASE}/{change.key}"
        before, _ = reference.limit(tree, parent)
        self._world.after(THINKS, self._change, parent, before, f"!limit:{change.value or 0}:")

    def _change(self, parent, before, marker):
        if self._ensemble.set_limit(parent, before, marker):
            self._world.note(f"the limit of {parent} is {marker} now, no more {before or 'that of each'}")
