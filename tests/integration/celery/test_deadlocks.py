"""Tasks that wait for each other's locks: the work that holds and the work that waits are in different processes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.worker import Worker
from support.zoo import Zoo, eventually

from django_zklock import inspection, operations, zk_lock
from django_zklock.dashboard.detail import read_detail
from django_zklock.inspection import Snapshot

pytestmark = pytest.mark.zookeeper

FIRST, SECOND = "account-1", "account-2"


@pytest.fixture(params=["prefork", *(pytest.param(pool, marks=pytest.mark.chaos) for pool in ("threads", "gevent"))])
def worker(zoo: Zoo, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Worker]:
    with Worker(zoo, tmp_path, pool=request.param, options=["--include=support.waitingtasks"]) as worker:
        yield worker


def waits() -> Snapshot:
    return inspection.snapshot(max_age=0, reply_timeout=5)


def break_holder(key: str) -> None:
    lock = inspection.look_at(key)
    assert lock is not None
    holder = lock.holders[0]
    operations.break_lock(key, guid=holder.guid, token=holder.token, reason="a deadlock", by="anna")


def test_two_tasks_that_wait_for_each_other_are_a_deadlock(worker: Worker) -> None:
    """One that waits is a chain. The main process of both has one session, which makes no deadlock."""
    gates = worker.gate(), worker.gate()
    results = [
        worker.send("waiting.inner", FIRST, str(gates[0]), SECOND),
        worker.send("waiting.inner", SECOND, str(gates[1]), FIRST),
    ]
    for gate in gates:
        gate.wait_at_work()
    gates[0].open()
    (wait,) = eventually(lambda: waits().waits)
    assert (wait.holds, wait.waits_for) == (FIRST, SECOND)
    assert results[0].id in wait.who
    assert not waits().cycles

    gates[1].open()
    ((first, second),) = eventually(lambda: waits().cycles)
    assert [(first.holds, first.waits_for), (second.holds, second.waits_for)] == [(FIRST, SECOND), (SECOND, FIRST)]
    shown = read_detail(FIRST, reply_timeout=5)
    assert shown.is_cycle
    assert shown.holders[0].other_locks == (), "another task holds the other lock"

    break_holder(SECOND)
    assert worker.get(results[0]) > 0
    eventually(results[1].ready, 20)
    worker.zoo.assert_empty()  # before the worker is killed


def test_a_task_and_other_code_that_wait_for_each_other_are_a_deadlock(worker: Worker) -> None:
    gate = worker.gate()
    result = worker.send("waiting.inner", FIRST, str(gate), SECOND)
    gate.wait_at_work()

    def transfer() -> None:
        with zk_lock(SECOND), zk_lock(FIRST, timeout=30):
            pass

    thread = threading.Thread(target=transfer)
    thread.start()
    eventually(lambda: len(worker.zoo.children(FIRST)) == 2)
    gate.open()
    ((first, second),) = eventually(lambda: waits().cycles)
    assert {first.holds, second.holds} == {FIRST, SECOND}

    break_holder(FIRST)
    thread.join(20)
    assert not thread.is_alive()
    eventually(result.ready, 20)
