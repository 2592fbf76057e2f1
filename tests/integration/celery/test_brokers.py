"""Busy locks on real brokers: Redis and RabbitMQ."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import chord
from celery.exceptions import ChordError, TaskRevokedError
from support.brokers import Broker, RabbitMQ
from support.ensemble import Ensemble
from support.worker import Worker
from support.zoo import Zoo, eventually

pytestmark = [pytest.mark.zookeeper]

SESSION_TIMEOUT = 4.0
CRASH = SESSION_TIMEOUT + 2 * 0.5 + 1.0  # seconds until a crashed holder is replaced, and one for a busy machine


@pytest.fixture(scope="module")
def shared_worker(broker: Broker, single: Ensemble, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """A worker on that broker, for the tests that do not end it."""
    broker.clear()
    zoo = Zoo(single.hosts, single)
    home = tmp_path_factory.mktemp("worker")
    with Worker(zoo, home, session_timeout=SESSION_TIMEOUT, conf=broker.conf) as worker:
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


def count(worker: Worker, text: str) -> int:
    return worker.log.read_text().count(text)


@pytest.mark.parametrize(
    ("queues", "exchange"),
    [
        pytest.param("classic", "topic", marks=pytest.mark.chaos),
        pytest.param("quorum", "direct", marks=pytest.mark.chaos),
        ("quorum", "topic"),
    ],
)
def test_each_policy_on_kinds_of_queues(
    rabbitmq: RabbitMQ, zoo: Zoo, tmp_path: Path, queues: str, exchange: str
) -> None:
    """After some conflicts, each task runs once. With a topic exchange to quorum queues, Celery makes native delays."""
    rabbitmq.clear()
    kinds = {"task_default_queue_type": queues, "task_create_missing_queue_type": queues}
    exchanges = {"task_default_exchange": f"some-{exchange}", "task_default_exchange_type": exchange}
    conf = {**rabbitmq.conf, **kinds, **exchanges, "task_create_missing_queue_exchange_type": exchange}
    journal = tmp_path / "journal"
    with Worker(zoo, tmp_path, conf=conf, concurrency=4) as worker:
        call = ("kinds", "tell", None, str(journal))
        with zoo.hold_elsewhere("kinds"):
            sent = [worker.send(f"policy.{name}", *call, queue="other") for name in ("retry", "retry.late", "coalesce")]
            sent.append(worker.send("policy.retry", *call, queue="other", countdown=1))
            default = worker.send("plain", "kinds", queue="other")
            for result in sent:
                eventually(functools.partial(lambda text: count(worker, text) >= 3, f"[{result.id}] retry"), 30)
            if queues == "classic":
                with rabbitmq.full("other"):  # then tasks wait in their slots, or in the main process
                    zoo.wait_contenders("kinds", 2 + len(sent))
            sent.append(worker.send("policy.wait", *call, queue="other"))
        assert [worker.get(result, 30) for result in sent] == ["done"] * len(sent)
        assert len(journal.read_text().splitlines()) == len(sent)
        assert worker.get(default, 30)["queue"] == "other"
        assert count(worker, "cannot be sent again") == (4 if queues == "classic" else 0)
    rabbitmq.clear()


def met_conflict(worker: Worker) -> bool:
    return count(worker, "cannot be sent again") > 0 or count(worker, "] retry") > 2


@pytest.mark.parametrize(
    ("server", "kind"),
    [("redis", "fanout"), ("rabbitmq", "fanout"), pytest.param("rabbitmq", "topic", marks=pytest.mark.chaos)],
)
def test_a_task_that_several_workers_get_is_not_multiplied(
    request: pytest.FixtureRequest, zoo: Zoo, tmp_path: Path, server: str, kind: str
) -> None:
    """Each conflict is one message at most, to the worker that has made it, whose settings do not name the others."""
    broker: Broker = request.getfixturevalue(server)
    broker.clear()
    workers, journal = [], tmp_path / "journal"
    with contextlib.ExitStack() as stack:
        for name in ("first", "second"):
            (home := tmp_path / name).mkdir()
            queue = {"exchange": f"all-{kind}", "exchange_type": kind, "routing_key": "all"}
            conf = {**broker.conf, "task_queues": {name: queue}}
            workers.append(stack.enter_context(Worker(zoo, home, conf=conf, options=[f"--queues={name}"])))
        with zoo.hold_elsewhere("all"):
            workers[0].send("policy.retry", "all", "tell", None, str(journal), queue="first")
            for worker in workers:
                eventually(functools.partial(met_conflict, worker), 20)
        for worker in workers:
            eventually(functools.partial(count, worker, "] succeeded"), 20)
        assert len(journal.read_text().splitlines()) == 2
        assert [count(worker, "] received") - count(worker, "] retry") for worker in workers] == [1, 1]


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
