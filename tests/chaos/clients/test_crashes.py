"""A holder that dies, stops or is cut off is replaced, and never works at the same time as its successor."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.chaos.worker_pool import WorkerPool
from support.proxy import Proxy

TICK = 0.5  # seconds, of the test's servers


@pytest.mark.scenario("F1")
def test_a_killed_holder_is_replaced_within_its_session_timeout(pool: WorkerPool, figure: Callable[..., None]) -> None:
    a, b = pool.start("A", "B")
    a.take()
    call = b.acquire(timeout=20)
    pool.wait_contenders(2)
    killed = a.kill()
    answer = call.result(25)
    assert answer["granted"]
    figure("replaced after", answer["t"] - killed, "s")
    assert answer["t"] - killed <= a.session_timeout + 2 * TICK + 0.5
    pool.assert_kept()


@pytest.mark.scenario("F3")
def test_a_busy_holder_behind_a_dead_link_is_told_before_the_next_one_is_granted(
    pool: WorkerPool, proxy: Proxy, figure: Callable[..., None]
) -> None:
    a = pool.start_one("A", hosts=proxy.address)
    b = pool.start_one("B")
    a.take()
    a.tell("chatter", every=0.3).result()
    working = a.work()
    call = b.acquire(timeout=20)
    pool.wait_contenders(2)
    began = pool.note("blackhole", target="A")
    proxy.hang = True
    answer = call.result(25)
    assert answer["granted"]
    if not working.done():
        a.stop_work()
    told = working.result()
    assert told["lost"], "the holder was not told"
    figure("told after", told["t"] - began, "s")
    figure("next holder after", answer["t"] - began, "s")
    proxy.heal()
    pool.assert_kept()
