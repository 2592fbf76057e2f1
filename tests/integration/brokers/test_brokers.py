"""Busy locks on real brokers: Redis and RabbitMQ."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import chord
from celery.exceptions import ChordError, TaskRevokedError
from support.brokers import RabbitMQ
from support.ensemble import Ensemble
from support.worker import Worker
from support.zoo import Zoo, eventually

pytestmark = [pytest.mark.zookeeper]

SESSION_TIMEOUT = 4.0
CRASH = SESSION_TIMEOUT + 2 * 0.5 + 1.0  # seconds until a crashed holder is replaced, and one for a busy machine


@pytest.fixture(scope="module", params=["redis", pytest.param("rabbitmq", marks=pytest.mark.chaos)])
def shared_worker(
    request: pytest.FixtureRequest, single: Ensemble, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Worker]:
    """A worker on each broker, for the tests that do not end it."""
    if request.param == "redis":
        yield request.getfixturevalue("redis_worker")
        return
    rabbitmq: RabbitMQ = request.getfixturevalue("rabbitmq")
    rabbitmq.clear()
    zoo = Zoo(single.hosts, single)
    home = tmp_path_factory.mktemp("worker")
    with Worker(zoo, home, session_timeout=SESSION_TIMEOUT, conf=rabbitmq.conf) as worker:
        yield worker
    zoo.close()


# --- busy -----------------------------------------------------------------------------------------------------------


def test_retry_sends_the_task_again(worker: Worker) -> None:
    """A task is sent again with all options of its message. Its own retries are not counted."""
    limits = {"soft_time_limit": 20, "time_limit": 30}
    with worker.zoo.hold_elsewhere("again"):
        result = worker.send("bound", "again", queue="other", priority=3, expires=60, headers={"mine": "x"}, **limits)
        eventually(lambda: result.state == "RETRY")
    account = worker.get(result)
    assert (account["retries"], account["args"], account["queue"]) == (0, ["again"], "other")
    assert (account["priority"], account["headers"]["mine"]) == (3, "x")
    assert account["headers"]["zklock_conflicts"] >= 1
    assert account["limits"] == [30, 20]
    assert account["expires"] is not None
    assert result.state == "SUCCESS"


def test_skip_fails_a_chord(worker: Worker) -> None:
    """A chord with a skipped part fails, also if the backend counts its parts."""
    with worker.zoo.hold_elsewhere("chord"):
        parts = [worker.app.signature("skipping", (key,)) for key in ("chord", "free")]
        result = chord(parts, app=worker.app)(worker.app.signature("follow", (str(worker.home / "body"),)))
        with pytest.raises((ChordError, TaskRevokedError)):
            worker.get(result)
    assert not (worker.home / "body").exists()


# --- delivered again ------------------------------------------------------------------------------------------------


def test_a_task_of_a_killed_process_is_delivered_again(worker: Worker) -> None:
    """It waits for the lock that its first run has left, and runs."""
    result, gate = worker.begin("late", "killed")
    pid = gate.wait_at_work()
    worker.kill_process(pid)
    gate.open()
    assert worker.get(result, timeout=CRASH + 10)["pid"] in worker.children() | {pid}
