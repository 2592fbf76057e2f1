"""The pauses between two attempts of a candidate; and how the chaos test finds two leaders at a time."""

from __future__ import annotations

import pytest
from support.leaders import Term, assert_one_at_a_time

from django_zklock.locks.election import FIRST_PAUSE, LONGEST_PAUSE, STEADY, Backoff


def test_pauses_grow_while_the_leadership_is_lost_at_once() -> None:
    """Each is up to twice as long as the one before, up to the longest. At least half of each is fixed."""
    backoff = Backoff()
    most = FIRST_PAUSE
    for pause in [backoff.after(0.1) for _ in range(12)]:
        assert most / 2 <= pause <= most
        most = min(2 * most, LONGEST_PAUSE)


def test_a_steady_leadership_resets_the_pauses() -> None:
    """So one loss a day costs a tenth of a second."""
    backoff = Backoff()
    for _ in range(8):
        backoff.after(0.1)
    assert backoff.after(STEADY + 1) <= FIRST_PAUSE


@pytest.mark.parametrize(
    "terms",
    [
        pytest.param([Term(1, "a", 0, 5), Term(2, "b", 4.9, 8)], id="two at a time"),
        pytest.param([Term(1, "a", 6, 7), Term(2, "b", 2, 5)], id="an earlier one after a later one"),
        pytest.param([Term(1, "a", 0, 1), Term(1, "b", 2, 3)], id="one token twice"),
    ],
)
def test_terms_that_overlap_are_found(terms: list[Term]) -> None:
    """Otherwise the chaos test would always pass."""
    with pytest.raises(AssertionError):
        assert_one_at_a_time(terms)
    assert_one_at_a_time([Term(1, "a", 0, 1), Term(2, "b", 1, 3), Term(4, "a", 3, 4)])
