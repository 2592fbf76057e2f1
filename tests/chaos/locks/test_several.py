"""Several locks at once: overlapping sets, while processes are killed and paused."""

from __future__ import annotations

import time

import pytest
from support.chaos.worker_pool import WorkerPool

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(300)]

KEYS = ("a", "b", "c", "d")
T = 2.0  # seconds, of a session: a killed holder delays the others for so long
ROUNDS = 60
ALL_DONE = 120.0  # seconds; a deadlock would last for ever


@pytest.fixture
def keys() -> tuple[str, ...]:
    return KEYS


def test_takers_of_overlapping_sets_never_deadlock(pool: WorkerPool) -> None:
    """They wait without a limit and name the locks in any order. One process is killed, and one is paused."""
    workers = killed, paused, *_ = pool.start("A", "B", "C", "D", session_timeout=T)
    calls = [
        (worker, worker.tell("sets", **{"as": owner}, keys=KEYS, rounds=ROUNDS, seed=number))
        for number, worker in enumerate(workers)
        for owner in ("main", "second")
    ]
    time.sleep(0.5)  # in the middle of their work
    killed.kill()
    paused.pause()
    time.sleep(T + 1.5)  # its session is over
    paused.resume()
    lost = dict.fromkeys("BCD", 0)
    for worker, call in calls:
        if worker is not killed:
            lost[worker.name] += call.result(ALL_DONE)
    assert not lost["C"] + lost["D"], "only the paused process may lose locks"
    pool.assert_kept()
