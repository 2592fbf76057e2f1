"""Servers that grant other session timeouts after each restart: nobody has a lock twice, and free locks are granted."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from support.chaos.random_work import LINGERING, SHARED, Wish
from support.chaos.servers import restart
from support.chaos.worker_pool import Call, LockWorker, WorkerPool
from support.ensemble import Ensemble, Server
from support.proxy import Proxy

ASKED = 20.0  # seconds, of a session
LONGEST = (2, 4, 8, 20)  # seconds, that a server may grant
CUT = 12.0  # seconds at most that a process is cut off: longer than the lease of the longest session
WISHES: dict[str, list[Wish]] = {"a": [{}], "b": [{}], "c": SHARED, "d": LINGERING}
OWNERS = ("main", "second")
LATE = 5.0  # seconds: the default timeout. A free lock that is granted later counts as refused
NAMES = ("A", "B", "C", "D")
CUT_OFF = 2  # the first of them, now and then

pytestmark = [pytest.mark.timeout(0)]


@pytest.fixture
def ensemble() -> Iterator[Ensemble]:
    with Ensemble(nodes=3, min_session_timeout=1.0, max_session_timeout=ASKED) as ensemble:
        yield ensemble


@pytest.fixture
def keys() -> tuple[str, ...]:
    return (*WISHES, *map(own, NAMES))


def own(name: str) -> str:
    return f"own-{name}"


def grant_at_most(server: Server, seconds: int) -> None:
    text = (server.directory / "zoo.cfg").read_text()
    restart(server, re.sub(r"(?m)^maxSessionTimeout=.*$", f"maxSessionTimeout={seconds * 1000}", text))


def test_leases_follow_servers_that_change_their_bounds(
    request: pytest.FixtureRequest, ensemble: Ensemble, pool: WorkerPool
) -> None:
    seconds: float = request.config.getoption("--soak-seconds")
    chance = random.Random(request.config.getoption("--soak-seed"))
    with ExitStack() as stack:
        working: list[Call] = []
        links: list[list[Proxy]] = []
        for index, name in enumerate(NAMES):
            hosts = ensemble.hosts
            if index < CUT_OFF:
                links.append([stack.enter_context(Proxy(server.address)) for server in ensemble.servers])
                hosts = ",".join(proxy.address for proxy in links[-1])
            worker = pool.start_one(name, hosts=hosts, session_timeout=ASKED)
            working += work(worker, seconds, chance)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            server, longest = chance.choice(ensemble.servers), chance.choice(LONGEST)
            pool.note("bounds", number=server.number, longest=longest)
            grant_at_most(server, longest)
            proxies = chance.choice(links)
            pool.note("cut off")
            for proxy in proxies:
                proxy.go_away()
            time.sleep(chance.uniform(0.5, CUT))
            for proxy in proxies:
                proxy.heal()
        for worker in pool.workers:
            worker.tell("end_random_work").result()
        for call in working:
            call.result(60)
        verdict = pool.assert_kept()
        free = [call for call in verdict.run.calls if call.key in map(own, NAMES[CUT_OFF:])]
        refused = [call for call in free if not call.granted and float(call.invoke["timeout"]) >= LATE]
        print(verdict.figures(), f"{len(free)} calls of free locks")
        assert not refused, [call.events for call in refused]
        assert len(free) > seconds


def work(worker: LockWorker, seconds: float, chance: random.Random) -> list[Call]:
    wishes: dict[str, dict[str, list[Wish]]] = dict.fromkeys(OWNERS, WISHES) | {"third": {own(worker.name): [{}]}}
    return [
        worker.tell("random_work", **{"as": owner}, keys=keys, seconds=10**6, seed=chance.randrange(10**9))
        for owner, keys in wishes.items()
    ]
