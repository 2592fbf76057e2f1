"""Read-write locks and semaphores keep their promises on an ensemble with faults, with many contenders on one key."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

import pytest
from support.chaos.checker import Verdict
from support.chaos.kinds import READ, SEMAPHORE
from support.chaos.limiting import Operator
from support.chaos.nemesis import Nemesis
from support.chaos.random_work import PERMITS, READ_WRITE, SHARED, Wish
from support.chaos.report import Figures
from support.chaos.worker_pool import Call, LockWorker, WorkerPool
from support.proxy import Proxy

from django_zklock.testing.ensemble import Ensemble

T = 4.0  # seconds, of a session
SECONDS = 20.0  # of faults drawn at random
PROCESSES = 3
OWNERS = ("main", "second")
GRANTS = 2.0  # a second at least, or little was tried
TIMEOUT = 60.0  # seconds, for the end of all that is under way

NOTHING = contextlib.nullcontext()

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def ensemble() -> Iterator[Ensemble]:
    with Ensemble(nodes=3, properties={"syncLimit": "20"}) as ensemble:
        yield ensemble


@pytest.mark.scenario("READERS")
def test_readers_and_writers_on_an_ensemble_under_faults(
    request: pytest.FixtureRequest,
    ensemble: Ensemble,
    proxies: list[Proxy],  # before the processes that connect through them, and so stopped after those
    pool: WorkerPool,
    figure: Figures,
) -> None:
    chance = random.Random(request.config.getoption("--soak-seed"))
    verdict = hurt(pool, ensemble, proxies, READ_WRITE, chance, figure)
    show(figure, verdict)
    assert verdict.figures.together[READ] > 1, "no two readers had the lock at a time"
    assert verdict.figures.downgrades


@pytest.mark.scenario("PERMITS")
def test_permits_on_an_ensemble_under_faults(
    request: pytest.FixtureRequest,
    ensemble: Ensemble,
    proxies: list[Proxy],  # before the processes that connect through them, and so stopped after those
    pool: WorkerPool,
    figure: Figures,
) -> None:
    """While the limit is raised, lowered and cleared."""
    chance = random.Random(request.config.getoption("--soak-seed"))
    operator = Operator(pool, "k", PERMITS, chance=random.Random(chance.random()), every=1.0)
    verdict = hurt(pool, ensemble, proxies, SHARED, chance, figure, operator)
    show(figure, verdict)
    figure("limits set", operator.changes)
    assert verdict.figures.together[SEMAPHORE] > 1, "no two had a permit at a time"


def hurt(
    pool: WorkerPool,
    ensemble: Ensemble,
    proxies: list[Proxy],
    wishes: Sequence[Wish],
    chance: random.Random,
    figure: Figures,
    meanwhile: AbstractContextManager[object] = NOTHING,
) -> Verdict:
    """Have a crowd take one key while faults are drawn, and while the leader goes at the end; judge what it did."""
    if pool.lock != "zklock":
        pytest.skip("the kinds of locks of kazoo's do not share a queue")
    hosts = ",".join(proxy.address for proxy in proxies)
    names = iter(f"P{number}" for number in range(1, 10**6))
    under_way: list[Call] = []

    def start() -> LockWorker:
        worker = pool.start_one(next(names), hosts=hosts, session_timeout=T)
        under_way.extend(
            worker.tell("random_work", **{"as": owner}, keys={"k": wishes}, seconds=10**6, seed=chance.randrange(10**9))
            for owner in OWNERS
        )
        return worker

    with meanwhile:
        mortals = [start() for _ in range(PROCESSES)]
        nemesis = Nemesis(pool, ensemble, proxies, mortals, start, disk=None, chance=chance)
        nemesis.run(SECONDS)
        leader = ensemble.leader
        pool.note("kill server", number=leader.number)
        leader.kill()
        for server in ensemble.servers:
            if server is not leader:
                server.wait_ready()
        leader.start()
        leader.wait_ready()
        pool.note("heal")
    for worker in pool.workers:
        if worker.alive:
            worker.tell("end_random_work").result()
    for call in under_way:
        if call.worker.alive:
            call.result(TIMEOUT)
    for fault, count in sorted(nemesis.done.items()):
        figure(fault, count)
    return pool.assert_kept()


def show(figure: Figures, verdict: Verdict) -> None:
    figures = verdict.figures
    for name in ("grants", "refusals", "losses", "downgrades"):
        figure(name, getattr(figures, name))
    for kind, count in sorted(figures.together.items()):
        figure(f"{kind}: at the same time", count)
    figure.spread("hand-off", figures.handoffs)
    figure("events", len(verdict.events))
    assert figures.grants >= GRANTS * SECONDS, "hardly a lock was granted"
