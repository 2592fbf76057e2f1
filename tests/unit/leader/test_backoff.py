"""The pauses between two attempts of a candidate."""

from django_zklock.locks.election import FIRST_PAUSE, LONGEST_PAUSE, STEADY, Backoff


def test_pauses_grow_until_a_leadership_is_steady():
    backoff = Backoff()
    most = FIRST_PAUSE
    for pause in [backoff.after(0.1) for _ in range(12)]:
        assert most / 2 <= pause <= most
        most = min(2 * most, LONGEST_PAUSE)
    assert backoff.after(STEADY + 1) <= FIRST_PAUSE
