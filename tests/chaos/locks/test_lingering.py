"""Processes that keep a lock for their own next owners, while others wait for it."""

from __future__ import annotations

import random

from support.chaos.random_work import LINGERING
from support.chaos.report import Figures
from support.chaos.worker_pool import WorkerPool

PROCESSES = ("A", "B", "C")
OWNERS = ("main", "second", "third", "fourth")
WORK = (0.02, 0.05)  # seconds of a turn, at random
TURNS = 40  # of each owner
TIMEOUT = 30.0  # seconds; nobody waits for so long


def test_owners_in_all_processes_are_granted_a_lingering_lock_in_order(pool: WorkerPool, figure: Figures) -> None:
    """Without a fault: in each process several owners take turns, and no process waits for long."""
    chance = random.Random(1)
    # The last owner of each process does not keep it, so that there are both kinds in every queue.
    calls = [
        worker.tell("turn", **{"as": owner}, key="k", timeout=TIMEOUT, seconds=chance.choice(WORK), **linger)
        for worker in pool.start(*PROCESSES)
        for owner in OWNERS
        for linger in chance.choices([{}] if owner == OWNERS[-1] else LINGERING[1:], k=TURNS)
    ]
    for call in calls:
        assert call.result(120)["granted"]
    verdict = pool.assert_kept()
    figure("grants", verdict.figures.grants)
    figure("of them without ZooKeeper", verdict.figures.handed_on)
    figure.spread("hand-off", verdict.figures.handoffs)
    assert verdict.figures.handed_on > verdict.figures.grants / 10, "hardly a lock was handed on"
