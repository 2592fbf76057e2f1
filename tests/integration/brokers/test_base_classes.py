"""Tasks whose base class drops duplicates of calls. A conflict is no new call, so none of them is lost."""

import contextlib
from collections import Counter

import pytest
from celery_once import AlreadyQueued
from redis import Redis as RedisClient
from support.basetasks import BASES, POLICIES, configure, make_tasks
from support.worker import Worker
from support.zoo import Zoo, eventually

CALLS = 20
QUORUM = {"task_default_queue_type": "quorum", "task_create_missing_queue_type": "quorum"}
KINDS = {
    "classic": {},
    "quorum direct": QUORUM,
    "quorum topic": {  # with Celery's native delay
        **QUORUM,
        "task_default_exchange": "bases",
        "task_default_exchange_type": "topic",
        "task_create_missing_queue_exchange_type": "topic",
    },
}
WHILE_BUSY = {
    "wait": {"PENDING": CALLS},
    "retry": {"RETRY": CALLS},
    "raise": {"FAILURE": CALLS},
    "skip": {"REVOKED": CALLS},
}
AT_THE_END = {
    **WHILE_BUSY,
    "wait": {"SUCCESS": CALLS},
    "retry": {"SUCCESS": CALLS},
}


@pytest.fixture(scope="module", params=["redis", *(pytest.param(kind, marks=pytest.mark.chaos) for kind in KINDS)])
def shared_worker(request, single, redis, tmp_path_factory):
    redis.clear()
    conf = {**redis.conf, **configure(f"redis://127.0.0.1:{redis.port}/2")}
    rabbitmq = None
    if request.param != "redis":
        rabbitmq = request.getfixturevalue("rabbitmq")
        rabbitmq.clear()
        conf |= {**rabbitmq.conf, "result_backend": redis.conf["result_backend"], **KINDS[request.param]}
    options = {"conf": conf, "tasks": "support.basetasks", "concurrency": 4}
    with Zoo(single.hosts, single) as zoo, Worker(zoo, tmp_path_factory.mktemp("bases"), **options) as worker:
        make_tasks(worker.app)
        yield worker
    if rabbitmq is not None:
        rabbitmq.clear()


@pytest.fixture
def base_keys(worker):
    """The keys by which the base classes know the calls that are queued or run."""
    with RedisClient.from_url(worker.app.conf.singleton_backend_url) as client:
        client.flushdb()
        yield client


def send(worker, name, key, journal, number):
    result = worker.app.tasks[name].delay(key, "tell", str(number), str(journal))
    return result


USUAL = [(base, "retry") for base in BASES if base != "plain"]
CASES = [
    pytest.param(base, policy, marks=[] if (base, policy) in USUAL else [pytest.mark.chaos])
    for base in BASES
    for policy in POLICIES
]


@pytest.mark.parametrize(("base", "policy"), CASES)
def test_each_call_has_the_outcome_of_its_policy(worker, base_keys, base, policy, tmp_path):
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


def count_states(results):
    return dict(Counter(str(result.state) for result in results))


@pytest.mark.parametrize("base", [base for base in BASES if base != "plain"])
def test_a_call_that_waits_for_its_lock_has_duplicates_until_its_end(worker, base_keys, base, tmp_path):
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
