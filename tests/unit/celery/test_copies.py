"""A copy, a message that the broker delivers again: it asks the result backend before its work, under the lock."""

import time
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace

import pytest
from celery import Celery, states
from celery.exceptions import Ignore

from django_zklock.contrib.celery import messages
from django_zklock.contrib.celery.messages import COPY_HEADER

ID = "one"


@pytest.fixture
def app():
    app = Celery(broker="memory://", backend="cache+memory://", set_as_current=False)
    yield app
    app.backend.forget(ID)
    app.close()


@pytest.fixture
def copy(app):
    """Return a function that begins the run of a copy."""

    @app.task(name="copied", shared=False, acks_late=True)
    def copied(): ...

    def begin(came, *, late=True):
        copied.acks_late = late
        copied.push_request(id=ID, args=[], kwargs={}, headers={COPY_HEADER: came, "mine": 1})
        return copied

    yield begin
    copied.pop_request()


def test_a_copy_whose_work_was_done_since_it_came_ends(app, copy):
    task = copy(time.time())
    app.backend.mark_as_done(ID, "result")
    with pytest.raises(Ignore):
        messages.check_done(task)


def test_a_result_that_is_stored_after_the_release_counts(app, copy, monkeypatch):
    """The lock of the other run is free before its result is stored."""
    task = copy(time.time())
    monkeypatch.setattr("time.sleep", lambda seconds: app.backend.mark_as_done(ID, "result"))
    with pytest.raises(Ignore):
        messages.check_done(task)


def test_a_copy_of_a_task_that_acknowledges_early_does_not_wait_for_a_result(copy, monkeypatch):
    """No other run of it has begun, as a rule: many copies of waiting tasks come when a broker restarts."""
    slept = []
    monkeypatch.setattr("time.sleep", slept.append)
    messages.check_done(copy(time.time(), late=False))
    assert sum(slept) == 0


@pytest.mark.parametrize("earlier", [True, False])
def test_a_copy_without_a_new_result_does_the_work_and_is_no_copy_from_then_on(app, copy, earlier):
    if earlier:  # of a call with the same id, or of a run whose message was not acknowledged
        app.backend.mark_as_done(ID, "result")
    task = copy(time.time())
    messages.check_done(task)
    assert task.request.headers == {"mine": 1}


@pytest.mark.parametrize("came", ["none", "2026-01-01", float("nan"), None, [], {}, 1, True])
def test_a_header_that_anybody_has_written_drops_no_work(app, copy, came):
    app.backend.mark_as_done(ID, "result")
    messages.check_done(copy(came, late=False))


NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("moment", "seconds"),
    [
        (NOON.isoformat(), NOON.timestamp()),
        ("2026-11-30T12:00:00Z", NOON.timestamp()),
        (NOON.astimezone(timezone(timedelta(hours=2))).isoformat(), NOON.timestamp()),
        (NOON, NOON.timestamp()),
        (NOON.replace(tzinfo=None), NOON.timestamp()),  # as SQLAlchemy and MongoDB return it
        (None, 0.0),
        ("", 0.0),
        (7, 0.0),
    ],
)
def test_each_backend_says_in_its_way_when_a_result_was_stored(moment, seconds):
    stored = {"status": states.SUCCESS, "date_done": moment}
    backend = SimpleNamespace(as_uri=lambda: "any://", get_task_meta=lambda task_id, cache: stored)
    assert messages.finished_at(backend, ID) == seconds
    stored["status"] = states.RETRY
    assert messages.finished_at(backend, ID) is None
