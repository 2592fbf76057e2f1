"""Locks inside locks: each circle of waits ends, and a wait that is in no circle is never ended as one."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Iterator

import pytest
from support.chaos.limiting import Operator
from support.chaos.nemesis import Nemesis
from support.chaos.nesting import false_deadlocks
from support.chaos.random_work import LINGERING, MIXED, PERMITS, READ_WRITE, SHARED, Wish
from support.chaos.report import Figures
from support.chaos.worker_pool import Call, LockWorker, WorkerPool
from support.ensemble import Ensemble
from support.proxy import Proxy

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(0)]  # it ends by the clock

T = 4.0  # seconds, of a session
NO_PERMITS: dict[str, list[Wish]] = {key: READ_WRITE if key in "ch" else [{}] for key in "acdeghij"}
WISHES: list[list[Wish]] = [[{}], SHARED, READ_WRITE, LINGERING, [{"hands_over": True}], MIXED, [{}]]
ALL_KINDS = dict(zip("abcdefg", WISHES, strict=True))
PROCESSES = 5
OWNERS = ("main", "second", "third")
SOON = json.dumps({"DEADLOCK_TIMEOUT": 0.2})  # seconds; so that much is looked at
REST = 60.0  # seconds until all waits have ended after the faults


@pytest.fixture(scope="module")
def ensemble() -> Iterator[Ensemble]:
    with Ensemble(nodes=3, fsync=True) as ensemble:
        yield ensemble


@pytest.fixture
def keys() -> tuple[str, ...]:
    return tuple(ALL_KINDS)


@pytest.mark.parametrize(
    ("in_order", "is_calm"),
    [(True, False), (False, False), (False, True)],
    ids=["locks_in_one_order", "locks_in_any_order", "without_faults"],
)
def test_only_a_circle_is_a_deadlock(
    request: pytest.FixtureRequest,
    ensemble: Ensemble,
    proxies: list[Proxy],  # before the processes that connect through them, and so stopped after those
    pool: WorkerPool,
    figure: Figures,
    in_order: bool,
    is_calm: bool,
) -> None:
    """
    Through random faults, no wait is ended that is in no circle, and none lasts for ever.

    If all owners take the locks in one order, there is no circle. Without faults, the moment of each end is known.
    """
    seconds: float = request.config.getoption("--nesting-seconds")
    chance = random.Random(request.config.getoption("--soak-seed"))
    hosts = ",".join(proxy.address for proxy in proxies)
    names = iter(f"P{number}" for number in range(10**6))
    calls: list[Call] = []

    def start() -> LockWorker:
        worker = pool.start_one(next(names), hosts=hosts, session_timeout=T, SITE_ZKLOCK=SOON)
        work = {"keys": ALL_KINDS if in_order else NO_PERMITS, "in_order": in_order}
        calls.extend(worker.tell("nesting", **{"as": owner}, **work, seed=chance.randrange(10**9)) for owner in OWNERS)
        return worker

    nemesis = Nemesis(pool, ensemble, proxies, [start() for _ in range(PROCESSES)], start, disk=None, chance=chance)
    with Operator(pool, ("b", "f"), PERMITS, chance=random.Random(chance.random())) as operator:
        time.sleep(seconds) if is_calm else nemesis.run(seconds)
    alive = [worker for worker in pool.workers if worker.alive]
    for worker in alive:
        worker.tell("end_random_work").result()
    for call in calls:
        if call.worker in alive:
            call.result(REST)
    verdict = pool.assert_kept()
    nested = [event for event in verdict.events if event["e"] == "nesting" and event["depth"]]
    deadlocks = [event for event in verdict.events if event["e"] == "deadlock"]
    figure("seed", request.config.getoption("--soak-seed"))
    for fault, count in sorted(nemesis.done.items()):
        figure(fault, count)
    figure("limits set", operator.changes)
    figure("locks inside others", sum(event["what"] == "has" for event in nested))
    figure("deadlocks", len(deadlocks))
    assert sum(event["what"] == "has" for event in nested) > seconds / 2, "hardly a lock was inside another one"
    wrong = deadlocks if in_order else false_deadlocks(verdict.events, within=1.0 if is_calm else math.inf)
    assert not wrong, f"{len(wrong)} of {len(deadlocks)} are false: {wrong[0]}"
    assert in_order or len(deadlocks) > seconds / 10, "hardly a circle was ended"
