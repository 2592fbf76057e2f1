"""Until when a session is certain to be alive, by what its servers have answered."""

from __future__ import annotations

import pytest

from django_zklock.zk.lease import LastContact

T = 12.0  # seconds, of the session; a follower passes on what it heard within 3


@pytest.fixture
def contact() -> LastContact:
    """Of a connection that was made at 100."""
    contact = LastContact()
    contact.restart(100.0)
    return contact


def test_the_leader_knows_of_the_connect_itself(contact: LastContact) -> None:
    """A session that was just made, or taken to another server, has its whole time."""
    assert contact.known_to_leader(100.0, T) == 100.0


def test_what_a_follower_has_just_heard_does_not_count(contact: LastContact) -> None:
    """It tells the leader within half a tick, and may be cut off before."""
    contact.record(109.0, 109.1, T)
    assert contact.known_to_leader(112.0, T) == 100.0
    assert contact.known_to_leader(112.1, T) == 109.0


def test_the_newest_answer_that_was_passed_on_counts(contact: LastContact) -> None:
    for sent_at in (102.0, 104.0, 106.0, 108.0):
        contact.record(sent_at, sent_at + 0.5, T)
    assert contact.known_to_leader(110.0, T) == 106.0


def test_a_new_connection_begins_anew(contact: LastContact) -> None:
    """What the old server heard last may never have been passed on."""
    contact.record(105.0, 105.1, T)
    contact.restart(107.0)
    assert contact.known_to_leader(120.0, T) == 107.0


def test_what_is_noted_does_not_grow_with_the_number_of_answers(contact: LastContact) -> None:
    """A process that takes a thousand locks a second remembers as little as one that idles."""
    for number in range(100_000):
        contact.record(100 + number / 1000, 100 + number / 1000, T)
    assert len(contact._replies) < 100
    assert contact.known_to_leader(200.0, T) == pytest.approx(197.0, abs=T / 60)


def test_a_late_answer_does_not_hide_the_one_right_after_it(contact: LastContact) -> None:
    """A process that was paused reads an old answer as it goes on, and a new one at once: the new one counts."""
    contact.record(102.0, 108.0, T)
    contact.record(108.001, 108.002, T)
    assert contact.known_to_leader(108.002 + T / 4, T) == 108.001
