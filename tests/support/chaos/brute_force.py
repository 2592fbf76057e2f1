"""Check whether operations could be those of a lock by trying all orders: slow, but certain."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from support.chaos.operations import Op
from support.chaos.search import Model


def brute_force(ops: Sequence[Op], model: Model) -> bool:
    """Try all orders of all selections."""
    sure = [op for op in ops if op.certain]
    unsure = [op for op in ops if not op.certain]
    selections = (chosen for n in range(len(unsure) + 1) for chosen in itertools.combinations(unsure, n))
    return any(fits(order, model) for chosen in selections for order in itertools.permutations([*sure, *chosen]))


def fits(order: Sequence[Op], model: Model) -> bool:
    state: Model | None = model
    for place, op in enumerate(order):
        if any(later.back < op.call for later in order[place:]):
            return False
        state = state.step(op) if state is not None else None
    return state is not None
