"""The memory that a worker's main process shares with its pool processes."""

from __future__ import annotations

import os
import select
from collections.abc import Callable

import pytest

from django_zklock.contrib.celery.dispatch.shared_grants import LONGEST_EVENT, RECORDS, SharedGrants


@pytest.fixture
def shared() -> SharedGrants:
    return SharedGrants()


def in_child(work: Callable[[], bool]) -> bool:
    """Return what `work` returns in a forked child."""
    pid = os.fork()
    if pid == 0:
        os._exit(0 if work() else 1)
    return os.waitpid(pid, 0)[1] == 0


def begin_and_end(shared: SharedGrants, index: int, number: int) -> bool:
    begun = shared.begin(index, number)
    shared.end(index, number)
    return begun


def added(shared: SharedGrants) -> tuple[int, int]:
    record = shared.add()
    assert record is not None
    return record


def test_a_child_reads_the_lease(shared: SharedGrants) -> None:
    """It reads what the parent writes later, too, and never an old end with a new session."""
    assert shared.until == float("-inf")
    shared.set_lease(12.5, 7)
    assert in_child(lambda: (shared.until, shared.session_id) == (12.5, 7))


def test_a_child_reads_what_happens_to_a_lock(shared: SharedGrants) -> None:
    """It reads each event once, in order, and whether the session is confirmed now."""
    index, number = added(shared)
    shared.append(index, {"request": "first"})
    shared.set_suspect(index, suspect=True)
    assert in_child(lambda: shared.is_current(index, number) and shared.is_suspect(index))
    events, read_to = shared.events(index, 0)
    shared.append(index, {"lost": "why"})
    assert events == [{"request": "first"}]
    assert in_child(lambda: shared.events(index, read_to)[0] == [{"lost": "why"}])


def test_a_loss_always_has_room(shared: SharedGrants) -> None:
    """A record that is full takes no more requests, and is not cut."""
    index, _ = added(shared)
    for number in range(20):
        shared.append(index, {"request": str(number).zfill(500)})
    shared.append(index, {"lost": "x" * (LONGEST_EVENT - 20)})
    *requests, lost = shared.events(index, 0)[0]
    assert [int(event["request"]) for event in requests] == list(range(len(requests)))
    assert 0 < len(requests) < 20
    assert "lost" in lost


def test_a_new_grant_of_a_record_has_no_events(shared: SharedGrants) -> None:
    index, _ = added(shared)
    shared.append(index, {"lost": "why"})
    shared.set_suspect(index, suspect=True)
    shared.remove(index)
    indices = [added(shared)[0] for _ in range(RECORDS)]
    assert index in indices
    assert (shared.events(index, 0), shared.is_suspect(index)) == (([], 0), False)


def test_a_child_says_that_it_is_ready(shared: SharedGrants) -> None:
    """The parent is woken. A pool that is smaller has fewer."""
    assert shared.ready_processes(4) == {}

    def say_ready() -> bool:
        shared.set_ready(2, os.getpid())
        return True

    assert in_child(say_ready)
    assert select.select([shared.wakeup], [], [], 5)[0]
    assert list(shared.ready_processes(4)) == [2]
    assert shared.ready_processes(2) == {}


def test_a_child_begins_and_ends(shared: SharedGrants) -> None:
    """The parent is woken, and knows which process it was."""
    index, number = added(shared)
    assert not shared.has_ended(index, number)
    assert in_child(lambda: begin_and_end(shared, index, number))
    assert shared.begun_by(index, number) != 0
    assert shared.has_ended(index, number)
    assert select.select([shared.wakeup], [], [], 5)[0]
    shared.wakeup.drain()
    assert not select.select([shared.wakeup], [], [], 0)[0]


def test_a_cancelled_grant_is_not_begun(shared: SharedGrants) -> None:
    """Either the parent sees that the child has begun, or the child sees that it may not."""
    index, number = added(shared)
    assert shared.cancel(index, number) == 0
    assert in_child(lambda: not shared.begin(index, number))


def test_an_old_number_means_nothing(shared: SharedGrants) -> None:
    """A process that comes too late for its grant does not touch the next one of the record."""
    index, number = added(shared)
    shared.remove(index)
    others = [added(shared) for _ in range(RECORDS)]
    assert others[-1] == (index, number + RECORDS)
    assert in_child(lambda: not begin_and_end(shared, index, number))
    assert (shared.begun_by(*others[-1]), shared.has_ended(*others[-1])) == (0, False)


def test_there_is_room_for_a_thousand(shared: SharedGrants) -> None:
    """There is no room for one more until one is removed."""
    indexs = [added(shared)[0] for _ in range(RECORDS)]
    assert shared.add() is None
    shared.remove(indexs[3])
    assert added(shared)[0] == indexs[3]
