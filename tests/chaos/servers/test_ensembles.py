"""Servers that die, freeze or restart grant no lock twice, and cost none that need not be lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from support.chaos.servers import attached_to, repair, repaired, serving
from support.chaos.worker_pool import LockWorker, WorkerPool
from support.zoo import Zoo, eventually

from django_zklock.testing.ensemble import Ensemble
from django_zklock.zk.lease import LEASE_SHARE

pytestmark = [pytest.mark.zookeeper]

LONGEST = 20.0  # seconds; of sessions
LATER = 0.5  # seconds of room for a busy machine

#: What kazoo's Lock leaves to its user: whether a lock is still one's own after the connection was suspended.


@pytest.fixture(scope="module")
def servers() -> Iterator[Ensemble]:
    """Three servers."""
    with Ensemble(nodes=3, max_session_timeout=LONGEST) as ensemble:
        yield ensemble


@pytest.fixture
def ensemble(servers: Ensemble) -> Iterator[Ensemble]:
    """The servers, all of them serving before and after."""
    with repaired(servers) as ensemble:
        yield ensemble


def tokens_there(zoo: Zoo) -> list[int]:
    """Return which transactions created the contenders that are in the queue."""
    stats = [zoo.client.exists(f"{zoo.base}/k/{name}") for name in zoo.children("k")]
    return [stat.czxid for stat in stats if stat is not None]


@pytest.mark.timeout(120)
def test_without_a_quorum_the_holder_is_told_and_nobody_is_granted(
    pool: WorkerPool, ensemble: Ensemble, figure: Callable[..., None]
) -> None:
    """Three session timeouts long; one holder comes out of it."""
    a, b, c = pool.start("A", "B", "C")
    token = a.take(abort_on="lost")["token"]
    working = a.work()
    waiting = b.acquire(timeout=90)
    pool.wait_contenders(2)
    leader, follower, _ = ensemble.leader, *ensemble.followers
    killed = pool.note("kill server")
    for server in (leader, follower):
        server.kill()
    told = working.result(20)
    assert told["lost"]
    figure("told after", told["t"] - killed, "s")
    assert told["t"] - killed <= LEASE_SHARE * a.session_timeout + LATER
    released = a.release()
    hopeless = c.acquire(timeout=3)
    time.sleep(max(0.0, killed + 3 * a.session_timeout - time.monotonic()))
    assert not waiting.done() or not waiting.result()["granted"]
    assert hopeless.done(), "no answer within the deadline"
    assert not hopeless.result()["granted"]
    repair(ensemble)
    back = pool.note("heal")
    serving(pool.zoo)
    answer = waiting.result(100)
    if not answer["granted"]:  # kazoo's Lock gives up when its session is over
        answer = b.take(timeout=30)
    figure("next holder after the restart", answer["t"] - back, "s")
    assert answer["token"] > token
    once_more = c.acquire(timeout=30)
    b.work(seconds=1).result()
    assert not once_more.done()
    b.release().result()
    assert once_more.result(35)["granted"]
    c.release().result()
    released.result(30)
    pool.assert_kept()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("role", ["follower", "leader"])
def test_a_server_that_freezes_is_left_for_another_or_the_hold_is_lost_by_its_lease(
    pool: WorkerPool, ensemble: Ensemble, figure: Callable[..., None], role: str
) -> None:
    """It breaks no connection and answers nothing, for two session timeouts."""
    timeout = 6.0
    frozen = ensemble.leader if role == "leader" else ensemble.followers[0]
    others = ",".join(server.address for server in ensemble.servers if server is not frozen)
    b = pool.start_one("B", hosts=others, session_timeout=timeout)
    a = hire_attached(pool, ensemble, frozen.address, others, timeout)
    token = a.take(abort_on="lost")["token"]
    working = a.work()
    waiting = b.acquire(timeout=60, abort_on="lost")
    pool.wait_contenders(2)
    began = pool.note("pause server")
    frozen.pause()
    eventually(lambda: attached_to(a, ensemble) not in (None, frozen), 2 * timeout, "still with the frozen server")
    figure(f"elsewhere after ({role})", time.monotonic() - began, "s")
    time.sleep(max(0.0, began + 2 * timeout - time.monotonic()))
    lost = working.done()
    figure(f"the lock ({role})", "lost" if lost else "held")
    frozen.resume()
    pool.note("heal")
    serving(pool.zoo)
    if lost:
        told = working.result()
        assert told["t"] - began <= LEASE_SHARE * timeout + LATER
    else:
        assert not waiting.done()
        assert token in tokens_there(pool.zoo)
        a.stop_work()
    a.release().result()
    assert waiting.result(40)["granted"]
    b.release().result()
    pool.assert_kept(settle=5)


def hire_attached(pool: WorkerPool, ensemble: Ensemble, address: str, others: str, timeout: float) -> LockWorker:
    """Hire until one is with this server; clients draw theirs."""
    for number in range(30):
        worker = pool.start_one(f"A{number}", hosts=f"{address},{others}", session_timeout=timeout)
        server = attached_to(worker, ensemble)
        if server is not None and server.address == address:
            return worker
        worker.dismiss()
    raise AssertionError(f"no client connected to {address}")
