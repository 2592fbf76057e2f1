"""The page of memory that a worker's main process shares with its pool processes."""

from __future__ import annotations

import os
import select
from collections.abc import Callable

import pytest

from django_zklock.contrib.celery.line.page import RECORDS, GrantPage


@pytest.fixture
def page() -> GrantPage:
    return GrantPage()


def in_child(work: Callable[[], bool]) -> bool:
    """Return what `work` returns in a forked child."""
    pid = os.fork()
    if pid == 0:
        os._exit(0 if work() else 1)
    return os.waitpid(pid, 0)[1] == 0


def begin_and_end(page: GrantPage, place: int, number: int) -> bool:
    begun = page.begin(place, number)
    page.end(place, number)
    return begun


def added(page: GrantPage) -> tuple[int, int]:
    found = page.add()
    assert found is not None
    return found


def test_a_child_reads_the_lease(page: GrantPage) -> None:
    """It reads what the parent writes later, too, and never an old end with a new session."""
    assert page.until == float("-inf")
    page.set_lease(12.5, 7)
    assert in_child(lambda: (page.until, page.session_id) == (12.5, 7))


def test_a_record_tells_a_child_the_news(page: GrantPage) -> None:
    """A changed version says that there are some."""
    place, number = added(page)
    before = page.version(place)
    page.write(place, number, {"suspect": "why"})
    assert in_child(lambda: page.is_current(place, number) and page.read(place) == {"suspect": "why"})
    assert page.version(place) != before


def test_long_news_are_refused(page: GrantPage) -> None:
    """A text that is cut would be no JSON any more."""
    place, number = added(page)
    with pytest.raises(ValueError, match="too long"):
        page.write(place, number, {"lost": "x" * 5000})


def test_a_child_begins_and_ends(page: GrantPage) -> None:
    """The parent is woken, and knows which process it was."""
    place, number = added(page)
    assert not page.has_ended(place, number)
    assert in_child(lambda: begin_and_end(page, place, number))
    assert page.begun_by(place, number) != 0
    assert page.has_ended(place, number)
    assert select.select([page.wakeup], [], [], 5)[0]
    page.wakeup.drain()
    assert not select.select([page.wakeup], [], [], 0)[0]


def test_a_cancelled_grant_is_not_begun(page: GrantPage) -> None:
    """Either the parent sees that the child has begun, or the child sees that it may not."""
    place, number = added(page)
    assert page.cancel(place, number) == 0
    assert in_child(lambda: not page.begin(place, number))


def test_an_old_number_means_nothing(page: GrantPage) -> None:
    """A process that comes too late for its grant does not touch the next one of the record."""
    place, number = added(page)
    page.remove(place)
    others = [added(page) for _ in range(RECORDS)]
    assert others[-1] == (place, number + RECORDS)
    assert in_child(lambda: not begin_and_end(page, place, number))
    assert (page.begun_by(*others[-1]), page.has_ended(*others[-1])) == (0, False)


def test_there_is_room_for_a_thousand(page: GrantPage) -> None:
    """There is no room for one more until one is removed."""
    places = [added(page)[0] for _ in range(RECORDS)]
    assert page.add() is None
    page.remove(places[3])
    assert added(page)[0] == places[3]
