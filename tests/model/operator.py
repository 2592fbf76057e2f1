"""A person who changes the number of permits while others request them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from model import reference
from model.ensemble import Ensemble
from model.invariants import Figures

BASE = "/zklock"
THINKS = 0.02  # seconds between the look at the queue and the change


@dataclass(frozen=True, slots=True)
class LimitChange:
    """What is done when."""

    begins: float
    value: int | None  # None: each contender's own counts again
    key: str = "k"


class Operator:
    """Looks at a queue, and changes its limit in one transaction that also writes the directory."""

    def __init__(self, ensemble: Ensemble, figures: Figures) -> None:
        self._ensemble = ensemble
        self._world = ensemble.world
        self._figures = figures

    def plan(self, changes: Iterable[LimitChange]) -> None:
        """Have these made in time."""
        for change in changes:
            self._world.after(change.begins, self._look, change)

    def _look(self, change: LimitChange) -> None:
        tree, parent = self._ensemble.truth, f"{BASE}/{change.key}"
        before, _, through = reference.limit(tree, parent)
        having = (path for path in reference.entitled(tree, parent) if "-lease-" in path)
        through = max([through, *(int(path[-10:]) for path in having)])
        sign = f"!limit:{change.value or 0}:{through}:" if change.value or through >= 0 else ""
        self._world.after(THINKS, self._change, parent, before, sign)

    def _change(self, parent: str, before: str, sign: str) -> None:
        if self._ensemble.set_limit(parent, before, sign):
            self._figures.limits += 1
            self._world.note(
                f"the limit of {parent} is {sign or 'that of each'} now, no more {before or 'that of each'}"
            )
