"""However a Celery worker or one of its processes ends, the processes are gone soon, and so is what they held."""

import contextlib
import os
import signal
import time

import psutil
import pytest
from support.ensemble import four_letter
from support.policytasks import POLICIES
from support.proxy import Proxy
from support.worker import Worker
from support.zoo import TESTS, eventually

from django_zklock.contrib.celery.messages import COPY_HEADER

pytestmark = pytest.mark.timeout(150)

TICK = 0.5  # seconds, of the test's servers
LONG = 10.0  # seconds, the most these servers grant; a session that ends sooner was closed, and did not expire


def told(zoo):
    host, _, port = zoo.hosts.partition(":")
    return four_letter(host, int(port), "dump")


@contextlib.contextmanager
def busy_workers(zoo, home, count, **options):
    with contextlib.ExitStack() as stack:
        workers, gates = [], []
        for number in range(count):
            below = home / str(number)
            below.mkdir()
            worker = stack.enter_context(Worker(zoo, below, **options))
            stack.enter_context(worker.log_shown())
            workers.append(worker)
        for worker in workers:
            for gate in (worker.gate(), worker.gate()):
                worker.send("plain", gate.path.name, "linger", str(gate))
                gates.append(gate)
        for gate in gates:
            gate.wait_at_work()
        for worker in workers:
            worker.wait_accepted(2)
        assert len(zoo.contenders()) == len(gates)
        yield workers


@pytest.mark.parametrize(
    ("signals", "env"),
    [([signal.SIGQUIT], {}), ([signal.SIGTERM], {"REMAP_SIGTERM": "SIGQUIT"}), ([signal.SIGINT] * 2, {})],
    ids=["SIGQUIT", "REMAP_SIGTERM", "Ctrl-C twice"],
)
def test_a_cold_shutdown_ends_the_worker_and_frees_its_locks(zoo, tmp_path, signals, env):
    """
    Three at a time: if threads of ours took signals, every second worker would hang here.

    A pool process says goodbye with SIGTERM blocked, as it has the lock of the pool's result queue then, and is sent
    one in answer. A thread that does not block it would die of it with the process, and the lock never be free again.
    """
    with busy_workers(zoo, tmp_path, 3, session_timeout=LONG, env=env) as workers:
        for worker in workers:
            worker.process.send_signal(signals[0])
            for number in signals[1:]:
                eventually(lambda worker=worker: "Warm shutdown" in worker.log.read_text())
                worker.process.send_signal(number)
        zoo.assert_empty(timeout=4)
        for worker in workers:
            worker.wait_ended(15)


def test_the_pool_of_a_killed_worker_ends_and_its_locks_are_released(zoo, tmp_path):
    session_timeout = 4.0
    with busy_workers(zoo, tmp_path, 2, session_timeout=session_timeout) as workers:
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            worker.wait_ended(5)
        zoo.assert_empty(timeout=session_timeout + 2 * TICK + 1)


def keep_in(worker, key):
    gate = worker.gate()
    worker.send("keep", key, "linger", str(gate))
    return gate.wait_at_work(), gate


def test_a_process_closes_its_session_after_max_tasks_per_child(zoo, tmp_path):
    option = ["--max-tasks-per-child=1"]
    with Worker(zoo, tmp_path, session_timeout=LONG, options=option) as worker:
        for number in range(5):
            pid, gate = keep_in(worker, f"one/{number}")
            (node,) = zoo.contenders(f"{zoo.base}/one/{number}")
            session = f"{zoo.client.get(node)[1].ephemeralOwner:x}"
            gate.open()
            eventually(lambda pid=pid: not psutil.pid_exists(pid), 10, "the process goes on")
            zoo.wait_contenders(f"one/{number}", 0, timeout=1)
            eventually(lambda session=session: session not in told(zoo), 1, "the session is left")
        assert worker.stop() == 0


@pytest.mark.parametrize("way", ["autoscale", "pool_shrink"])
def test_a_pool_that_shrinks_closes_sessions(zoo, redis, tmp_path, way):
    """
    The processes that are no longer wanted close theirs; the one that stays keeps what it has, and works.

    On Redis: with the file system for a broker all processes share billiard's queues, whose locks go with a process
    that its SIGTERM strikes at the wrong moment (SemLock.__enter__), and the pool is never heard of again.
    """
    redis.clear()
    options, env = (["--autoscale=3,3"], {"AUTOSCALE_KEEPALIVE": "2"}) if way == "autoscale" else ([], {})
    with Worker(
        zoo, tmp_path, concurrency=3, session_timeout=LONG, options=options, env=env, conf=redis.conf
    ) as worker:
        held = [keep_in(worker, f"shrunk/{number}") for number in range(3)]
        assert len({pid for pid, _ in held}) == 3
        (*ending, (stays, gate_of_last)) = held
        if way == "autoscale":
            # Not from the start: as the autoscaler adds a process, billiard's Supervisor thread may find it in the pool
            # before it is started (Pool._join_exited_workers), take it for one that ended, and crash.
            worker.app.control.autoscale(3, 1)
        for number, (pid, gate) in enumerate(ending):
            (node,) = zoo.contenders(f"{zoo.base}/shrunk/{number}")
            session = f"{zoo.client.get(node)[1].ephemeralOwner:x}"
            gate.open()
            if way == "pool_shrink":
                # Processes that are busy stay, so it must have finished, in the worker's own view.
                worker.wait_accepted(2 - number)
                worker.app.control.pool_shrink(1)
            eventually(lambda pid=pid: pid not in worker.children(), 20, "the pool did not shrink")
            zoo.wait_contenders(f"shrunk/{number}", 0, timeout=1)
            eventually(lambda session=session: session not in told(zoo), 1, "the session is left")
        (node,) = zoo.contenders()
        assert f"{zoo.client.get(node)[1].ephemeralOwner:x}" in told(zoo)
        gate_of_last.open()
        worker.wait_accepted(0)  # else --autoscale may start one more for the next task
        assert worker.run("ping") == stays
        assert zoo.contenders() == [node]
        assert worker.stop() == 0


