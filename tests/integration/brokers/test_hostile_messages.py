"""No message ends a worker."""

import contextlib
import itertools
import uuid

import pytest
from support.hostiletasks import assert_excluded, hostile_messages
from support.worker import Worker
from support.zoo import ROOM, Zoo, eventually

from django_zklock.core import clock

OPTIONS = ("--include=support.hostiletasks",)
ENDED = ("SUCCESS", "FAILURE", "REVOKED")


def hostile_worker(zoo, home, **options):
    return Worker(zoo, home, options=OPTIONS, **options)


def own_conf(redis, home):
    """Return the settings of workers that share messages with no other worker on this Redis."""
    return {**redis.conf, "broker_transport_options": {"global_keyprefix": f"{home.name}-"}}


@pytest.fixture(scope="module")
def living(single, redis, tmp_path_factory):
    """Return a worker with two processes for all tests, or another one if a test has failed and ended it."""
    workers = []
    with Zoo(single.hosts, single) as zoo, contextlib.ExitStack() as stack:

        def living():
            if not workers or workers[-1].process.poll() is not None:
                stack.close()
                redis.clear()
                home = tmp_path_factory.mktemp("worker")
                workers.append(stack.enter_context(hostile_worker(zoo, home, conf=redis.conf)))
            return workers[-1]

        yield living


@pytest.fixture
def worker(living):
    worker = living()
    with worker.log_shown():
        yield worker


def assert_survives(worker, count, timeout):
    book = worker.home / f"book-{uuid.uuid4().hex}"
    kinds = itertools.cycle(["write", "write.late", "write_two", "unlocked"])
    left, good = [], {}
    for number, message in enumerate(hostile_messages(count)):
        sent = worker.send(message.name, *message.args, **message.options)
        if not message.is_expired:  # RabbitMQ drops it
            left.append(sent)
        kind, mark = next(kinds), f"good-{number}"
        args = (mark,) if kind == "unlocked" else (f"good-{number % 5}", str(book), mark)
        good[mark] = worker.send(f"hostile.{kind}", *args)
    for mark, result in good.items():
        assert worker.get(result, timeout) == mark
    until = clock.now() + timeout + ROOM
    while left and clock.now() < until:
        left = [result for result in left if result.state not in ENDED]
    assert not left
    assert_alive(worker)
    assert_excluded(book)
    worker.zoo.assert_empty()


def assert_alive(worker):
    eventually(lambda: not worker.ask("main_process")["unacknowledged"], 10, "messages are left")
    assert worker.ask("main_process")["pid"] == worker.process.pid


def test_hostile_messages_do_not_end_a_worker(worker):
    assert_survives(worker, 60, timeout=20)


@pytest.mark.parametrize("key", ["\ud800", "\x00", "x" * 2_000_000], ids=["surrogate", "control", "long"])
def test_a_key_in_a_header_that_could_be_none_is_not_sent_to_zookeeper(worker, key):
    """A surrogate would end the connection of the main process, a long one would make ZooKeeper close it."""
    headers = {"zklock_unique": key}
    worker.send("hostile.plain", "odd", headers=headers)
    worker.send("unknown.task", headers=headers)
    broken = {"task": "hostile.plain", "id": "broken", "lang": "py", **headers}
    with worker.app.producer_or_acquire() as producer:
        producer.publish("{", content_type="application/json", headers=broken, exchange="", routing_key="celery")
    assert worker.run("hostile.write", "odd", str(worker.home / "book"), "good") == "good"
    log = worker.log.read_text()
    assert "UnicodeEncodeError" not in log
    assert "could not be ended" not in log


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("broker_name", "pool"),
    [
        *[("redis", pool) for pool in ("prefork", "threads", "solo", "gevent")],
        *[("rabbitmq", pool) for pool in ("prefork", "threads")],
        ("files", "prefork"),
    ],
)
def test_a_thousand_hostile_messages_do_not_end_a_worker(zoo, request, tmp_path, broker_name, pool):
    conf = {}
    if broker_name == "redis":
        conf = own_conf(request.getfixturevalue("redis"), tmp_path)
    elif broker_name == "rabbitmq":
        rabbitmq = request.getfixturevalue("rabbitmq")
        rabbitmq.clear()
        conf = rabbitmq.conf
    conf["worker_prefetch_multiplier"] = 25  # on Redis, workers without an event loop fetch once in two seconds
    with hostile_worker(zoo, tmp_path, pool=pool, conf=conf, concurrency=4) as worker:
        assert_survives(worker, 1000, timeout=80)
