"""Locks in the pools of a Celery worker that are no processes: threads, greenlets, and the worker itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.worker import Worker
from support.zoo import Zoo, eventually

from django_zklock.exceptions import LockLost
from django_zklock.testing.ensemble import Ensemble

pytestmark = pytest.mark.zookeeper


@pytest.fixture(params=["threads", "solo", "gevent"])
def worker(zoo: Zoo, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Worker]:
    with Worker(zoo, tmp_path, pool=request.param, concurrency=4) as worker, worker.log_shown():
        yield worker


def test_a_pool_takes_turns_and_comes_again(worker: Worker) -> None:
    """Tasks of one process exclude each other; a conflict sends a task again; the session ends with the worker."""
    counter = worker.home / "counter"
    results = [worker.send("increment", "turns", str(counter)) for _ in range(12)]
    assert len({worker.get(result) for result in results}) == 1
    assert counter.read_text() == "12"

    with worker.zoo.hold_elsewhere("retry"):
        result = worker.send("bound", "retry")
        eventually(lambda: result.state == "RETRY")
    assert worker.get(result)["retries"] == 0

    worker.run("forget", "forgotten")  # takes the lock and does not let go
    worker.zoo.wait_contenders("forgotten", 1)
    assert worker.stop() == 0
    worker.zoo.wait_contenders("forgotten", 0, timeout=1)


@pytest.mark.parametrize(("pool", "way"), [("threads", "thread"), ("gevent", "greenlet"), ("solo", "signal")])
def test_an_outage_stops_the_work_of_a_pool(tmp_path: Path, pool: str, way: str) -> None:
    """Threads are stopped while they compute, greenlets while they wait, and the worker's own thread either way."""
    with Ensemble(nodes=1) as ensemble:
        zoo = Zoo(ensemble.hosts, ensemble)
        with Worker(zoo, tmp_path, pool=pool, concurrency=2) as worker, worker.log_shown():
            gate = worker.gate()
            result = worker.send("plain", "work", "spin" if pool == "threads" else "sleep", str(gate))
            gate.wait_entered()
            ensemble.servers[0].kill()
            assert isinstance(worker.wait_failed(result, timeout=6), LockLost)
            assert f"after the abort ({way})" in worker.log.read_text()
            ensemble.servers[0].start()
            ensemble.servers[0].wait_ready()
            worker.run("late", "work")
        zoo.close()