def test_a_waiting_pool_process_of_a_killed_worker_leaves_the_queue(zoo, tmp_path):
    """A waiter that stays in the queue would block those behind it."""
    with zoo.hold_elsewhere("waited"), Worker(zoo, tmp_path, session_timeout=4) as worker:
        worker.send("patient", "waited")
        zoo.wait_contenders("waited", 2)
        os.kill(worker.process.pid, signal.SIGKILL)
        worker.wait_ended(5)
        zoo.wait_contenders("waited", 1, timeout=4 + 2 * TICK + 1)


SOFT_TIMEOUT = 3.0  # seconds
SOFT = f"""
from support.celeryapp import *
from support.celeryapp import app
app.conf.worker_soft_shutdown_timeout = {SOFT_TIMEOUT}
"""


def test_a_soft_shutdown_lets_short_tasks_finish(zoo, tmp_path):
    (tmp_path / "soft.py").write_text(SOFT)
    path = f"{tmp_path}{os.pathsep}{TESTS}{os.pathsep}{TESTS.parent}"
    with Worker(zoo, tmp_path, tasks="soft", session_timeout=LONG, env={"PYTHONPATH": path}) as worker:
        gates = [worker.gate(), worker.gate()]
        done, cut = [worker.send("plain", gate.path.name, "linger", str(gate)) for gate in gates]
        for gate in gates:
            gate.wait_at_work()
        worker.process.send_signal(signal.SIGQUIT)
        eventually(lambda: "Initiating Soft Shutdown" in worker.log.read_text())
        assert len(zoo.contenders()) == 2
        gates[0].open()
        zoo.wait_contenders(gates[0].path.name, 0, timeout=1)
        worker.get(done)
        zoo.assert_empty(timeout=SOFT_TIMEOUT + 3)
        assert not cut.successful()
        worker.wait_ended(15)


def test_a_task_that_lost_its_lock_does_not_run_next_to_its_copy(zoo, tmp_path):
    homes = [tmp_path / "cut", tmp_path / "sound"]
    for home in homes:
        home.mkdir()
    with (
        Proxy(zoo.address) as proxy,
        Worker(zoo, homes[0], concurrency=1, hosts=proxy.address) as cut,
        Worker(zoo, homes[1], concurrency=1) as sound,
    ):
        first, gate = cut.begin("late", "copy")
        pid = gate.wait_at_work()
        (old,) = zoo.contenders()
        (gate.path / "entered").unlink()
        # Each worker has a broker of its own, so that it is known who gets the copy.
        headers = {COPY_HEADER: time.time()}  # as of a message that is delivered again
        copy = sound.send("late", "copy", "linger", str(gate), task_id=first.id, headers=headers)
        sound.wait_scheduled(first.id)
        proxy.hang = True
        eventually(lambda: first.state == "RETRY", 30)  # a task with `acks_late` may run twice
        assert zoo.client.exists(old)  # no other contender could get the lock until the task was stopped
        assert gate.wait_at_work() != pid
        assert not zoo.client.exists(old)
        gate.open()
        sound.get(copy)
        proxy.hang = False


def test_a_task_of_a_killed_process_runs_again_under_each_policy(zoo, tmp_path):
    """Its node stays for a while. No task takes that for a conflict, so none skips or fails."""
    with Worker(zoo, tmp_path, session_timeout=4) as worker:
        results = {}
        for policy in POLICIES:
            gate, journal = worker.gate(), tmp_path / f"{policy}.journal"
            results[policy] = worker.send(f"policy.{policy}.late", policy, "linger", str(gate), str(journal))
            pid = gate.wait_at_work()
            worker.kill_process(pid)
            gate.open()
        assert {policy: worker.get(result, 40) for policy, result in results.items()} == dict.fromkeys(POLICIES, "done")
        assert {
            policy: len((tmp_path / f"{policy}.journal").read_text().splitlines()) for policy in POLICIES
        } == dict.fromkeys(POLICIES, 2)
