"""How a task under a lock may end: time limits, kills, shutdowns and outages."""

import itertools
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from celery.exceptions import SoftTimeLimitExceeded, TaskRevokedError
from support.endingtasks import AFTER, LOCKS, NO_LOOKS
from support.ensemble import four_letter
from support.faults import acquire_once
from support.worker import Worker
from support.zoo import eventually

SESSION_TIMEOUT = 10.0
CRASH = SESSION_TIMEOUT + 2 * 0.5 + 1.0  # seconds until a crashed holder is replaced, and one for a busy machine


def test_a_soft_limit_ends_the_wait_in_a_process(worker):
    with worker.zoo.hold_elsewhere("computed/wait"):
        result = worker.send("waiting.computed", "wait", soft_time_limit=5)
        worker.zoo.wait_contenders("computed/wait", 2)
        struck = worker.zoo.payloads("computed/wait")[1]
        assert isinstance(worker.wait_failed(result), SoftTimeLimitExceeded)
        worker.zoo.wait_contenders("computed/wait", 1, timeout=2)
        assert struck.pid in worker.children()
    worker.run("waiting.computed", "wait")


def test_a_soft_limit_ends_the_work(worker):
    result = worker.send("patient", "work", "sleep", str(worker.gate()), soft_time_limit=1)
    assert isinstance(worker.wait_failed(result), SoftTimeLimitExceeded)
    worker.zoo.wait_contenders("work", 0, timeout=2)


@pytest.mark.chaos
def test_a_soft_limit_may_strike_at_any_moment(worker):
    storms = [worker.send("storm", "storm", 300, seed) for seed in range(2)]
    for storm in storms:
        assert worker.get(storm, timeout=50) > 100
    worker.zoo.wait_contenders("storm", 0, timeout=2)


@pytest.mark.parametrize("kind", ["SIGTERM", "SIGKILL"])
def test_a_revoked_task_leaves_the_queue(worker, kind):
    within = 2 if kind == "SIGTERM" else CRASH
    holder, _ = worker.begin("patient", f"revoke{kind}")
    waiter = worker.send("patient", f"revoke{kind}")
    for result, left in ((waiter, 1), (holder, 0)):
        worker.zoo.wait_contenders(f"revoke{kind}", left + 1)
        worker.app.control.revoke(result.id, terminate=True, signal=kind)
        assert isinstance(worker.wait_failed(result), TaskRevokedError)
        worker.zoo.wait_contenders(f"revoke{kind}", left, timeout=within)
    worker.run("ping")


TRIES = int(os.environ.get("ZKLOCK_EXITS", "1"))  # of each way to end, with each kind of lock


@pytest.mark.timeout(240 + 60 * TRIES)
def test_a_lock_is_free_although_the_process_ends_just_after_its_block(zoo, tmp_path):
    """A waiter elsewhere gets it, long before the session would expire, or a look would find the process gone."""
    how = {"options": ["--max-tasks-per-child=1"], "env": {NO_LOOKS: "1"}}
    with Worker(zoo, tmp_path, concurrency=1, **how) as worker, ThreadPoolExecutor(1) as waiter:
        for whose, way, number in itertools.product(LOCKS, AFTER, range(TRIES)):
            key, gate = f"{whose}-{way}-{number}".replace(" ", "-"), worker.gate()
            worker.send(f"ends.{whose}", key, str(gate), way)
            gate.wait_at_work()
            acquired = waiter.submit(acquire_once, key, timeout=30)
            zoo.wait_contenders(key, 2)
            gate.open()
            assert acquired.result(40), key


def sessions(zoo):
    host, _, port = zoo.hosts.partition(":")
    return four_letter(host, int(port), "dump")


def test_a_warm_shutdown_lets_tasks_finish_and_closes_the_sessions(zoo, tmp_path):
    with Worker(zoo, tmp_path) as worker:
        tasks = [worker.begin("plain", "warm"), worker.begin("by_hand", "by-hand")]  # which has no decorator
        known = {zoo.client.get(path)[1].ephemeralOwner for path in zoo.contenders()}
        assert len(known) == 2
        worker.process.send_signal(signal.SIGTERM)
        eventually(lambda: "Warm shutdown" in worker.log.read_text())
        assert len(zoo.contenders()) == 2
        worker.finish(tasks)
        assert worker.process.wait(30) == 0
        eventually(lambda: not any(f"{session:x}" in sessions(zoo) for session in known), 2, "sessions are left")
        assert zoo.contenders() == []


def test_a_cold_shutdown_frees_the_locks(zoo, tmp_path):
    """A lock of a thread of the process, which outlives the task that started the thread, is one of them."""
    with Worker(zoo, tmp_path) as worker:
        worker.run("keep", "kept")
        worker.run("forgetful_end", "forgotten", "success", "tell", None)
        zoo.wait_contenders("forgotten", 0, timeout=1.5)
        zoo.wait_contenders("kept", 1)
        for key in ("first", "second"):
            worker.begin("plain", key)
        worker.wait_accepted(2)
        worker.process.send_signal(signal.SIGQUIT)
        zoo.assert_empty(timeout=4)
