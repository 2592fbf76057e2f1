"""Servers that grant other session timeouts after each restart: nobody has a lock twice, and free locks are granted."""

import functools
import random
import re
import time
from contextlib import ExitStack

import pytest
from support.chaos.servers import restart
from support.ensemble import Ensemble
from support.proxy import Proxy
from support.zoo import eventually

ASKED = 20.0  # seconds, of a session
LONGEST = (2, 4, 8, 20)  # seconds, that a server may grant
LATE = 5.0  # seconds: the default timeout. A free lock that is granted later counts as refused
UNCONTENDED = "uncontended"

pytestmark = [pytest.mark.timeout(0)]


@pytest.fixture
def ensemble():
    with Ensemble(nodes=3, min_session_timeout=1.0, max_session_timeout=ASKED) as ensemble:
        yield ensemble


@pytest.fixture
def proxies(ensemble):
    """The way of the holder to each server."""
    with ExitStack() as stack:
        yield [stack.enter_context(Proxy(server.address)) for server in ensemble.servers]


@pytest.fixture
def keys():
    return ("k", UNCONTENDED)


def is_used(proxies):
    return any(proxy.connections for proxy in proxies)


def test_leases_follow_servers_that_change_their_bounds(request, ensemble, proxies, pool):
    """
    The server of a holder is restarted with other bounds, so its session moves, and the holder is cut off after that.

    It may trust its lock until the next process has it. A third process acquires a free lock all the time.
    """
    seconds = request.config.getoption("--soak-seconds")
    chance = random.Random(request.config.getoption("--soak-seed"))
    holder = pool.start_one("A", hosts=",".join(proxy.address for proxy in proxies), session_timeout=ASKED)
    waiter = pool.start_one("B", session_timeout=ASKED)
    third = pool.start_one("C", session_timeout=ASKED)
    third_works = third.tell("random_work", keys={UNCONTENDED: [{}]}, seconds=10**6, seed=1, **{"as": "main"})
    rounds = 0
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        rounds += 1
        holder.must_acquire(timeout=40, abort_on="lost")
        working = holder.work()
        waiting = waiter.tell("turn", **{"as": "main"}, key="k", timeout=60, seconds=0.05)
        pool.wait_contenders(2)
        number = next(index for index, proxy in enumerate(proxies) if proxy.connections)
        server, longest = ensemble.servers[number], chance.choice(LONGEST)
        pool.note("bounds", number=server.number, longest=longest)
        server.stop()
        eventually(functools.partial(is_used, [proxy for proxy in proxies if proxy is not proxies[number]]), 20)
        time.sleep(chance.choice((0.1, 0.5, 1.0)))  # any moment after the session has moved
        pool.note("cut off")
        for proxy in proxies:
            proxy.go_away()
        text = (server.directory / "zoo.cfg").read_text()
        restart(server, re.sub(r"(?m)^maxSessionTimeout=.*$", f"maxSessionTimeout={longest * 1000}", text))
        working.result(60)
        for proxy in proxies:
            proxy.heal()
        holder.release().result()
        assert waiting.result(70)["granted"]
    third.tell("end_random_work").result()
    third_works.result(60)
    verdict = pool.assert_kept()
    calls = [call for call in verdict.run.calls if call.key == UNCONTENDED]
    refused = [call.events for call in calls if not call.granted and float(call.invoke["timeout"]) >= LATE]
    print(f"{rounds} rounds, {len(calls)} calls of a free lock, {verdict.figures()}")
    assert not refused
    assert len(calls) > seconds
