"""The pauses between two attempts of a candidate."""

from __future__ import annotations

from django_zklock.locks.election import FIRST_PAUSE, LONGEST_PAUSE, STEADY, Backoff


def test_pauses_grow_while_the_leadership_is_lost_at_once() -> None:
    backoff = Backoff()
    most = FIRST_PAUSE
    for pause in [backoff.after(0.1) for _ in range(12)]:
        assert most / 2 <= pause <= most
        most = min(2 * most, LONGEST_PAUSE)


def test_a_steady_leadership_resets_the_pauses() -> None:
    backoff = Backoff()
    for _ in range(8):
        backoff.after(0.1)
    assert backoff.after(STEADY + 1) <= FIRST_PAUSE
