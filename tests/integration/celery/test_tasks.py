"""Decorated Celery tasks on a real worker: when they are sent again, fail or are skipped; also with several locks."""

import re

import pytest
from celery import chain
from celery.exceptions import TaskRevokedError
from support import celeryapp
from support.policytasks import SHARES
from support.worker import outcome
from support.zoo import eventually

from django_zklock.contrib.celery.messages import CONFLICTS_HEADER
from django_zklock.exceptions import LockBusy, LockInTransaction


def test_conflicts_do_not_count_as_retries_of_the_task(worker):
    names = ["plain", "bound", "greedy"]  # the last two may retry three times and once
    with worker.zoo.hold_elsewhere("budget"):
        results = [worker.send(name, "budget") for name in names]
        for result in results:
            eventually(lambda result=result: len(delays(worker, result.id)) > 3, 20)
            assert result.state == "RETRY"
    for result in results:
        account = worker.get(result)
        assert (account["retries"], account["args"]) == (0, ["budget"])
        assert account["headers"] == {CONFLICTS_HEADER: len(delays(worker, result.id))}
        assert result.state == "SUCCESS"


def test_a_task_is_not_sent_again_if_it_expires_before(worker):
    with worker.zoo.hold_elsewhere("stale"):
        result = worker.send("plain", "stale", expires=1)
        with pytest.raises(TaskRevokedError, match="expired"):
            worker.get(result)
    assert sum(delays(worker, result.id)) < 1


def test_a_task_has_no_contender_until_it_is_sent_again(worker):
    with worker.zoo.hold_elsewhere("place"):
        task = worker.send("plain", "place")
        eventually(lambda: task.state == "RETRY")
        assert len(worker.zoo.children("place")) == 1
        function = worker.send("helped", "place")
        worker.zoo.wait_contenders("place", 2)
    assert worker.get(function) < 10
    worker.get(task)


def test_a_task_may_release_its_lock_before_its_end(worker):
    """Others get it at once, and the task succeeds."""
    for name in ("policy.raise", "policy.retry", "policy.wait", "policy.wait.late", "several.wait"):
        result = worker.send(name, "early", "release")
        assert (worker.get(result), result.state) == ("done", "SUCCESS"), name


def test_a_broker_for_development_is_known(worker):
    """The tutorial uses a folder."""
    worker.run("policy.wait", "known")
    assert "delivers again is not known" not in worker.log.read_text()


def test_an_error_of_the_work_is_handled_by_celery(worker):
    assert isinstance(worker.wait_failed(worker.send("plain", "error", "fail", "x")), ValueError)
    greedy = worker.send("greedy", "error", "fail", "x")
    # From the log: when a retry does not wait, Celery's note of it may overwrite the result of the second run.
    said = re.compile(rf"greedy\[{greedy.id}\] (retry|raised unexpected): .*ValueError\('x'\)")
    eventually(lambda: len(said.findall(worker.log.read_text())) > 1, 20, worker.log)
    assert sorted(said.findall(worker.log.read_text())) == ["raised unexpected", "retry"]
    worker.zoo.assert_empty()


def test_the_policy_raise_works_with_celerys_own_retries(worker):
    """`autoretry_for=(LockNotAcquired,)` is Celery's own way, and counts as a retry."""
    with worker.zoo.hold_elsewhere("again"):
        result = worker.send("again", "again")
        eventually(lambda: result.state == "RETRY")
    account = worker.get(result)
    assert account["retries"] > 0
    assert account["headers"] == {}


def test_the_queue_shows_the_task_without_its_arguments(worker):
    result, gate = worker.begin("plain", "payload")
    (name,) = worker.zoo.children("payload")
    data = worker.zoo.client.get(f"{worker.zoo.base}/payload/{name}")[0]
    (payload,) = worker.zoo.payloads("payload")
    gate.open()
    assert payload is not None
    assert payload.what == f"task plain {result.id}"
    assert payload.about == {"task": "plain", "id": result.id, "queue": "celery", "retries": "0"}
    assert b"linger" not in data
    assert gate.path.name.encode() not in data
    worker.get(result)


def test_arguments_are_checked_where_a_task_is_sent():
    for task in (celeryapp.plain, celeryapp.bound, celeryapp.greedy):
        with pytest.raises(TypeError, match="key"):
            task.delay()
        task.delay("x", verb="tell")


def test_a_task_that_is_called_directly_raises(zoo):
    """It cannot be sent again."""
    assert celeryapp.plain("direct") is not None
    with zoo.hold_elsewhere("direct"):
        for task in (celeryapp.plain, celeryapp.bound):
            with pytest.raises(LockBusy):
                task("direct")
        assert celeryapp.skipping("direct") is None


