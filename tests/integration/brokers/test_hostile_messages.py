"""No message ends a worker, and no failure in what its main process does with messages for locked tasks."""

import contextlib
import itertools
import uuid

import pytest
from support.brokers import Redis
from support.failingsteps import FAILING, steps
from support.hostiletasks import assert_excluded, hostile_messages
from support.worker import Worker, outcome
from support.zoo import ROOM, Zoo, eventually

from django_zklock.core import clock

OPTIONS = ("--include=support.hostiletasks,support.failingsteps",)
ENDED = ("SUCCESS", "FAILURE", "REVOKED")


def hostile_worker(zoo, home, failing="", **options):
    return Worker(zoo, home, options=OPTIONS, env={FAILING: failing}, **options)


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


def assert_mended(worker, name, times):
    """Make a function fail, and check that all tasks end, and exclude each other. If not, end the worker."""
    book = worker.home / f"book-{uuid.uuid4().hex}"
    try:
        fail(worker, name, times)
        results = exercised(worker, book)
        until = clock.now() + 20 + ROOM
        for mark, result in results.items():
            assert worker.get(result, max(0.1, until - clock.now())) == mark
        fail(worker, "", 0)
        assert_alive(worker)
        assert_excluded(book)
        worker.zoo.assert_empty()
    except BaseException:
        worker.process.kill()
        worker.process.wait()
        raise


def fail(worker, name, times):
    """Make a function fail so often from now on; return how often the last one was still to fail."""
    assert not name or name in steps()
    arguments = {"name": name, "times": times}
    return int(worker.ask("fail", arguments=arguments))


def exercised(worker, book):
    """Send tasks that run at once, wait for their lock, share one, or expire; return the results of all but those."""
    marks = (f"m{number}" for number in itertools.count())
    results = {}

    def send(kind, *args, **options):
        mark = next(marks)
        results[mark] = worker.send(f"hostile.{kind}", *args, mark, **options)

    with worker.zoo.hold_elsewhere("busy"):
        send("write", "free", str(book))
        send("write", "busy", str(book))
        expired = worker.send("hostile.write", "busy", str(book), "expired", expires=0.3)
        for _ in range(3):
            send("write.late", "hot", str(book))
            send("write_two", "hot", str(book))
            send("write", "busy", str(book), expires=60)
            send("shared", "shared")
            send("unlocked")
        send("write", "later", str(book), countdown=0.2)
        worker.ask("scheduled")
        assert outcome(expired) in ("TaskRevokedError", "expired")
    return results


SAMPLE = (
    "dispatcher.Dispatcher._enqueue",
    "dispatcher.Dispatcher._give_task",
    "pool.apply_async",
    "pool_slots.PoolSlots.use",
    "waiting_tasks.WaitingTask.step",
    "waiting_tasks.WaitingTasks.add",
)


@pytest.mark.parametrize(
    ("name", "times"),
    [
        *((name, 3) for name in SAMPLE),
        *(pytest.param(name, times, marks=pytest.mark.chaos) for name in steps() for times in (1, 3)),
    ],
)
def test_no_failing_step_of_the_dispatcher_loses_a_task(worker, name, times):
    assert_mended(worker, name, times)


AT_START = (
    *("Dispatcher.__init__", "Loop.__init__", "Pipe.__init__", "Slots.__init__", "Grants.__init__", "Tasks.__init__"),
    *("Loop.register", "event_loop_of", "is_pool", "_forks"),
)


@pytest.mark.chaos
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("name", [name for name in steps() if name.endswith(AT_START)])
def test_a_dispatcher_that_cannot_start_loses_no_task(zoo, redis, tmp_path, name, times):
    conf = own_conf(redis, tmp_path)
    with hostile_worker(zoo, tmp_path, f"{name} {times}", conf=conf) as worker:
        assert_mended(worker, name, 0)
        assert worker.stop() == 0


@pytest.mark.chaos
@pytest.mark.parametrize(
    "name",
    [name for name in steps() if name.endswith((".stop", ".close", ".cancel", ".run", ".release", "_send_count"))],
)
def test_a_dispatcher_that_cannot_stop_loses_no_task(zoo, redis, tmp_path, name):
    conf = own_conf(redis, tmp_path)
    book = tmp_path / "book"
    with hostile_worker(zoo, tmp_path, conf=conf) as worker:
        with zoo.hold_elsewhere("busy"):
            marks = [f"m{number}" for number in range(4)]
            results = [worker.send("hostile.write.late", "busy", str(book), mark) for mark in marks]
            zoo.wait_contenders("busy", 5)
            fail(worker, name, 3)
            assert worker.stop() == 0
            zoo.wait_contenders("busy", 1)
        with hostile_worker(zoo, tmp_path, conf=conf) as second:
            assert [second.get(result, 30) for result in results] == marks
    assert_excluded(book)


@pytest.mark.chaos
def test_a_worker_that_has_connected_again_looks_for_expired_tasks(zoo, tmp_path):
    """Celery 5.5 clears its timers when it loses the broker."""
    with Redis() as redis, hostile_worker(zoo, tmp_path, conf=redis.conf) as worker:
        with zoo.hold_elsewhere("busy"):
            waiting = worker.send("hostile.plain", "busy")
            zoo.wait_contenders("busy", 2)
            log = worker.log.stat().st_size
            redis.disconnect_all()
            eventually(lambda: f"{waiting.id}] received" in worker.log.read_text(errors="replace")[log:], 30)
            expired = worker.send("hostile.plain", "busy", expires=1)
            assert outcome(expired) == "TaskRevokedError"
        assert worker.get(waiting) == "done"
