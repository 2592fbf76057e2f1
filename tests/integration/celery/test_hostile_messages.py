"""No message ends a worker, and no failure in what its main process does with messages for locked tasks."""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery.result import AsyncResult
from support.brokers import Broker, Redis
from support.failingsteps import FAILING, steps
from support.hostiletasks import assert_excluded, hostile_messages
from support.worker import Worker, outcome
from support.zoo import ROOM, Zoo, eventually

from django_zklock import clock
from django_zklock.testing.ensemble import Ensemble

pytestmark = pytest.mark.zookeeper

OPTIONS = ("--include=support.hostiletasks,support.failingsteps",)
ENDED = ("SUCCESS", "FAILURE", "REVOKED")


@contextlib.contextmanager
def hostile_worker(server: Ensemble, home: Path, failing: str = "", **options: Any) -> Iterator[Worker]:
    """A worker whose functions can be made to fail; its log is shown."""
    zoo = Zoo(server.hosts, server)
    with Worker(zoo, home, session_timeout=4, options=OPTIONS, env={FAILING: failing}, **options) as worker:
        yield worker
    zoo.close()


@pytest.fixture(scope="module")
def living(
    single: Ensemble, redis: Redis, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], Worker]]:
    """Return a worker with two processes for all tests, or another one if a test has failed and ended it."""
    with contextlib.ExitStack() as stack:
        workers: list[Worker] = []

        def living() -> Worker:
            if not workers or workers[-1].process.poll() is not None:
                stack.close()
                redis.clear()
                home = tmp_path_factory.mktemp("worker")
                workers.append(stack.enter_context(hostile_worker(single, home, conf=redis.conf)))
            return workers[-1]

        yield living


@pytest.fixture
def worker(living: Callable[[], Worker]) -> Iterator[Worker]:
    """That worker."""
    worker = living()
    with worker.log_shown():
        yield worker


# --- messages -------------------------------------------------------------------------------------------------------


def send_mixed(worker: Worker, count: int, book: Path) -> tuple[list[AsyncResult[Any]], dict[str, AsyncResult[Any]]]:
    """Send hostile messages, and a good one after each; return the results of both kinds."""
    kinds = itertools.cycle(["write", "write.late", "write_two", "unlocked"])
    hostile, good = [], {}
    for number, message in enumerate(hostile_messages(count)):
        hostile.append(worker.send(message.name, *message.args, **message.options))
        kind, mark = next(kinds), f"good-{number}"
        args = (mark,) if kind == "unlocked" else (f"good-{number % 5}", str(book), mark)
        good[mark] = worker.send(f"hostile.{kind}", *args)
    return hostile, good


def assert_survives(worker: Worker, count: int, timeout: float) -> None:
    """Send hostile messages, and check that the worker does all that it would do without them."""
    book = worker.home / f"book-{uuid.uuid4().hex}"
    hostile, good = send_mixed(worker, count, book)
    for mark, result in good.items():
        assert worker.get(result, timeout) == mark
    for result in hostile:
        eventually(lambda result=result: result.state in ENDED, timeout, f"{result.id} is {result.state}")
    assert worker.process.poll() is None
    assert_alive(worker)
    assert_excluded(book)
    worker.zoo.assert_empty()


def assert_alive(worker: Worker) -> None:
    """Check that the main process is the one that was started, and has acknowledged all messages."""

    def said() -> dict[str, Any]:
        replies = worker.app.control.broadcast("main_process", reply=True, limit=1, timeout=5)
        return {"pid": 0, "unacknowledged": ["?"]} if not replies else replies[0][worker.name]

    eventually(lambda: not said()["unacknowledged"], 10, f"messages are left: {said()}")
    assert said()["pid"] == worker.process.pid


def test_no_message_ends_a_worker(worker: Worker) -> None:
    """Each hostile message ends, and each good one has its result."""
    assert_survives(worker, 60, timeout=20)


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("broker_name", "pool"),
    [
        *[("redis", pool) for pool in ("prefork", "threads", "solo", "gevent")],
        *[("rabbitmq", pool) for pool in ("prefork", "threads")],
        ("files", "prefork"),
    ],
)
def test_no_thousand_messages_end_a_worker(
    single: Ensemble, request: pytest.FixtureRequest, tmp_path: Path, broker_name: str, pool: str
) -> None:
    """So it is with each pool, and each broker."""
    conf = None
    if broker_name != "files":
        broker: Broker = request.getfixturevalue(broker_name)
        broker.clear()
        conf = broker.conf
    with hostile_worker(single, tmp_path, pool=pool, conf=conf, concurrency=4) as worker:
        assert_survives(worker, 1000, timeout=180)


