"""Many processes, random faults every few seconds, and at the end every promise was kept."""

import itertools
import random
import statistics

import pytest
from support.chaos.holds import READ, SEMAPHORE
from support.chaos.nemesis import Nemesis
from support.chaos.random_work import LINGERING, MIXED, READ_WRITE, SHARED
from support.ensemble import Ensemble
from support.zoo import eventually

T = 4.0  # seconds, of a session
WISHES = {
    "a": [{}],
    "b": [{}],
    "c": READ_WRITE,
    "d": SHARED,
    "e": MIXED,
    "f": LINGERING,
}
VETERANS = 3  # processes that live to the end
MORTALS = 3  # processes that are killed and replaced
OWNERS = ("main", "second", "third")
GRANTS = 5.0  # a second at least, or little was tried; with all the faults
HAND_OFF = 0.25  # seconds at the median, with all the faults; without any it takes some milliseconds
REST = 60.0  # seconds until all is idle after the faults

pytestmark = [pytest.mark.timeout(0)]  # it ends by the clock, and says itself what hangs


@pytest.fixture(scope="module")
def ensemble():
    """Servers that write to disk first. A cut-off follower believes in its leader for longer than a session lasts."""
    with Ensemble(nodes=3, fsync=True, properties={"syncLimit": "20"}) as ensemble:  # ticks, of half a second
        yield ensemble


@pytest.fixture
def keys():
    return tuple(WISHES)


def test_every_promise_is_kept_through_random_faults(
    request,
    ensemble,
    proxies,  # before the processes that connect through them, and so stopped after those
    pool,
):
    seconds = request.config.getoption("--soak-seconds")
    chance = random.Random(request.config.getoption("--soak-seed"))
    hosts = ",".join(proxy.address for proxy in proxies)
    names = (f"P{number}" for number in itertools.count(1))
    veterans = pool.start(*(next(names) for _ in range(VETERANS)), hosts=hosts, session_timeout=T)
    at_first = [at_rest(worker, random_work(worker, 2.0, chance)) for worker in veterans]
    soaking = []

    def start():
        worker = pool.start_one(next(names), hosts=hosts, session_timeout=T)
        soaking.extend(random_work(worker, 10**6, chance))
        return worker

    for worker in veterans:
        soaking += random_work(worker, seconds, chance)
    mortals = [start() for _ in range(MORTALS)]
    nemesis = Nemesis(pool, ensemble, proxies, mortals, start, chance)
    nemesis.run(seconds)
    for worker in pool.workers:
        if worker.alive:
            worker.tell("end_random_work").result()
    at_last = [at_rest(worker, [call for call in soaking if call.worker is worker]) for worker in veterans]
    for call in soaking:
        if call.worker.alive:
            call.result(REST)
    verdict = pool.assert_kept()
    assert at_last == at_first, "something leaks"
    print(dict(nemesis.done))
    assert nemesis.done.total() >= seconds / 10, "hardly a fault was done"
    assert_grants(verdict, seconds)


def assert_grants(verdict, seconds):
    """Fail if locks of some kind were granted seldom, or late. That breaks none of the promises."""
    figures = verdict.figures()
    print(figures)
    assert figures["grants"] >= GRANTS * seconds, "hardly a lock was granted"
    assert min(verdict.together(kind) for kind in (READ, SEMAPHORE)) > 1, "no lock was shared"
    assert figures["handed on"], "no lock was handed on in a process"
    assert statistics.median(verdict.hand_offs()) < HAND_OFF, "waiters are served late"


def random_work(worker, seconds, chance):
    return [
        worker.tell("random_work", **{"as": owner}, keys=WISHES, seconds=seconds, seed=chance.randrange(10**9))
        for owner in OWNERS
    ]


def at_rest(worker, calls):
    for call in calls:
        call.result(10**4)

    def gauge():
        sizes = worker.ask("gauge")
        return None if any(sizes.get(name) for name in ("watches", "members", "guids", "departures", "kept")) else sizes

    return eventually(gauge, REST, f"{worker.name} does not become idle") or {}
