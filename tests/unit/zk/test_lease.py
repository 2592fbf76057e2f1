"""When the leader last heard of a session, computed from the replies of its servers."""

from __future__ import annotations

import pytest

from django_zklock.core.zk.lease import LastContact

T = 12.0  # seconds: the session timeout; a follower reports its contacts within 3 s


@pytest.fixture
def contact() -> LastContact:
    """The last contact on a connection whose connect was sent at 100."""
    contact = LastContact()
    contact.restart(100.0)
    return contact


def test_a_lease_after_a_connect_has_the_whole_timeout(contact: LastContact) -> None:
    assert contact.known_to_leader(100.0, T) == 100.0


def test_a_contact_that_the_follower_may_not_have_reported_does_not_count(contact: LastContact) -> None:
    """The follower reports within half a tick, and may be cut off before."""
    contact.record(109.0, 109.1, T)
    assert contact.known_to_leader(112.0, T) == 100.0
    assert contact.known_to_leader(112.1, T) == 109.0


def test_the_newest_reported_contact_counts(contact: LastContact) -> None:
    for sent_at in (102.0, 104.0, 106.0, 108.0):
        contact.record(sent_at, sent_at + 0.5, T)
    assert contact.known_to_leader(110.0, T) == 106.0


def test_a_new_connection_forgets_older_contacts(contact: LastContact) -> None:
    """The old server may never have reported its last contacts."""
    contact.record(105.0, 105.1, T)
    contact.restart(107.0)
    assert contact.known_to_leader(120.0, T) == 107.0


def test_the_memory_does_not_grow_with_the_number_of_replies(contact: LastContact) -> None:
    """A process that acquires a thousand locks a second stores as little as an idle one."""
    for number in range(100_000):
        contact.record(100 + number / 1000, 100 + number / 1000, T)
    assert len(contact._replies) < 100
    assert contact.known_to_leader(200.0, T) == pytest.approx(197.0, abs=T / 60)


def test_a_late_reply_does_not_hide_the_next_one(contact: LastContact) -> None:
    """After a pause, a process reads an old reply and a new one within a moment. The new one counts."""
    contact.record(102.0, 108.0, T)
    contact.record(108.001, 108.002, T)
    assert contact.known_to_leader(108.002 + T / 4, T) == 108.001
