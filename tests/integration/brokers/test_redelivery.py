"""Tasks that Redis or RabbitMQ delivers again while they run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import celery
import pytest
from celery.result import AsyncResult
from support.brokers import RabbitMQ, Redis
from support.worker import Gate, Worker
from support.zoo import Zoo, eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.chaos]

SESSION_TIMEOUT = 4.0
VISIBILITY = 1.0  # seconds, far less than a task takes: Redis delivers it again while it runs


@pytest.fixture
def lone_worker(rabbitmq: RabbitMQ, zoo: Zoo, tmp_path: Path) -> Iterator[Worker]:
    rabbitmq.clear()
    with Worker(zoo, tmp_path, session_timeout=SESSION_TIMEOUT, conf=rabbitmq.conf) as worker:
        yield worker


@pytest.fixture
def hasty_worker(redis: Redis, zoo: Zoo, tmp_path: Path) -> Iterator[Worker]:
    """A worker to which Redis delivers a task again after one second, even if the task runs."""
    redis.clear()
    conf = redis.returning(VISIBILITY)
    with Worker(zoo, tmp_path, session_timeout=SESSION_TIMEOUT, conf=conf) as worker:
        yield worker


def count_deliveries(worker: Worker, result: AsyncResult[Any]) -> int:
    return worker.log.read_text().count(f"[{result.id}] received")


def wait_delivered_again(redis: Redis, worker: Worker, result: AsyncResult[Any]) -> None:
    def delivered_again() -> bool:
        redis.bring_back(VISIBILITY)
        return count_deliveries(worker, result) > 1

    eventually(delivered_again, 20)


@pytest.mark.skipif(
    celery.VERSION < (5, 7), reason="this Celery forgets which processes are busy, and a copy may wait behind the first"
)
@pytest.mark.parametrize("task", ["late", "late_again"])
def test_of_two_copies_of_a_task_one_runs(rabbitmq: RabbitMQ, lone_worker: Worker, zoo: Zoo, task: str) -> None:
    result, gate = lone_worker.begin(task, "twice")
    pid = gate.wait_at_work()
    rabbitmq.disconnect_all()
    assert_one_runs(lone_worker, zoo, "twice", result, gate, pid)


def test_a_task_longer_than_the_visibility_timeout_runs_once(redis: Redis, hasty_worker: Worker, zoo: Zoo) -> None:
    result, gate = hasty_worker.begin("late", "long")
    pid = gate.wait_at_work()
    wait_delivered_again(redis, hasty_worker, result)
    assert_one_runs(hasty_worker, zoo, "long", result, gate, pid)


def test_a_countdown_longer_than_the_visibility_timeout_makes_copies(redis: Redis, hasty_worker: Worker) -> None:
    """The how-to warns of this: for Redis, a task that waits in a worker for its time is not acknowledged."""
    result = hasty_worker.send("plain", "countdown", countdown=4)
    wait_delivered_again(redis, hasty_worker, result)
    assert hasty_worker.get(result)["args"] == ["countdown"]
    assert hasty_worker.stop() == 0  # or the next copy would be killed as it holds the lock


def assert_one_runs(worker: Worker, zoo: Zoo, key: str, result: AsyncResult[Any], gate: Gate, pid: int) -> None:
    eventually(lambda: f"[{result.id}] retry" in worker.log.read_text(), 20)
    assert len(zoo.children(key)) == 1
    gate.open()
    eventually(lambda: result.state == "SUCCESS", 20)
    eventually(lambda: f"[{result.id}] ignored" in worker.log.read_text(), 20)
    assert int((gate.path / "entered").read_text()) == pid
