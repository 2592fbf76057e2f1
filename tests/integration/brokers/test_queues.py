"""Busy locks on kinds of queues: classic, quorum, and those of exchanges that deliver to several workers."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path

import pytest
from support.brokers import Broker, RabbitMQ
from support.worker import Worker
from support.zoo import Zoo, eventually

pytestmark = [pytest.mark.zookeeper]


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
    with Worker(zoo, tmp_path, conf=conf, concurrency=5) as worker:
        call = ("kinds", "tell", None, str(journal))
        with zoo.hold_elsewhere("kinds"):
            sent = [worker.send(f"policy.{name}", *call, queue="other") for name in ("retry", "retry.late", "coalesce")]
            sent.append(worker.send("policy.retry", *call, queue="other", countdown=1))
            default = worker.send("plain", "kinds", queue="other")
            for result in sent:
                eventually(functools.partial(lambda text: count(worker, text) >= 3, f"[{result.id}] retry"), 30)
            if queues == "classic":
                with rabbitmq.full("other"):  # then the tasks wait in their slots
                    zoo.wait_contenders("kinds", 2 + len(sent))
            sent.append(worker.send("policy.wait", *call, queue="other"))
        assert [worker.get(result, 30) for result in sent] == ["done"] * len(sent)
        assert len(journal.read_text().splitlines()) == len(sent)
        assert worker.get(default, 30)["queue"] == "other"
        assert count(worker, "cannot be sent again") == (5 if queues == "classic" else 0)
    rabbitmq.clear()


def met_conflict(worker: Worker) -> bool:
    return count(worker, "cannot be sent again") > 0 or count(worker, "] retry") > 2


@pytest.mark.parametrize(
    ("server", "kind"),
    [("redis", "fanout"), *(pytest.param("rabbitmq", kind, marks=pytest.mark.chaos) for kind in ("fanout", "topic"))],
)
def test_each_of_the_workers_that_get_a_task_runs_it_once(
    request: pytest.FixtureRequest, zoo: Zoo, tmp_path: Path, server: str, kind: str
) -> None:
    """All get the same message with the same id. One waits for the other, and neither is a copy."""
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

        gate = workers[0].gate()
        late = workers[0].send("late", "news", "linger", str(gate), queue="first")
        zoo.wait_contenders("news", 2)
        gate.open()
        for worker in workers:
            eventually(functools.partial(count, worker, f"late[{late.id}] succeeded"), 20)
        assert sum(count(worker, f"[{late.id}] received") for worker in workers) == 2
