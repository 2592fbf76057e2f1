"""A lock that is acquired here, as in a request, and released by a task."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from support.worker import Worker
from support.zoo import Zoo

from django_zklock import zk_lock
from django_zklock.exceptions import LockBusy, ZkLockError

pytestmark = pytest.mark.zookeeper


@pytest.fixture(autouse=True)
def zoo(worker: Worker) -> Iterator[Zoo]:
    with worker.zoo.configured():
        yield worker.zoo


def test_a_task_goes_on_under_the_lock(worker: Worker) -> None:
    with zk_lock("given") as hold:
        text = hold.hand_over(within=60)
    gate = worker.gate()
    result = worker.send("adopting", text, "linger", str(gate))
    gate.wait_at_work()
    with pytest.raises(LockBusy, match="adopting"), zk_lock("given", timeout=0):
        pass
    assert "it was adopted by 'task adopting" in worker.run("adopting", text)
    gate.open()
    assert worker.get(result) > hold.token
    with zk_lock("given", timeout=0):
        pass


def test_a_task_whose_adopter_died_is_told_so(worker: Worker) -> None:
    """Its message is delivered again, and finds the lock adopted."""
    with zk_lock("given") as hold:
        text = hold.hand_over(within=60)
    gate = worker.gate()
    result = worker.send("adopting", text, "linger", str(gate))
    os.kill(gate.wait_at_work(), signal.SIGKILL)
    assert "cannot be adopted: " in worker.get(result)
    with zk_lock("given", timeout=20):
        pass


def test_a_task_cannot_hand_over_the_lock_that_it_has_waited_for(worker: Worker) -> None:
    """The main process of its worker holds that lock. The error says so, and the task ends with it."""
    error = worker.wait_failed(worker.send("giving", "waited"))
    assert isinstance(error, ZkLockError)
    assert "main process of a Celery worker" in str(error)
    worker.zoo.wait_contenders("waited", 0)
