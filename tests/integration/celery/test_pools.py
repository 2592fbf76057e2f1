"""Kinds of worker pools: processes, threads, greenlets, and the worker itself."""

import os

import celery
import pytest
from support.celeryapp import TASKS_AT_ONCE
from support.ensemble import Ensemble
from support.worker import Worker
from support.zoo import TESTS, Zoo, eventually

from django_zklock.exceptions import LockLost
from django_zklock.operations import request_release


@pytest.fixture(params=["prefork", "threads", pytest.param("solo", marks=pytest.mark.chaos), "gevent"])
def shared_worker(request):
    return request.getfixturevalue(f"{request.param}_worker")


def test_tasks_of_a_pool_exclude_each_other(worker):
    warned = "in the threads pool, work that has lost its lock" in worker.log.read_text()
    assert warned == ("--pool=threads" in str(worker.process.args))
    counter = worker.home / "counter"
    results = [worker.send("increment", "turns", str(counter)) for _ in range(12)]
    processes = {worker.get(result) for result in results}
    in_children = "--pool=prefork" in str(worker.process.args)
    assert processes <= worker.children() if in_children else processes == {worker.process.pid}
    assert counter.read_text() == "12"

    with worker.zoo.hold_elsewhere("retry"):
        result = worker.send("bound", "retry")
        eventually(lambda: result.state == "RETRY")
    assert worker.get(result)["retries"] == 0


def test_a_running_task_gets_a_lock_granted_for_the_next_task(worker):
    """All slots wait in their work for a lock that the main process was just granted. It gives the lock back."""
    gate = worker.gate()
    with worker.zoo.hold_elsewhere("wanted"):
        waiting = worker.send("waiting.wait", "wanted")
        worker.zoo.wait_contenders("wanted", 2)
        keys = [f"outer-{number}" for number in range(TASKS_AT_ONCE)]
        holders = [worker.send("waiting.inner", key, str(gate), "wanted") for key in keys]
        gate.wait_at_work()
    gate.open()
    assert all(worker.get(holder) < 10 for holder in holders)
    worker.get(waiting)


def test_a_task_logs_its_own_stack_in_the_process_that_works(worker):
    held, gate = worker.begin("waiting.wait", "stack")
    pid = gate.wait_at_work()
    begin = worker.log.stat().st_size
    with worker.zoo.configured():
        request_release("stack", "why", by="anna")
    asked = "the holder of lock 'stack' (token "
    text = eventually(lambda: (text := worker.log.read_bytes()[begin:].decode()).count("in do\n") and text)
    gate.open()
    worker.get(held)
    line = next(line for line in text.splitlines() if asked in line)
    assert "is asked to release by anna: why; it is " in line
    assert f" in process {pid} on " in line
    assert f"[task waiting.wait {held.id}]" in line
    assert text.count(asked) == 1
    assert text.index(asked) < text.index("Stack (most recent call last):") < text.index("in do\n")


def test_the_loss_of_a_tasks_lock_ends_its_wait_for_another_one(worker):
    assert isinstance(worker.lose_lock_in_inner_wait(), LockLost)


@pytest.mark.parametrize(
    ("pool", "way"),
    [
        ("prefork", "signal"),
        ("threads", "thread"),
        ("gevent", "greenlet"),
        ("solo", "signal"),
    ],
)
@pytest.mark.chaos
def test_an_outage_stops_the_work_of_a_pool(tmp_path, pool, way):
    """Threads are aborted while they compute, greenlets while they wait, the worker's own thread in both cases."""
    with (
        Ensemble(nodes=1) as ensemble,
        Zoo(ensemble.hosts, ensemble) as zoo,
        Worker(zoo, tmp_path, pool=pool) as worker,
    ):
        gate, processes = worker.gate(), worker.children()
        result = worker.send("plain", "work", "spin" if pool == "threads" else "sleep", str(gate))
        gate.wait_at_work()
        ensemble.servers[0].kill()
        assert isinstance(worker.wait_failed(result, timeout=6), LockLost)
        assert f"after the abort ({way})" in worker.log.read_text()
        away = worker.send("plain", "away")  # ZooKeeper does not answer: the task comes again
        eventually(lambda: away.state == "RETRY")
        ensemble.servers[0].start()
        ensemble.servers[0].wait_ready()
        worker.get(away)
        assert worker.children() == processes
        worker.run("late", "work")
        worker.run("keep", "kept")  # by a thread that does not release it
        assert worker.stop() == 0
        zoo.wait_contenders("kept", 0, timeout=1)


SPAWN = """
from support.celeryapp import *
from support.celeryapp import app
app.conf.worker_pool_start_method = "spawn"
"""


@pytest.mark.chaos
@pytest.mark.skipif(celery.VERSION < (5, 7), reason="Celery has it from 5.7 on")
def test_spawned_processes_of_a_pool_work_like_forked_ones(zoo, tmp_path):
    """No fork handler runs there. The first use opens the session. The end of the process releases its locks."""
    (tmp_path / "spawning.py").write_text(SPAWN)
    path = f"{tmp_path}{os.pathsep}{TESTS}{os.pathsep}{TESTS.parent}"
    how = {"options": ["--task-events"], "env": {"PYTHONPATH": path}}
    with Worker(zoo, tmp_path, session_timeout=4, tasks="spawning", **how) as worker:
        counter = worker.home / "counter"
        results = [worker.send("increment", "turns", str(counter)) for _ in range(12)]
        assert {worker.get(result) for result in results} <= worker.children()
        assert counter.read_text() == "12"
        worker.run("forgetful_end", "forgotten", "success", "tell", None)
        zoo.wait_contenders("forgotten", 0, timeout=1)
        _, gate = worker.begin("patient", "killed")
        worker.kill_process(gate.wait_at_work())
        zoo.wait_contenders("killed", 0, timeout=6)
        worker.run("keep", "kept")
        assert worker.stop() == 0
        zoo.wait_contenders("kept", 0, timeout=1)
