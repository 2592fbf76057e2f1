"""Tasks that Redis or RabbitMQ delivers again while they run, and busy locks on kinds of queues."""

import contextlib
import functools

import celery
import pytest
from support.policytasks import POLICIES
from support.worker import Worker
from support.zoo import eventually

SESSION_TIMEOUT = 4.0
VISIBILITY = 1.0  # seconds, far less than a task takes: Redis delivers it again while it runs


@pytest.fixture
def lone_worker(rabbitmq, zoo, tmp_path):
    rabbitmq.clear()
    with Worker(zoo, tmp_path, session_timeout=SESSION_TIMEOUT, conf=rabbitmq.conf) as worker:
        yield worker


@pytest.fixture
def hasty_worker(redis, zoo, tmp_path):
    """A worker to which Redis delivers a task again after one second, even if the task runs."""
    redis.clear()
    conf = redis.returning(VISIBILITY)
    with Worker(zoo, tmp_path, session_timeout=SESSION_TIMEOUT, conf=conf) as worker:
        yield worker


def wait_delivered_again(redis, worker, result):
    def delivered_again():
        redis.bring_back(VISIBILITY)
        return worker.log.read_text().count(f"[{result.id}] received") > 1

    eventually(delivered_again, 20)


@pytest.mark.chaos
@pytest.mark.skipif(
    celery.VERSION < (5, 7), reason="this Celery forgets which processes are busy, and a copy may wait behind the first"
)
@pytest.mark.parametrize("task", ["late", "late_again"])
def test_of_two_copies_of_a_task_one_runs(rabbitmq, lone_worker, task):
    result, gate = lone_worker.begin(task, "twice")
    pid = gate.wait_at_work()
    rabbitmq.disconnect_all()
    assert_one_runs(lone_worker, result, gate, pid)


@pytest.mark.chaos
@pytest.mark.parametrize("headers", [{}, {"headers": {"of-an-agent": "1"}}])
def test_a_task_longer_than_the_visibility_timeout_runs_once(redis, hasty_worker, headers):
    result, gate = hasty_worker.begin("late", "long", headers=headers)
    pid = gate.wait_at_work()
    wait_delivered_again(redis, hasty_worker, result)
    assert_one_runs(hasty_worker, result, gate, pid)


def assert_one_runs(worker, result, gate, pid):
    worker.wait_scheduled(result.id)
    gate.open()
    eventually(lambda: result.state == "SUCCESS", 20)
    eventually(lambda: f"[{result.id}] ignored" in worker.log.read_text(), 20)
    assert int((gate.path / "entered").read_text()) == pid


@pytest.mark.skipif(celery.VERSION < (5, 7), reason="this Celery forgets which processes are busy")
@pytest.mark.parametrize(
    "pool", ["prefork", *(pytest.param(pool, marks=pytest.mark.chaos) for pool in ("threads", "gevent"))]
)
def test_copies_that_come_while_the_pool_is_full_do_not_work_again(rabbitmq, zoo, tmp_path, pool):
    """They ask for their locks when the other runs have ended already."""
    rabbitmq.clear()
    names = ["policy.wait.late", "policy.retry.late", "policy.skip.late", "late_done"]
    conf = {**rabbitmq.conf, "worker_prefetch_multiplier": 4}
    with Worker(zoo, tmp_path, pool=pool, concurrency=len(names), conf=conf) as worker:
        begun = {name: worker.begin(name, f"full-{name}") for name in names}
        for _, gate in begun.values():
            gate.wait_at_work()
            (gate.path / "entered").unlink()
        rabbitmq.disconnect_all()
        for name, (result, _) in begun.items():
            eventually(functools.partial(lambda text: count(worker, text) == 2, f"{name}[{result.id}] received"), 20)
        for _, gate in begun.values():
            gate.open()
        for name, (result, gate) in begun.items():
            eventually(functools.partial(count, worker, f"{name}[{result.id}] ignored"), 20)
            assert not (gate.path / "entered").exists()
            assert result.state == "SUCCESS"
    rabbitmq.clear()


