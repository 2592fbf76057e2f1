"""Tasks with a maximum or minimum hold, and tasks that are asked to release, on a real worker."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.worker import Worker
from support.zoo import eventually

from django_zklock.exceptions import LockLost
from django_zklock.operations import end_hold, request_release

pytestmark = pytest.mark.zookeeper


def runs(folder: str) -> int:
    """Return how often a task has begun."""
    path = Path(folder, "runs")
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_a_task_that_takes_too_long_has_lost_its_lock(worker: Worker) -> None:
    """It is aborted, sent again as often as its options say, and fails in the end."""
    gate = worker.gate()
    result = worker.send("policy.overlong", "overlong", str(gate))
    error = worker.wait_failed(result)
    assert isinstance(error, LockLost)
    assert "held for longer than max_hold, 0.5 s" in str(error)
    assert runs(str(gate)) == 3
    assert worker.zoo.children("overlong") == []


def test_a_task_that_takes_too_long_may_do_better_the_next_time(worker: Worker) -> None:
    gate = worker.gate()
    result = worker.send("policy.overlong", "better", str(gate))
    eventually(lambda: runs(str(gate)) == 2, 20)
    gate.open()
    worker.get(result)


def test_a_task_sees_a_release_request(worker: Worker) -> None:
    """It sees the release request at its current hold."""
    gate = worker.gate()
    result = worker.send("policy.obliging", "obliging", str(gate))
    gate.wait_entered()
    with worker.zoo.configured():
        request_release("obliging", "deploy 42", by="anna")
    assert worker.get(result) == ["anna", "deploy 42"]


def test_a_job_that_several_beats_send_is_done_once(worker: Worker) -> None:
    """Later messages find the lock held, though the job is done."""
    assert worker.get(worker.send("policy.once", "once")) == "done"
    for _ in range(3):
        assert worker.get(worker.send("policy.once", "once")) == "somebody else did"
    (name,) = worker.zoo.children("once")
    path = f"{worker.zoo.base}/once/{name}"
    with worker.zoo.configured():
        end_hold("once", token=worker.zoo.client.exists(path).czxid, by="anna")