def delays(worker, task_id):
    return [float(delay) for delay in re.findall(rf"\[{task_id}\] retry: Retry in ([\d.]+)s", worker.log.read_text())]


def test_a_transaction_above_the_lock_of_a_task_is_refused(worker):
    """`@transaction.atomic` above `@zk_locked` would commit after the release, so the task fails."""
    error = worker.wait_failed(worker.send("atomic_above", "above"))
    assert isinstance(error, LockInTransaction)
    assert 'release_on="commit"' in str(error)


def test_a_task_may_keep_its_lock_until_its_transaction_has_ended(worker):
    assert worker.get(worker.send("kept", "kept")) is True
    worker.zoo.wait_contenders("kept", 0, timeout=2)


@pytest.mark.parametrize("name", ["atomic_below", "atomic_option"])
def test_a_transaction_inside_the_lock_of_a_task_is_committed_under_it(worker, name):
    mark = worker.home / name
    assert worker.get(worker.send(name, "inside", str(mark))) is True
    assert mark.read_text() == "False"


def test_a_task_is_unique_by_all_its_keys(publisher):
    send = publisher.app.tasks["several.transfer"].apply_async
    gate = publisher.gate()
    first = send(("1", "2", "linger", str(gate)))
    gate.wait_at_work()
    assert send(("2", "1")).id == first.id
    other = send(("2", "3"))
    assert other.id != first.id
    eventually(lambda: other.state == "RETRY")
    gate.open()
    publisher.get(first)
    assert publisher.get(other)["headers"][CONFLICTS_HEADER] >= 1
    again = send(("2", "1"))
    assert again.id != first.id
    publisher.get(again)


def test_a_revoked_task_leaves_no_lock(worker):
    with worker.zoo.hold_elsewhere("limit/b"):
        result = worker.send("several.wait", "limit")
        worker.zoo.wait_contenders("limit/a", 1)
        result.revoke()
        assert outcome(result) == "TaskRevokedError"
        worker.zoo.wait_contenders("limit/a", 0, timeout=2)
        worker.zoo.wait_contenders("limit/b", 1, timeout=2)


@pytest.mark.parametrize("kind", SHARES)
def test_two_tasks_share_a_semaphore(worker, kind):
    tasks = [worker.begin(f"sharing.{kind}.raise", f"both-{kind}") for _ in range(2)]
    held = {payload.about["id"] for payload in worker.zoo.payloads(f"both-{kind}")}
    assert worker.finish(tasks) == ["done", "done"]
    assert held == {result.id for result, _ in tasks}


@pytest.mark.parametrize("kind", SHARES)
@pytest.mark.parametrize("policy", ["retry", "wait"])
def test_a_task_may_wait_for_one_that_shares_its_lock(worker, kind, policy):
    assert worker.run("sharing.waits", f"room-{kind}-{policy}", kind, f"sharing.{kind}.{policy}") == "done"


# --- two options on one task, two locks, a task in a task -------------------------------------------------------------


def test_a_task_that_was_sent_again_as_often_as_max_conflicts_allows_fails(worker):
    with worker.zoo.hold_elsewhere("gives-up"):
        first = worker.send("joint.bounded", "gives-up")
        assert isinstance(worker.wait_failed(first), LockBusy)
        assert worker.log.read_text().count(f"joint.bounded[{first.id}] retry") == 2


def test_a_task_that_is_sent_again_still_hides_its_arguments(worker):
    begin = worker.log.stat().st_size
    with worker.zoo.hold_elsewhere("hides"):
        sent = worker.send("joint.hides", "hides", ignore_result=True, argsrepr="(hidden)", kwargsrepr="{hidden}")
        eventually(lambda: f"joint.hides[{sent.id}] retry" in worker.log.read_bytes()[begin:].decode())
    said = f"joint.hides[{sent.id}] succeeded"
    eventually(lambda: said in worker.log.read_bytes()[begin:].decode(), 20)
    assert "(hidden) {hidden} True" in worker.log.read_bytes()[begin:].decode()


def test_a_skipped_task_stores_its_end_as_errors_are_stored(worker):
    with worker.zoo.hold_elsewhere("stores"):
        sent = worker.send("joint.stores_errors", "stores", ignore_result=True)
        with pytest.raises(TaskRevokedError):
            worker.get(worker.app.AsyncResult(sent.id))


def test_a_chain_ends_at_a_duplicate_within_it(publisher):
    app, gate = publisher.app, publisher.gate()
    first = app.tasks["until_done"].si("chain", "linger", str(gate))
    same = app.tasks["until_done"].si("chain")
    last = chain(first, same, app.signature("ping", immutable=True), app=app).apply_async()
    gate.wait_at_work()
    gate.open()
    error = last.get(timeout=20, interval=0.01, propagate=False)
    assert isinstance(error, TaskRevokedError)