# --- failures -------------------------------------------------------------------------------------------------------


def assert_mended(worker: Worker, name: str, times: int) -> None:
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


def fail(worker: Worker, name: str, times: int) -> int:
    """Make a function fail so often from now on; return how often the last one was still to fail."""
    arguments = {"name": name, "times": times}
    replies = worker.app.control.broadcast("fail", arguments=arguments, reply=True, limit=1, timeout=10)
    return int(replies[0][worker.name])


def exercised(worker: Worker, book: Path) -> dict[str, AsyncResult[Any]]:
    """Send tasks that run at once, wait for their lock, share one, or expire; return the results of all but the last."""
    marks = (f"m{number}" for number in itertools.count())
    results: dict[str, AsyncResult[Any]] = {}

    def send(kind: str, *args: str, **options: Any) -> None:
        mark = next(marks)
        results[mark] = worker.send(f"hostile.{kind}", *args, mark, **options)

    with worker.zoo.hold_elsewhere("busy"):
        send("write", "free", str(book))
        send("write", "busy", str(book))
        expired = worker.send("hostile.write", "busy", str(book), "expired", expires=0.6)
        for _ in range(3):
            send("write.late", "hot", str(book))
            send("write_two", "hot", str(book))
            send("write", "busy", str(book), expires=60)
            send("shared", "shared")
            send("unlocked")
        send("write", "later", str(book), countdown=0.2)
        for command in ("zklocks", "scheduled"):
            worker.app.control.broadcast(command, reply=True, limit=1, timeout=1)
        assert outcome(expired) in ("TaskRevokedError", "expired")
    return results


SAMPLE = (
    "dispatcher.Dispatcher._enqueue",
    "dispatcher.Dispatcher._dispatch",
    "dispatcher.Dispatcher._run",
    "loops.HubLoop.call_soon",
    "pool_grants.PoolGrants.add",
    "pool_slots.PoolSlots.use",
    "shared_grants.SharedGrants.add",
    "waiting_task.WaitingTask.step",
)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_step_that_fails_loses_no_task(worker: Worker, name: str) -> None:
    """All tasks end, no two are at work under one lock, and the worker lives."""
    assert_mended(worker, name, 3)


@pytest.mark.chaos
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("name", steps())
def test_no_step_that_fails_loses_a_task(worker: Worker, name: str, times: int) -> None:
    """So it is with each function that the main process calls, also if it fails again at once."""
    assert_mended(worker, name, times)


@pytest.mark.chaos
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize(
    "name",
    [name for name in steps() if name.endswith(("__init__", ".register", "_of", "is_pool", "_forks", "begin_process"))],
)
def test_a_start_that_fails_loses_no_task(
    single: Ensemble, redis: Redis, tmp_path: Path, name: str, times: int
) -> None:
    """A worker whose dispatcher cannot be made or connected works without one."""
    redis.clear()
    with hostile_worker(single, tmp_path, f"{name} {times}", conf=redis.conf) as worker:
        assert_mended(worker, name, 0)


@pytest.mark.chaos
@pytest.mark.parametrize(
    "name",
    [name for name in steps() if name.endswith((".stop", ".close", ".leave", ".enter", ".release", "_send_count"))],
)
def test_an_end_that_fails_loses_no_task(single: Ensemble, redis: Redis, tmp_path: Path, name: str) -> None:
    """The worker ends as asked, and the next one runs what has waited."""
    redis.clear()
    book = tmp_path / "book"
    with hostile_worker(single, tmp_path, conf=redis.conf) as worker:
        with worker.zoo.hold_elsewhere("busy"):
            marks = [f"m{number}" for number in range(4)]
            results = [worker.send("hostile.write.late", "busy", str(book), mark) for mark in marks]
            worker.zoo.wait_contenders("busy", 5)
            fail(worker, name, 3)
            assert worker.stop() == 0
            worker.zoo.wait_contenders("busy", 1)
        with hostile_worker(single, tmp_path, conf=redis.conf) as second:
            assert [second.get(result, 30) for result in results] == marks
    assert_excluded(book)
