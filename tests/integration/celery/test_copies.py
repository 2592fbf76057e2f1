"""Two copies of a task: two deliveries of one message, of which one waits until the other is gone."""

import uuid
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.exceptions import Ignore
from kazoo.exceptions import NoNodeError

from django_zklock import Lock
from django_zklock.contrib.celery import copies, messages
from django_zklock.contrib.celery.context import TaskContext
from django_zklock.contrib.celery.messages import COPIES_HEADER, COPY_HEADER
from django_zklock.core.execution.waiters import ThreadWaiter, run
from django_zklock.core.queue.nodes import Payload, prefix
from django_zklock.decorators.context import AcquireAgain
from django_zklock.exceptions import LockBusy

ID = "one"
ABOUT = {"task": "copied", "id": ID, "redelivered": "1"}
ENOUGH = copies.LOOK_EVERY / 2  # seconds: two looks


@pytest.fixture
def app():
    app = Celery(broker="memory://", backend="cache+memory://", set_as_current=False)
    yield app
    app.backend.forget(ID)
    app.close()


@pytest.fixture
def task(app):
    @app.task(name="copied", shared=False)
    def copied(): ...

    return copied


@pytest.fixture
def other_copy(zoo):
    """Put another copy into the queue. Yield a function that deletes it."""
    guid = str(uuid.uuid4())
    about = {"task": "copied", "id": ID}
    payload = Payload(guid=guid, host="far", pid=1, thread="", what="", since="", template="k", about=about)
    path = zoo.client.create(
        f"{zoo.base}/k/{prefix(guid)}", payload.encode(), ephemeral=True, sequence=True, makepath=True
    )

    def delete():
        zoo.client.delete(path)

    yield delete
    try:
        delete()
    except NoNodeError:
        pass


def wait(task, headers, *, longest, while_asking=lambda: None):
    def run_blocking(call):
        call()
        while_asking()

    call = SimpleNamespace(about=ABOUT, lock=Lock("k"))
    options = {"run_blocking": run_blocking, "longest": lambda copy: longest}
    return run(copies.wait_alone(task, ID, call, headers, ThreadWaiter, **options))


def test_a_task_without_a_copy_is_alone_at_once(zoo, task):
    headers = {}
    assert wait(task, headers, longest=0)
    assert headers == {}


def test_a_copy_that_stays_is_told_from_one_that_leaves(task, other_copy):
    headers = {}
    assert not wait(task, headers, longest=ENOUGH)
    assert wait(task, headers, longest=10, while_asking=other_copy)
    assert headers == {COPY_HEADER: copies.NONE}


@pytest.mark.parametrize("stays", [True, False])
def test_a_result_is_of_an_earlier_call_only_if_the_other_copy_is_still_queued(app, task, other_copy, stays):
    """Else that copy may have stored it before ZooKeeper has deleted its znode, and its work would be done twice."""
    app.backend.mark_as_done(ID, "result")
    headers = {}
    assert wait(task, headers, longest=ENOUGH, while_asking=(lambda: None) if stays else other_copy) is not stays
    assert headers == {COPY_HEADER: messages.finished_at(app.backend, ID) if stays else copies.NONE}


def test_a_copy_that_was_found_alive_is_not_waited_for_again(task, other_copy):
    """The slot, or the place on a quorum queue, would be lost for as long as the other one works."""
    headers = {COPIES_HEADER: 1}
    other = SimpleNamespace(session_timeout=20.0)
    assert copies.until_session_ends(other, {}) > other.session_timeout
    assert not wait(task, headers, longest=copies.until_session_ends(other, headers))
    assert headers == {COPY_HEADER: copies.NONE, COPIES_HEADER: 1}


@pytest.fixture
def running(task):
    """Yield a function that begins a run of a copy which has met another one."""

    def begin(earlier):
        task.push_request(id=ID, args=[], kwargs={}, headers={COPY_HEADER: earlier, "mine": 1})
        return task

    yield begin
    task.pop_request()


def test_a_copy_that_meets_another_one_again_keeps_the_mark_of_an_earlier_result(
    running,
):
    """Else it would take that result for the one of the other copy. It cannot be sent: it came by no queue."""
    task = running("earlier")
    with pytest.raises(AcquireAgain):
        TaskContext(task, task.run)._send_copy_again(LockBusy("busy"))
    assert task.request.headers[COPY_HEADER] == "earlier"


def test_a_copy_whose_work_is_done_ends(app, running):
    app.backend.mark_as_done(ID, "result")
    with pytest.raises(Ignore):
        copies.check_done(running(copies.NONE))


def test_a_result_that_is_stored_after_the_release_counts(app, running, monkeypatch):
    """The lock of the other copy is free before its result is stored."""
    monkeypatch.setattr("time.sleep", lambda seconds: app.backend.mark_as_done(ID, "result"))
    with pytest.raises(Ignore):
        copies.check_done(running(copies.NONE))


@pytest.mark.parametrize("earlier", [True, False])
def test_a_copy_without_a_result_of_the_other_one_does_the_work(app, running, earlier):
    """And it is no copy of another one from then on: it may be sent again, as by `retry`."""
    if earlier:  # a call with the same id
        app.backend.mark_as_done(ID, "result")
    task = running(messages.finished_at(app.backend, ID) or copies.NONE)
    copies.check_done(task)
    assert task.request.headers == {"mine": 1}
