"""Until when a session is certain to be alive, by what its servers have answered."""

from __future__ import annotations

import pytest

from django_zklock.zk.lease import Activity

T = 12.0  # seconds, of the session; a follower passes on what it heard within 3


@pytest.fixture
def activity() -> Activity:
    """Of a connection that was made at 100."""
    activity = Activity()
    activity.restart(100.0)
    return activity


def test_the_leader_knows_of_the_connect_itself(activity: Activity) -> None:
    """A session that was just made, or taken to another server, has its whole time."""
    assert activity.relayed(100.0, T) == 100.0


def test_what_a_follower_has_just_heard_does_not_count(activity: Activity) -> None:
    """It tells the leader within half a tick, and may be cut off before."""
    activity.note(109.0, 109.1, T)
    assert activity.relayed(112.0, T) == 100.0
    assert activity.relayed(112.1, T) == 109.0


def test_the_newest_answer_that_was_passed_on_counts(activity: Activity) -> None:
    for sent_at in (102.0, 104.0, 106.0, 108.0):
        activity.note(sent_at, sent_at + 0.5, T)
    assert activity.relayed(110.0, T) == 106.0


def test_a_new_connection_begins_anew(activity: Activity) -> None:
    """What the old server heard last may never have been passed on."""
    activity.note(105.0, 105.1, T)
    activity.restart(107.0)
    assert activity.relayed(120.0, T) == 107.0


def test_what_is_noted_does_not_grow_with_the_number_of_answers(activity: Activity) -> None:
    """A process that takes a thousand locks a second remembers as little as one that idles."""
    for number in range(100_000):
        activity.note(100 + number / 1000, 100 + number / 1000, T)
    assert len(activity._answers) < 100
    assert activity.relayed(200.0, T) == pytest.approx(197.0, abs=T / 60)


def test_a_late_answer_does_not_hide_the_one_right_after_it(activity: Activity) -> None:
    """A process that was paused reads an old answer as it goes on, and a new one at once: the new one counts."""
    activity.note(102.0, 108.0, T)
    activity.note(108.001, 108.002, T)
    assert activity.relayed(108.002 + T / 4, T) == 108.001
