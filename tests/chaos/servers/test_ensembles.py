"""Servers without a quorum grant no lock."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from support.chaos.servers import repair, repaired, serving
from support.chaos.worker_pool import WorkerPool
from support.ensemble import Ensemble

from django_zklock.core.zk.lease import LEASE_SHARE

pytestmark = [pytest.mark.zookeeper]

LONGEST = 20.0  # seconds; of sessions
LATER = 0.5  # seconds of room for a busy machine


@pytest.fixture(scope="module")
def servers() -> Iterator[Ensemble]:
    with Ensemble(nodes=3, max_session_timeout=LONGEST) as ensemble:
        yield ensemble


@pytest.fixture
def ensemble(servers: Ensemble) -> Iterator[Ensemble]:
    with repaired(servers) as ensemble:
        yield ensemble


@pytest.mark.timeout(120)
def test_without_a_quorum_the_holder_is_aborted_and_no_lock_is_granted(pool: WorkerPool, ensemble: Ensemble) -> None:
    """Three session timeouts long; one holder comes out of it."""
    a, b, c = pool.start("A", "B", "C")
    token = a.must_acquire(abort_on="lost")["token"]
    working = a.work()
    waiting = b.acquire(timeout=90)
    pool.wait_contenders(2)
    leader, follower, _ = ensemble.leader, *ensemble.followers
    killed = pool.note("kill server")
    for server in (leader, follower):
        server.kill()
    outcome = working.result(20)
    assert outcome["lost"]
    assert outcome["t"] - killed <= LEASE_SHARE * a.session_timeout + LATER
    released = a.release()
    hopeless = c.acquire(timeout=3)
    time.sleep(max(0.0, killed + 3 * a.session_timeout - time.monotonic()))
    assert not waiting.done() or not waiting.result()["granted"]
    assert hopeless.done(), "no answer within the deadline"
    assert not hopeless.result()["granted"]
    repair(ensemble)
    pool.note("heal")
    serving(pool.zoo)
    answer = waiting.result(100)
    assert answer["granted"]
    assert answer["token"] > token
    once_more = c.acquire(timeout=30)
    b.work(seconds=1).result()
    assert not once_more.done()
    b.release().result()
    assert once_more.result(35)["granted"]
    c.release().result()
    released.result(30)
    pool.assert_kept()
