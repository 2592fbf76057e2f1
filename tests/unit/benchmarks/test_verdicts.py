"""The verdicts of the benchmarks: green with any spread, red for a loss."""

import math
import random

import pairs
import pytest
from pairs import OK, OVER, Figure

SPREADS = (0.02, 0.1)  # standard deviations of the ratios of a round
LOSS = 1.1


def settled(figure, ratio, spread, seed):
    """Give a figure random ratios with this median, until its verdict is sure."""
    chance = random.Random(seed)
    for _ in pairs.rounds([figure], math.inf):
        figure.values.append(ratio * math.exp(chance.gauss(0, spread)))
    return figure


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize(
    ("ratio", "figure", "loss"),
    [(0.8, {"budget": 1.05 * 0.8}, LOSS), (6, {"budget": 6 / 1.05, "least": True}, 1 / LOSS)],
    ids=["time", "rate"],
)
def test_spread_alone_is_within_the_budget_and_a_loss_of_a_tenth_is_over_it(ratio, figure, loss, spread):
    for seed in range(25):
        assert settled(Figure("figure", **figure), ratio, spread, seed).verdict == OK, seed
        assert settled(Figure("figure", **figure), ratio * loss, spread, seed).verdict == OVER, seed


def test_a_count_has_no_room():
    assert Figure("trips", 2, exact=True, values=[2]).verdict == OK
    assert Figure("trips", 2, exact=True, values=[2, 2, 3]).verdict == OVER
    assert Figure("done", 90, least=True, exact=True, values=[95, 89]).verdict == OVER


@pytest.mark.parametrize("count", [8, 9, 30, 101])
def test_the_interval_misses_the_median_once_in_a_hundred_times_at_most(count):
    chance, missed = random.Random(count), 0
    for _ in range(300):
        low, high = pairs.interval(chance.expovariate(math.log(2)) for _ in range(count))
        missed += not low <= 1 <= high
    assert missed <= 8
