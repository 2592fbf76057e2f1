"""What becomes of a task that its broker delivers again while it runs, as brokers do: Redis and RabbitMQ."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers import Broker, RabbitMQ, Redis
from support.worker import Worker
from support.zoo import Zoo, eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.scenario("BROKERS")]

SESSION_TIMEOUT = 4.0
VISIBILITY = 1.0  # seconds, far less than a task takes: Redis delivers it again while it runs


@pytest.fixture
def forgetful_worker(broker: Broker, zoo: Zoo, tmp_path: Path) -> Iterator[Worker]:
    """A worker of its own; from Redis it gets a task again after a second, though it is still at it."""
    broker.clear()
    conf = broker.returning(VISIBILITY) if isinstance(broker, Redis) else broker.conf
    with Worker(zoo, tmp_path, session_timeout=SESSION_TIMEOUT, conf=conf) as worker, worker.log_shown():
        yield worker


def deliver_again(broker: Broker) -> None:
    """Have the broker deliver what the workers are at once more."""
    if isinstance(broker, RabbitMQ):
        broker.disconnect_all()


def test_of_a_task_that_is_delivered_twice_one_copy_runs_at_a_time(
    broker: Broker, forgetful_worker: Worker, zoo: Zoo
) -> None:
    """The second copy stands in the queue behind the first, and runs when that has ended, not beside it."""
    worker, gate = forgetful_worker, forgetful_worker.gate()
    result = worker.send("late", "twice", "linger", str(gate))
    pid = gate.wait_entered()
    deliver_again(broker)
    zoo.wait_contenders("twice", 2, timeout=20)
    first, second = zoo.payloads("twice")
    assert first is not None
    assert second is not None
    assert first.what == second.what == f"task late {result.id}"
    assert (first.pid, second.pid == pid) == (pid, False)
    assert int((gate.path / "entered").read_text()) == pid
    gate.open()
    zoo.assert_empty(timeout=20)
    assert result.state == "SUCCESS"


def test_of_a_task_that_is_delivered_twice_the_second_copy_comes_again(
    broker: Broker, forgetful_worker: Worker, zoo: Zoo
) -> None:
    """It finds the lock held by its own first copy, and is sent again until that has ended."""
    worker, gate = forgetful_worker, forgetful_worker.gate()
    result = worker.send("late_again", "again", "linger", str(gate))
    pid = gate.wait_entered()
    deliver_again(broker)
    eventually(lambda: f"late_again[{result.id}] retry" in worker.log.read_text(), 20)
    assert len(zoo.children("again")) == 1
    assert int((gate.path / "entered").read_text()) == pid
    gate.open()
    eventually(lambda: result.state == "SUCCESS", 20)
