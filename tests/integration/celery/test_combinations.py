"""Features of locks for Celery in combination: two options on one task, two locks, a task in a task."""

from __future__ import annotations

import pytest
from celery import chain, states
from celery.exceptions import TaskRevokedError, WorkerLostError
from support.reserving import holder, reserved_names
from support.uniquetasks import until_done
from support.worker import Worker, settled
from support.zoo import Zoo, eventually

from django_zklock.contrib.celery.unique import lifecycle, reservations
from django_zklock.contrib.celery.unique.reservations import Reserved
from django_zklock.exceptions import LockBusy

pytestmark = pytest.mark.zookeeper


def test_a_waiting_task_that_gives_up_is_replaced(worker: Worker) -> None:
    """With `max_conflicts` the error is raised in the end. The next call must not rely on this task."""
    with worker.zoo.hold_elsewhere("gives-up"):
        first = worker.send("joint.bounded", "gives-up")
        assert isinstance(worker.wait_failed(first), LockBusy)
        assert worker.log.read_text().count(f"joint.bounded[{first.id}] retry") == 2
        eventually(lambda: not reserved_names(worker.zoo, "gives-up"))
        second = worker.send("joint.bounded", "gives-up")
        assert settled(second) == "RETRY"
    assert worker.get(second) == "done"


@pytest.mark.chaos
def test_a_waiting_task_that_dies_is_replaced(worker: Worker) -> None:
    with worker.zoo.hold_elsewhere("dies"):
        first = worker.send("joint.patient", "dies")
        assert settled(first) == "RETRY"
        assert reserved_names(worker.zoo, "dies")
        worker.zoo.wait_contenders("dies", 2)
        payload = worker.zoo.payloads("dies")[1]
        assert payload is not None
        worker.kill_process(payload.pid)
        assert isinstance(worker.wait_failed(first), WorkerLostError)
        eventually(lambda: not reserved_names(worker.zoo, "dies"))
        second = worker.send("joint.patient", "dies")
        assert settled(second) == "RETRY"
    assert worker.get(second) == "done"


def test_a_task_that_is_sent_again_still_hides_its_arguments(worker: Worker) -> None:
    begin = worker.log.stat().st_size
    with worker.zoo.hold_elsewhere("hides"):
        sent = worker.send("joint.hides", "hides", ignore_result=True, argsrepr="(hidden)", kwargsrepr="{hidden}")
        eventually(lambda: f"joint.hides[{sent.id}] retry" in worker.log.read_bytes()[begin:].decode())
    said = f"joint.hides[{sent.id}] succeeded"
    eventually(lambda: said in worker.log.read_bytes()[begin:].decode(), 20)
    assert "(hidden) {hidden} True" in worker.log.read_bytes()[begin:].decode()


def test_a_skipped_task_stores_its_end_as_errors_are_stored(worker: Worker) -> None:
    """Celery does the same with a revoked task."""
    with worker.zoo.hold_elsewhere("stores"):
        sent = worker.send("joint.stores_errors", "stores", ignore_result=True)
        with pytest.raises(TaskRevokedError):
            worker.get(worker.app.AsyncResult(sent.id), timeout=5)


def test_a_chain_ends_at_a_duplicate_within_it(publisher: Worker) -> None:
    """A caller that waits for the last step gets an error, even if it began to wait long before."""
    app, gate = publisher.app, publisher.gate()
    first = app.tasks["until_done"].si("chain", "linger", str(gate))
    same = app.tasks["until_done"].si("chain")
    last = chain(first, same, app.signature("ping", immutable=True), app=app).apply_async()
    gate.wait_at_work()
    gate.open()
    error = last.get(timeout=20, interval=0.01, propagate=False)
    assert isinstance(error, TaskRevokedError)


def test_coalesce_and_unique_go_together(worker: Worker) -> None:
    first, gate = worker.begin("joint.unique_coalesce", "both")
    second = worker.send("joint.unique_coalesce", "both")
    assert settled(second) == "RETRY"
    third = worker.send("joint.unique_coalesce", "both")  # by a process that does not know it to be unique
    assert settled(third) == "REVOKED"
    gate.open()
    assert worker.get(first) == "done"
    assert worker.get(second) == "done"
    eventually(lambda: not reserved_names(worker.zoo, "both"))


def test_a_copy_that_could_not_attach_frees_nothing(zoo: Zoo) -> None:
    """ZooKeeper was slow when the copy began. Then the copy was ignored, as another one runs: that one has the key."""
    with zoo.configured():
        key = "task/until_done/unique/copy"
        reservation = reservations.reserve(key, "one")
        assert isinstance(reservation, Reserved)
        reservations.conclude(reservation, sent=True)
        assert reservations.start(key, "one") is not None
        until_done.push_request(id="one", headers={lifecycle.UNIQUE_HEADER: key})
        try:
            lifecycle.on_postrun(until_done, "one", state=states.IGNORED)
        finally:
            until_done.pop_request()
        assert holder(key) == "one"
