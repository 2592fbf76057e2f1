"""Many processes, random faults every few seconds, and at the end every promise was kept."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator

import pytest
from support.chaos import preload
from support.chaos.kinds import READ, SEMAPHORE
from support.chaos.limiting import Operator
from support.chaos.nemesis import Nemesis
from support.chaos.random_work import LINGERING, MIXED, PERMITS, READ_WRITE, SHARED, Wish
from support.chaos.report import Figures
from support.chaos.slowdisk import SlowDisk
from support.chaos.worker_pool import Call, LockWorker, WorkerPool
from support.ensemble import Ensemble
from support.proxy import Proxy
from support.zoo import eventually

T = 4.0  # seconds, of a session
WISHES: dict[str, list[Wish]] = {"a": [{}], "b": [{}], "c": READ_WRITE, "d": SHARED, "e": MIXED, "f": LINGERING}
VETERANS = 3  # processes that live to the end
MORTALS = 3  # processes that are killed and replaced
OWNERS = ("main", "second", "third")
GRANTS = 5.0  # a second at least, or little was tried; with all the faults
HAND_OFF = 0.25  # seconds at the median, with all the faults; without any it takes some milliseconds
REST = 60.0  # seconds until all is idle after the faults

pytestmark = [pytest.mark.timeout(0)]  # it ends by the clock, and says itself what hangs


@pytest.fixture(scope="module")
def disk() -> Iterator[SlowDisk | None]:
    """Disks to be slowed down, where there is a compiler."""
    if preload.why_not():
        yield None
    else:
        with SlowDisk() as disk:
            yield disk


@pytest.fixture(scope="module")
def ensemble(disk: SlowDisk | None) -> Iterator[Ensemble]:
    """
    Three servers that acknowledge nothing before it is on disk.

    A follower that is cut off believes in its leader for longer than a session lasts: else it sends its clients away
    before anybody else can be granted their locks.
    """
    properties = {"syncLimit": "20"}  # ticks, of half a second
    with Ensemble(nodes=3, fsync=True, properties=properties, env=disk.env if disk is not None else None) as ensemble:
        yield ensemble


@pytest.fixture
def keys() -> tuple[str, ...]:
    return tuple(WISHES)


def test_every_promise_is_kept_through_random_faults(
    request: pytest.FixtureRequest,
    ensemble: Ensemble,
    proxies: list[Proxy],  # before the processes that connect through them, and so stopped after those
    pool: WorkerPool,
    disk: SlowDisk | None,
    figure: Figures,
) -> None:
    seconds: float = request.config.getoption("--soak-seconds")
    seed: int = request.config.getoption("--soak-seed")
    chance = random.Random(seed)
    hosts = ",".join(proxy.address for proxy in proxies)
    names = iter(f"P{number}" for number in range(1, 10**6))
    veterans = pool.start(*(next(names) for _ in range(VETERANS)), hosts=hosts, session_timeout=T)
    at_first = [at_rest(worker, random_work(worker, 2.0, chance)) for worker in veterans]
    soaking: list[Call] = []

    def start() -> LockWorker:
        worker = pool.start_one(next(names), hosts=hosts, session_timeout=T)
        soaking.extend(random_work(worker, 10**6, chance))
        return worker

    for worker in veterans:
        soaking += random_work(worker, seconds, chance)
    mortals = [start() for _ in range(MORTALS)]
    nemesis = Nemesis(pool, ensemble, proxies, mortals, start, disk=disk, chance=chance)
    with Operator(pool, ("d", "e"), PERMITS, chance=random.Random(seed)) as operator:
        nemesis.run(seconds)
    for worker in pool.workers:
        if worker.alive:
            worker.tell("end_random_work").result()
    at_last = [at_rest(worker, [call for call in soaking if call.worker is worker]) for worker in veterans]
    for call in soaking:
        if call.worker.alive:
            call.result(REST)
    verdict = pool.assert_kept()
    figure("seed", seed)
    for fault, count in sorted(nemesis.done.items()):
        figure(fault, count)
    figure("grants", verdict.figures.grants)
    figure("refusals", verdict.figures.refusals)
    figure("losses", verdict.figures.losses)
    figure.spread("hand-off", verdict.figures.handoffs)
    for kind, count in sorted(verdict.figures.together.items()):
        figure(f"{kind}: at the same time", count)
    figure("downgrades", verdict.figures.downgrades)
    figure("handed on without ZooKeeper", verdict.figures.handed_on)
    figure("limits set", operator.changes)
    figure("events", len(verdict.events))
    assert at_last == at_first, "something leaks"
    # A lock that grants little, or late, breaks none of the rules above.
    assert sum(nemesis.done.values()) >= seconds / 10, "hardly a fault was done"
    assert verdict.figures.grants >= GRANTS * seconds, "hardly a lock was granted"
    assert min(verdict.figures.together[kind] for kind in (READ, SEMAPHORE)) > 1, "nobody shared a lock"
    assert verdict.figures.downgrades, "no writer went on as a reader"
    assert verdict.figures.handed_on, "no lock was handed on in a process"
    assert statistics.median(verdict.figures.handoffs) < HAND_OFF, "waiters are served late"


def random_work(worker: LockWorker, seconds: float, chance: random.Random) -> list[Call]:
    """Have all owners of a process work under locks for so long."""
    return [
        worker.tell("random_work", **{"as": owner}, keys=WISHES, seconds=seconds, seed=chance.randrange(10**9))
        for owner in OWNERS
    ]


def at_rest(worker: LockWorker, calls: list[Call]) -> dict[str, int]:
    """Return the sizes of what might leak, when the work is done and nothing is under way any more."""
    for call in calls:
        call.result(10**4)

    def gauge() -> dict[str, int] | None:
        sizes: dict[str, int] = worker.ask("gauge")
        return None if any(sizes.get(name) for name in ("watches", "members", "guids", "departures", "kept")) else sizes

    return eventually(gauge, REST, f"{worker.name} does not become idle") or {}
