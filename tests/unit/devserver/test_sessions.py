"""The dev server's sessions: when they end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from django_zklock.testing.server.database import Sessions


def some() -> Sessions:
    return Sessions(tick=0.5, shortest=1, longest=10, first_id=1)


@given(st.floats(1, 10), st.floats(0, 10_000))
def test_a_session_ends_within_a_tick_after_its_timeout_and_never_before(timeout: float, now: float) -> None:
    """Deadlines fall on whole ticks, later than the timeout."""
    sessions = some()
    session = sessions.open(timeout, now)
    assert now + timeout < session.deadline <= now + timeout + sessions.tick + 1e-6
    assert sessions.overdue(session.deadline - 0.001) == []
    assert sessions.overdue(session.deadline) == [session]


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(0, 3)), max_size=40))
def test_each_session_expires_once_at_its_deadline(touches: list[tuple[int, float]]) -> None:
    """However they are heard of, each session is due exactly once, at its own deadline."""
    sessions = some()
    five = [sessions.open(2.0, 0.0) for _ in range(5)]
    now = 0.0
    for which, later in touches:
        now += later
        sessions.touch(five[which], now)
    assert set(sessions.overdue(now + 100)) == set(five)
    assert sessions.next_deadline() == min(session.deadline for session in five)
    for session in five:
        assert sessions.end(session.id)
        assert not sessions.end(session.id)
        sessions.touch(session, now)
    assert sessions.overdue(now + 100) == []
    assert sessions.next_deadline() is None
    assert len(sessions) == 0
