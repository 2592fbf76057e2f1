"""Limits of a worker for messages that it has not acknowledged. Tasks that wait for locks leave room for others."""

import contextlib

import pytest
from support.worker import Worker
from support.zoo import eventually

from django_zklock.exceptions import LockTimeout


@pytest.fixture(
    params=["quorum", *(pytest.param(kind, marks=pytest.mark.chaos) for kind in ("quorum by default", "classic"))]
)
def fixed(request, rabbitmq):
    """Return the configuration of a worker whose prefetch count is fixed; some queues have that from RabbitMQ 4 on."""
    kind = request.param
    if kind != "quorum" and not rabbitmq.fixes_prefetch_counts:
        pytest.skip("this RabbitMQ fixes the prefetch count of declared quorum queues only")
    rabbitmq.clear()
    exchanges = {"task_default_exchange_type": "direct", "task_create_missing_queue_exchange_type": "direct"}
    types = {"task_default_queue_type": "quorum", "task_create_missing_queue_type": "quorum"}
    by_default = rabbitmq.quorum_by_default() if kind == "quorum by default" else contextlib.nullcontext(rabbitmq.conf)
    with by_default as broker:
        conf = {**broker, **exchanges, **(types if kind == "quorum" else {})}
        yield lambda **more: {**conf, **more}
    rabbitmq.clear()


def retries(worker):
    return worker.log.read_text().count("] retry: Retry")


def test_tasks_that_wait_do_not_count_for_the_limit_of_tasks_with_an_eta(zoo, redis, tmp_path):
    """`worker_eta_task_limit` leaves as many places for others as without tasks that wait."""
    redis.clear()
    conf = {**redis.conf, "worker_prefetch_multiplier": 2, "worker_eta_task_limit": 7}
    with Worker(zoo, tmp_path, conf=conf) as worker:
        with zoo.hold_elsewhere("limit"):
            waiting = [worker.send("waiting.wait", "limit") for _ in range(20)]
            zoo.wait_contenders("limit", 21)
            later = [worker.send("ping", countdown=600) for _ in range(6)]
            eventually(lambda: len(worker.ask("scheduled")) == len(waiting) + len(later))
            worker.run("ping")
        for result in waiting:
            assert worker.get(result)["headers"] == {}


def test_at_a_fixed_prefetch_count_tasks_wait_while_there_is_room(zoo, fixed, tmp_path):
    """Of eight places, two are for the pool. Tasks may wait in half of the others; the rest take turns."""
    with Worker(zoo, tmp_path, conf=fixed(worker_prefetch_multiplier=4)) as worker:
        with zoo.hold_elsewhere("room"):
            waiting = [worker.send("waiting.wait", "room") for _ in range(3)]
            zoo.wait_contenders("room", 4)
            for _ in range(5):
                worker.run("ping")
            assert retries(worker) == 0
            more = [worker.send("waiting.wait", "room") for _ in range(12)]
            for _ in range(3):
                worker.run("ping")
        for result in waiting:
            assert worker.get(result)["headers"] == {}
        for result in more:
            worker.get(result, 40)
        worker.finish([worker.begin("waiting.wait", f"after-{number}") for number in range(2)])


@pytest.mark.parametrize("pool", ["prefork", "threads", pytest.param("gevent", marks=pytest.mark.chaos)])
def test_any_number_of_tasks_that_wait_leave_places_to_others(zoo, fixed, tmp_path, pool):
    """Tasks that wait take turns at the places."""
    with Worker(zoo, tmp_path, pool=pool, conf=fixed(worker_prefetch_multiplier=1)) as worker:
        with zoo.hold_elsewhere("turns"):
            waiting = [worker.send("waiting.wait", "turns") for _ in range(12)]
            eventually(lambda: retries(worker) > 0)
            for _ in range(3):
                worker.run("ping")
        for result in waiting:
            worker.get(result, 40)


def test_the_timeout_goes_on_when_a_task_is_sent_again(zoo, redis, tmp_path):
    redis.clear()
    conf = {**redis.conf, "zklock_longest_wait": 0.6}
    with Worker(zoo, tmp_path, conf=conf) as worker, zoo.hold_elsewhere("bounded"):
        assert isinstance(worker.wait_failed(worker.send("waiting.bounded", "bounded")), LockTimeout)
        assert retries(worker) > 0