# --- tasks that are killed --------------------------------------------------------------------------------------------

KILLED = [*(f"policy.{policy}.spent" for policy in POLICIES), "policy.computed.spent"]
LIMIT = 2  # redeliveries
DEADLY = {
    "classic": {},
    "quorum": {
        "x-queue-type": "quorum",
        "x-delivery-limit": LIMIT,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "dead",
    },
}


@contextlib.contextmanager
def deadly_worker(rabbitmq, zoo, home, kind):
    """A worker with a process for each of `KILLED`, which consumes from a queue of this kind."""
    queue = {"exchange": "", "routing_key": kind, "queue_arguments": DEADLY[kind]}
    conf = {**rabbitmq.conf, "task_queues": {kind: queue}}
    options = {"session_timeout": SESSION_TIMEOUT, "concurrency": len(KILLED), "options": [f"--queues={kind}"]}
    with Worker(zoo, home, conf=conf, **options) as worker:
        yield worker


def runs(folder):
    return {name: len((folder / name).read_text().splitlines()) for name in KILLED}


@pytest.mark.parametrize("kind", [pytest.param("classic", marks=pytest.mark.chaos), "quorum"])
def test_a_killed_run_is_done_again_and_that_is_no_conflict(rabbitmq, zoo, tmp_path, kind):
    """The message that comes again waits, or is sent again, until the lock of the killed run is free."""
    rabbitmq.clear()
    with deadly_worker(rabbitmq, zoo, tmp_path, kind) as worker:
        calls = {name: (name, "die once", str(tmp_path / f"{name}.died"), str(tmp_path / name)) for name in KILLED}
        sent = [worker.send(name, *call, queue=kind) for name, call in calls.items()]
        assert [worker.get(result, 40) for result in sent] == ["done"] * len(KILLED)
    assert runs(tmp_path) == dict.fromkeys(KILLED, 2)
    rabbitmq.clear()


# --- kinds of queues --------------------------------------------------------------------------------------------------


def count(worker, text):
    return worker.log.read_text().count(text)


@pytest.mark.parametrize(
    ("queues", "exchange"),
    [
        pytest.param("classic", "topic", marks=pytest.mark.chaos),
        pytest.param("quorum by default", "topic", marks=pytest.mark.chaos),
        pytest.param("quorum", "direct", marks=pytest.mark.chaos),
        ("quorum", "topic"),
    ],
)
def test_each_policy_on_kinds_of_queues(rabbitmq, zoo, tmp_path, queues, exchange):
    """After some conflicts, each task runs once. With a topic exchange to quorum queues, Celery makes native delays."""
    rabbitmq.clear()
    kinds = {"task_default_queue_type": queues, "task_create_missing_queue_type": queues}
    exchanges = {"task_default_exchange": f"some-{exchange}", "task_default_exchange_type": exchange}
    conf = {**rabbitmq.conf, **exchanges, "task_create_missing_queue_exchange_type": exchange}
    journal = tmp_path / "journal"
    with contextlib.ExitStack() as stack:
        if queues != "quorum by default":
            conf |= kinds
        elif rabbitmq.fixes_prefetch_counts:
            conf |= stack.enter_context(rabbitmq.quorum_by_default())
        else:
            pytest.skip("Celery asks this RabbitMQ for what such queues refuse")
        worker = stack.enter_context(Worker(zoo, tmp_path, conf=conf, concurrency=5))
        call = ("kinds", "tell", None, str(journal))
        with zoo.hold_elsewhere("kinds"):
            sent = [worker.send(f"policy.{name}", *call, queue="other") for name in ("retry", "retry.late")]
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
        assert count(worker, "cannot be sent again") == (4 if queues == "classic" else 0)
    rabbitmq.clear()
