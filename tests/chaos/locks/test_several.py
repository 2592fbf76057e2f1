"""Overlapping sets of locks: no deadlock, also if processes are killed or stopped meanwhile."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest
from support.chaos.worker_pool import WorkerPool

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(300)]

KEYS = ("a", "b", "c", "d")
T = 2.0  # seconds, of a session: a killed taker holds the others up for so long
OWNERS = ("main", "second")
ROUNDS = 60
ALL_DONE = 120.0  # seconds; in a circle they would wait for ever


@pytest.fixture
def keys() -> tuple[str, ...]:
    return KEYS


@pytest.mark.parametrize("hurt", ["no fault", "killed", "stopped"])
def test_takers_of_overlapping_sets_all_come_to_an_end(
    pool: WorkerPool, figure: Callable[..., None], hurt: str
) -> None:
    """They wait for ever if need be, name the locks in any order, and leave those who live nothing to wait for."""
    chance = random.Random(7)
    victims = pool.start("V1", "V2", session_timeout=T)
    takers = pool.start("A", "B", "C", session_timeout=T)
    began = time.monotonic()
    calls = [
        worker.tell("random_sets", **{"as": owner}, keys=KEYS, rounds=ROUNDS, seed=number, timeout=None)
        for number, (worker, owner) in enumerate((worker, owner) for worker in (*takers, *victims) for owner in OWNERS)
    ]
    for victim in victims:
        if hurt == "no fault":
            break
        time.sleep(chance.uniform(0.3, 1.0))
        if hurt == "killed":
            victim.kill()
        else:
            victim.pause()
            time.sleep(T + 1.5)
            victim.resume()
    alive = calls if hurt != "killed" else calls[: len(takers) * len(OWNERS)]
    counts = [call.result(ALL_DONE) for call in alive]
    figure("sets taken a second", sum(each["granted"] for each in counts) / (time.monotonic() - began), "")
    assert not any(each["refused"] for each in counts)
    assert all(each["granted"] + each["lost"] == ROUNDS for each in counts)
    pool.assert_kept()
