"""The verdicts of the benchmarks: green with any spread, red for a loss."""

from __future__ import annotations

import itertools
import math
import random
import time

import pairs
import pytest
from pairs import OK, OVER, Figure

SPREADS = (0.02, 0.1)  # standard deviations of the ratios of a round
LOSS = 1.1


def settled(figure: Figure, ratio: float, spread: float, seed: int) -> Figure:
    """Give a figure random ratios with this median, until its verdict is sure."""
    chance = random.Random(seed)
    for _ in pairs.rounds([figure], math.inf):
        figure.values.append(ratio * math.exp(chance.gauss(0, spread)))
    return figure


@pytest.mark.parametrize("spread", SPREADS)
def test_spread_alone_is_within_the_budget_and_a_loss_of_a_tenth_is_over_it(spread: float) -> None:
    for seed in range(25):
        assert settled(Figure("time", budget=1.05 * 0.8), 0.8, spread, seed).verdict == OK, seed
        assert settled(Figure("time", budget=1.05 * 0.8), 0.8 * LOSS, spread, seed).verdict == OVER, seed


@pytest.mark.parametrize("spread", SPREADS)
def test_the_same_is_true_of_a_rate_which_falls(spread: float) -> None:
    for seed in range(25):
        assert settled(Figure("rate", budget=6 / 1.05, least=True), 6, spread, seed).verdict == OK, seed
        assert settled(Figure("rate", budget=6 / 1.05, least=True), 6 / LOSS, spread, seed).verdict == OVER, seed


def test_an_outlier_decides_nothing() -> None:
    usual = [0.98, 0.99, 1.0, 1.0, 1.01, 1.02, 1.0] * 3
    assert Figure("time", budget=1.05, values=[*usual, 50.0]).verdict == OK
    assert Figure("time", budget=0.95, values=[*usual, 0.01]).verdict == OVER


def test_the_median_decides_when_the_time_is_over() -> None:
    below, above = (Figure("time", budget=1.0, values=[0.9, value, 1.1] * 10) for value in (0.99, 1.01))
    assert not below.is_sure
    assert not above.is_sure
    assert pairs.finish([below], check=True) == 0
    assert pairs.finish([below, above], check=True) == 1
    assert pairs.finish([above], check=False) == 0


def test_no_verdict_is_sure_after_fewer_than_eight_rounds() -> None:
    figure = Figure("time", budget=1.05, values=[1.0] * 7)
    assert not figure.is_sure
    figure.values.append(1.0)
    assert figure.is_sure


def test_a_count_has_no_room() -> None:
    assert Figure("trips", 2, exact=True, values=[2]).verdict == OK
    assert Figure("trips", 2, exact=True, values=[2, 2, 3]).verdict == OVER
    assert Figure("done", 90, least=True, exact=True, values=[95, 89]).verdict == OVER


def test_the_rounds_end_with_the_time() -> None:
    figure = Figure("time", budget=1.0)
    for _ in pairs.rounds([figure], 0):
        figure.values.append(1.0)
    assert figure.values == [1.0]


@pytest.mark.parametrize("count", [8, 9, 30, 101])
def test_the_interval_misses_the_median_once_in_a_hundred_times_at_most(count: int) -> None:
    chance, missed = random.Random(count), 0
    for _ in range(300):
        low, high = pairs.interval(chance.expovariate(math.log(2)) for _ in range(count))
        missed += not low <= 1 <= high
    assert missed <= 8


def test_slower_work_takes_so_many_percent_longer_by_its_clock() -> None:
    times = itertools.count()  # each look at the clock takes a second
    assert pairs.slowed(lambda: [next(times) for _ in range(98)], 10, lambda: next(times)) == pytest.approx(110, abs=1)
    assert pairs.slowed(lambda: None, 10, time.process_time) >= 0
