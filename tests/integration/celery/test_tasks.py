"""A decorated Celery task on a real worker: when it is sent again, fails or is skipped."""

from __future__ import annotations

import re

import pytest
from celery.exceptions import TaskRevokedError
from support import celeryapp
from support.worker import Worker
from support.zoo import Zoo, eventually

from django_zklock import zk_locked
from django_zklock.contrib.celery.messages import CONFLICTS_HEADER, FIRST_DELAY
from django_zklock.exceptions import LockBusy, LockInTransaction

pytestmark = pytest.mark.zookeeper


# --- retry ----------------------------------------------------------------------------------------------------------


def test_conflicts_do_not_count_as_retries_of_the_task(worker: Worker) -> None:
    names = ["plain", "bound", "greedy"]  # the last two may retry three times and once
    with worker.zoo.hold_elsewhere("budget"):
        results = [worker.send(name, "budget") for name in names]
        for result in results:
            eventually(lambda result=result: len(delays(worker, result.id)) > 3, 20)  # type: ignore[misc]
            assert result.state == "RETRY"
    for result in results:
        account = worker.get(result)
        assert (account["retries"], account["args"]) == (0, ["budget"])
        assert account["headers"] == {CONFLICTS_HEADER: len(delays(worker, result.id))}
        assert result.state == "SUCCESS"


def test_the_delay_grows_and_is_partly_random(worker: Worker) -> None:
    """The delay grows and is partly random, so that tasks that met once do not meet again."""
    with worker.zoo.hold_elsewhere("pause"):
        results = [worker.send("plain", "pause") for _ in range(4)]
        for result in results:
            eventually(lambda result=result: len(delays(worker, result.id)) > 1, 20)  # type: ignore[misc]
    paused = [delays(worker, result.id) for result in results]
    for number in range(2):
        longest = FIRST_DELAY * 2**number
        assert all(longest / 2 <= pauses[number] <= longest for pauses in paused)
    assert len({pauses[0] for pauses in paused}) > 1
    for result in results:
        worker.get(result)


def test_a_task_is_not_sent_again_if_it_expires_before(worker: Worker) -> None:
    with worker.zoo.hold_elsewhere("stale"):
        result = worker.send("plain", "stale", expires=1)
        with pytest.raises(TaskRevokedError, match="expired"):
            worker.get(result)
    assert sum(delays(worker, result.id)) < 1


def test_a_task_has_no_contender_until_it_is_sent_again(worker: Worker) -> None:
    """By default a task does not wait in a worker. A locked function that is not a task does, also inside a task."""
    with worker.zoo.hold_elsewhere("place"):
        task = worker.send("plain", "place")
        eventually(lambda: task.state == "RETRY")
        assert len(worker.zoo.children("place")) == 1
        function = worker.send("helped", "place")
        worker.zoo.wait_contenders("place", 2)
    assert worker.get(function) < 10
    worker.get(task)


def test_an_error_of_the_work_is_handled_by_celery(worker: Worker) -> None:
    assert isinstance(worker.wait_failed(worker.send("plain", "error", "fail", "x")), ValueError)
    greedy = worker.send("greedy", "error", "fail", "x")
    # From the log: when a retry does not wait, Celery's note of it may overwrite the result of the second run.
    said = re.compile(rf"greedy\[{greedy.id}\] (retry|raised unexpected): .*ValueError\('x'\)")
    eventually(lambda: len(said.findall(worker.log.read_text())) > 1, 20, worker.log)
    assert sorted(said.findall(worker.log.read_text())) == ["raised unexpected", "retry"]
    worker.zoo.assert_empty()


# --- retries by Celery ----------------------------------------------------------------------------------------------


def test_the_policy_raise_works_with_celerys_own_retries(worker: Worker) -> None:
    """`autoretry_for=(LockNotAcquired,)` is Celery's own way, and counts as a retry."""
    with worker.zoo.hold_elsewhere("again"):
        result = worker.send("again", "again")
        eventually(lambda: result.state == "RETRY")
    account = worker.get(result)
    assert account["retries"] > 0
    assert account["headers"] == {}


# --- what stays as it was -------------------------------------------------------------------------------------------


def test_the_queue_shows_the_task_without_its_arguments(worker: Worker) -> None:
    result, gate = worker.begin("plain", "payload")
    (name,) = worker.zoo.children("payload")
    data = worker.zoo.client.get(f"{worker.zoo.base}/payload/{name}")[0]
    (payload,) = worker.zoo.payloads("payload")
    gate.open()
    assert payload is not None
    assert payload.what == f"task plain {result.id}"
    assert payload.about.items() > {"task": "plain", "id": result.id, "queue": "celery", "retries": "0"}.items()
    assert payload.about.keys() == {"task", "id", "queue", "retries", "message"}
    assert b"linger" not in data
    assert gate.path.name.encode() not in data
    worker.get(result)


def test_arguments_are_checked_where_a_task_is_sent() -> None:
    for task in (celeryapp.plain, celeryapp.bound, celeryapp.greedy):
        with pytest.raises(TypeError, match="key"):
            task.delay()
        task.delay("x", verb="tell")


def test_a_task_that_is_called_directly_raises(zoo: Zoo) -> None:
    """It cannot be sent again."""
    assert celeryapp.plain("direct") is not None
    with zoo.hold_elsewhere("direct"):
        for task in (celeryapp.plain, celeryapp.bound):
            with pytest.raises(LockBusy):
                task("direct")
        assert celeryapp.skipping("direct") is None


def test_a_task_object_is_refused() -> None:
    """The worker would skip a lock above `@app.task`. The error shows the right order."""
    with pytest.raises(TypeError, match=r"@shared_task\n.*@zk_locked"):

        @zk_locked("x")
        @celeryapp.app.task(name="upside-down")
        def work() -> None: ...


def delays(worker: Worker, task_id: str) -> list[float]:
    return [float(delay) for delay in re.findall(rf"\[{task_id}\] retry: Retry in ([\d.]+)s", worker.log.read_text())]


# --- transactions ---------------------------------------------------------------------------------------------------


def test_a_transaction_above_the_lock_of_a_task_is_refused(worker: Worker) -> None:
    """`@transaction.atomic` above `@zk_locked` would commit after the release, so the task fails."""
    error = worker.wait_failed(worker.send("atomic_above", "above"))
    assert isinstance(error, LockInTransaction)
    assert 'release_on="commit"' in str(error)


def test_a_task_may_keep_its_lock_until_its_transaction_has_ended(worker: Worker) -> None:
    assert worker.get(worker.send("kept", "kept")) is True
    worker.zoo.wait_contenders("kept", 0, timeout=2)


@pytest.mark.parametrize("name", ["atomic_below", "atomic_option"])
def test_a_transaction_inside_the_lock_of_a_task_is_committed_under_it(worker: Worker, name: str) -> None:
    mark = worker.home / name
    assert worker.get(worker.send(name, "inside", str(mark))) is True
    assert mark.read_text() == "False"
