"""Tasks whose base class drops duplicates of calls. A conflict is no new call, so none of them is lost."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery.result import AsyncResult
from celery_once import AlreadyQueued
from redis import Redis as RedisClient
from support.basetasks import BASES, POLICIES, configure, make_tasks
from support.brokers import RabbitMQ, Redis
from support.ensemble import Ensemble
from support.worker import Worker
from support.zoo import Zoo, eventually

CALLS = 20
QUORUM = {"task_default_queue_type": "quorum", "task_create_missing_queue_type": "quorum"}
KINDS: dict[str, dict[str, Any]] = {
    "classic": {},
    "quorum direct": QUORUM,
    "quorum topic": {  # with Celery's native delay
        **QUORUM,
        "task_default_exchange": "bases",
        "task_default_exchange_type": "topic",
        "task_create_missing_queue_exchange_type": "topic",
    },
}
WHILE_BUSY: dict[str, dict[str, int]] = {
    "wait": {"PENDING": CALLS},
    "retry": {"RETRY": CALLS},
    "raise": {"FAILURE": CALLS},
    "skip": {"REVOKED": CALLS},
    "coalesce": {"RETRY": 1, "REVOKED": CALLS - 1},
}
AT_THE_END = {
    **WHILE_BUSY,
    "wait": {"SUCCESS": CALLS},
    "retry": {"SUCCESS": CALLS},
    "coalesce": {"SUCCESS": 1, "REVOKED": CALLS - 1},
}


@pytest.fixture(scope="module", params=["redis", *(pytest.param(kind, marks=pytest.mark.chaos) for kind in KINDS)])
def shared_worker(
    request: pytest.FixtureRequest, single: Ensemble, redis: Redis, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Worker]:
    redis.clear()
    conf = {**redis.conf, **configure(f"redis://127.0.0.1:{redis.port}/2")}
    rabbitmq: RabbitMQ | None = None
    if request.param != "redis":
        rabbitmq = request.getfixturevalue("rabbitmq")
        rabbitmq.clear()
        conf |= {**rabbitmq.conf, "result_backend": redis.conf["result_backend"], **KINDS[request.param]}
    options: Any = {"conf": conf, "tasks": "support.basetasks", "concurrency": 4}
    with Zoo(single.hosts, single) as zoo, Worker(zoo, tmp_path_factory.mktemp("bases"), **options) as worker:
        make_tasks(worker.app)
        yield worker
    if rabbitmq is not None:
        rabbitmq.clear()


@pytest.fixture
def base_keys(worker: Worker) -> Iterator[RedisClient]:
    """The keys by which the base classes know the calls that are queued or run."""
    with RedisClient.from_url(worker.app.conf.singleton_backend_url) as client:
        client.flushdb()
        yield client


def send(worker: Worker, name: str, key: str, journal: Path | str, number: int) -> AsyncResult[Any]:
    result: AsyncResult[Any] = worker.app.tasks[name].delay(key, "tell", str(number), str(journal))
    return result


USUAL = [(base, "retry") for base in BASES if base != "plain"]
CASES = [
    pytest.param(base, policy, marks=[] if (base, policy) in USUAL else [pytest.mark.chaos])
    for base in BASES
    for policy in POLICIES
]


@pytest.mark.parametrize(("base", "policy"), CASES)
def test_each_call_has_the_outcome_of_its_policy(
    worker: Worker, base_keys: RedisClient, base: str, policy: str, tmp_path: Path
) -> None:
    name, journal = f"{base}, {policy}", tmp_path / "journal"
    journal.touch()
    key = f"calls-{base.replace(' ', '-')}-{policy}"
    with worker.zoo.hold_elsewhere(key):
        results = [send(worker, name, key, journal, number) for number in range(CALLS)]
        eventually(lambda: count_states(results) == WHILE_BUSY[policy], 30)
    for result in results:
        result.get(timeout=60, interval=0.02, propagate=False)
    assert count_states(results) == AT_THE_END[policy]
    done = [line.split()[0] for line in journal.read_text().splitlines()]
    assert sorted(done) == sorted(result.id for result in results if result.state == "SUCCESS")
    if "REVOKED" not in AT_THE_END[policy]:  # Celery does not tell the base class of a task that is revoked
        eventually(lambda: base_keys.keys() == [])


def count_states(results: list[AsyncResult[Any]]) -> dict[str, int]:
    return dict(Counter(str(result.state) for result in results))


@pytest.mark.parametrize("base", [base for base in BASES if base != "plain"])
def test_a_call_that_waits_for_its_lock_has_duplicates_until_its_end(
    worker: Worker, base_keys: RedisClient, base: str, tmp_path: Path
) -> None:
    """The key of the base class is freed at the end of the work, and not when the task is sent again."""
    journal, name, key = tmp_path / "journal", f"{base}, retry", f"twice-{base.replace(' ', '-')}"
    with worker.zoo.hold_elsewhere(key):
        first = send(worker, name, key, journal, 0)
        eventually(lambda: first.state == "RETRY")
        assert len(base_keys.keys()) == 1
        with contextlib.suppress(AlreadyQueued):
            assert send(worker, name, key, journal, 0).id in (None, first.id)
    worker.get(first, 60)
    assert len(journal.read_text().splitlines()) == 1
    eventually(lambda: base_keys.keys() == [])
    worker.get(send(worker, name, key, journal, 0))
