"""
No lock is granted through a follower that is cut off from its leader, and no hold outlives its session there.

Until it notices, after syncLimit ticks, it goes on answering pings and reads, with what it knew when it was cut off.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from support.chaos import firewall
from support.chaos.firewall import needs_firewall
from support.chaos.servers import Partition, looking_in, partition, repaired, serving
from support.chaos.worker_pool import Call, LockWorker, WorkerPool
from support.ensemble import Ensemble
from support.zoo import eventually

pytestmark = pytest.mark.zookeeper

TICK = 0.5  # seconds, of the test's servers
SYNC_LIMIT = 10  # ticks for which a follower believes in a leader that is silent: 5 s, so that there is time to look
TIMEOUT = 3.0  # seconds; the leader ends such a session while the follower still believes in it


@pytest.fixture(scope="module")
def wired() -> Iterator[tuple[Ensemble, Partition]]:
    """Three servers, and the link that can be frozen."""
    properties = {"syncLimit": str(SYNC_LIMIT)}
    with Ensemble(nodes=3, tick=TICK, properties=properties) as ensemble, partition(ensemble) as link:
        yield ensemble, link


@pytest.fixture
def ensemble(wired: tuple[Ensemble, Partition]) -> Iterator[Ensemble]:
    """The servers, all of them serving before and after."""
    with repaired(wired[0]) as ensemble:
        yield ensemble


@pytest.fixture
def link(ensemble: Ensemble, wired: tuple[Ensemble, Partition]) -> Iterator[Partition]:
    """The link, whole before and after."""
    assert ensemble.leader is wired[1].leader
    yield wired[1]
    wired[1].wire.thaw()


@contextlib.contextmanager
def frozen(link: Partition) -> Iterator[None]:
    """What the two send each other is held back, and arrives in the end."""
    link.wire.freeze()
    try:
        yield
    finally:
        link.wire.thaw()


def dropped(link: Partition) -> contextlib.AbstractContextManager[object]:
    """What the two send each other is lost, at the wire's end, which the follower takes for its leader."""
    return firewall.blackhole(link.wire.port)


CUTS = [frozen, pytest.param(dropped, marks=[pytest.mark.chaos, needs_firewall])]
Cut = Callable[[Partition], contextlib.AbstractContextManager[object]]


@pytest.mark.scenario("F15")
@pytest.mark.parametrize("cut_by", CUTS)
@pytest.mark.parametrize("moment", [pytest.param("at rest", marks=pytest.mark.chaos), "busy"])
def test_a_holder_behind_a_cut_off_follower_is_told_before_the_next_one_is_granted(
    pool: WorkerPool, link: Partition, figure: Callable[..., None], cut_by: Cut, moment: str
) -> None:
    a = pool.start_one("A", hosts=link.follower.address, session_timeout=TIMEOUT)
    b = pool.start_one("B", hosts=link.leader.address, session_timeout=TIMEOUT)
    a.take(abort_on="lost")  # or the late heartbeat alone would do it
    if moment == "busy":
        a.tell("chatter", every=0.3).result()
    working = a.work()
    call = b.acquire(timeout=20)
    pool.wait_contenders(2)
    with looking_in(link.follower.address) as cut_off:
        began = pool.note("cut", target="A")
        with cut_by(link):
            answer = call.result(25)
            assert cut_off.exists(pool.zoo.base), "a read of the cut-off follower"  # it does not know that it is
            assert answer["granted"]
            by_other = b.work()
            told = working.result(2 * SYNC_LIMIT * TICK)  # at the latest when the follower sends its clients away
            b.stop_work()
            by_other.result()
        assert told["lost"]
        figure("told after", told["t"] - began, "s")
        figure("next holder after", answer["t"] - began, "s")
        assert told["t"] < answer["t"], f"told {told['t'] - answer['t']:.2f} s after the next one was granted"
        pool.assert_kept()


@pytest.mark.scenario("F16")
@pytest.mark.chaos
@pytest.mark.parametrize("cut_by", CUTS)
def test_nobody_enters_by_a_cut_off_follower(pool: WorkerPool, link: Partition, cut_by: Cut) -> None:
    """What it says of the queue is old, so it grants nothing, and the call ends in time."""
    a = pool.start_one("A", hosts=link.follower.address, session_timeout=TIMEOUT)
    b = pool.start_one("B", hosts=link.leader.address, session_timeout=TIMEOUT)
    a.take()
    a.release().result()
    with cut_by(link):
        pool.note("cut", target="A")
        call = a.acquire(timeout=1.5)
        b.take(timeout=5)
        b.work(seconds=1.5 + 1).result()
        answer = call.result(5)
        assert not answer["granted"]
        b.release().result()
    serving(pool.zoo)
    pool.assert_kept(settle=5)  # the follower may have to find its leader again first


@pytest.mark.scenario("F16")
@pytest.mark.chaos
def test_news_that_comes_late_by_a_cut_off_follower_grants_nobody(pool: WorkerPool, link: Partition) -> None:
    """
    The follower learns that the one ahead has left after the leader has ended the waiter's own session.

    For a moment its view shows a waiter that is first in the queue, when the next one holds the lock.
    """
    b, c = pool.start("B", "C", hosts=link.leader.address, session_timeout=TIMEOUT)
    a = pool.start_one("A", hosts=link.follower.address, session_timeout=TIMEOUT)
    b.take()
    waiting = a.acquire(timeout=30)
    pool.wait_contenders(2)
    next_one = c.acquire(timeout=30)
    pool.wait_contenders(3)
    with frozen(link):
        pool.note("cut", target="A")
        b.release().result()
        assert next_one.result(20)["granted"]
        assert not waiting.done()
        working = c.work()
    serving(pool.zoo)
    with contextlib.suppress(AssertionError):
        eventually(waiting.done, 3)
    c.stop_work()
    assert not working.result()["lost"]
    c.release().result()
    waiting.result(35)  # granted by now, or refused: kazoo's Lock gives up when its session is lost
    pool.assert_kept()


# --- with any session timeout, at any moment ----------------------------------------------------------------------


@dataclass
class Pair:
    """A holder behind the follower, and who waits at the leader; on a key of their own."""

    key: str
    timeout: float
    holder: LockWorker
    next_one: LockWorker

    def take(self) -> None:
        """Have the one hold and work, and the other wait."""
        self.holder.take(self.key, timeout=40, abort_on="lost")
        self.working: Call = self.holder.work(self.key)
        self.waiting: Call = self.next_one.acquire(self.key, timeout=60)

    def settle(self) -> bool:
        """End the work if it goes on; have the other work, and leave. Return whether the lock was lost."""
        if not self.working.done():
            self.holder.stop_work(self.key)
        lost = bool(self.working.result()["lost"])
        released = self.holder.release(self.key)
        assert self.waiting.result(70)["granted"]
        self.next_one.work(self.key, seconds=0.05).result()
        self.next_one.release(self.key).result()
        released.result(40)
        return lost


@pytest.mark.scenario("F17")
@pytest.mark.chaos
@pytest.mark.timeout(240)
def test_no_two_leases_overlap_whatever_the_timeout_and_the_moment_of_the_fault(
    pool: WorkerPool, link: Partition, figure: Callable[..., None], request: pytest.FixtureRequest
) -> None:
    """
    Holders with sessions of 2, 3, 4 and 8 ticks, their follower cut off, themselves stopped, or both, for any time.

    The fault comes no sooner than the first heartbeat. Before it, a session of 2 ticks, the shortest that ZooKeeper
    grants, has 0.017 of its timeout between the end of the lease and its own: less than the hiccups of a small machine.
    """
    seed = request.config.getoption("soak_seed")
    chance = random.Random(seed)
    figure("seed", seed)
    pool.note("seed", value=seed)
    pairs = []
    for ticks in (2, 3, 4, 8):
        timeout = ticks * TICK
        a = pool.start_one(f"A{ticks}", hosts=link.follower.address, session_timeout=timeout)
        b = pool.start_one(f"B{ticks}", hosts=link.leader.address, session_timeout=timeout)
        pairs.append(Pair(f"k{ticks}", timeout, a, b))
    cuts = rounds = lost = 0
    end = time.monotonic() + 90
    while time.monotonic() < end:
        for pair in pairs:
            pair.take()
        for pair in pairs:
            pool.wait_contenders(2, pair.key, 30)
        time.sleep(max(pair.timeout for pair in pairs) / 3 * chance.uniform(1, 1.5))
        strike(pool, link, pairs, chance)
        cuts += 1
        rounds += len(pairs)
        lost += sum([pair.settle() for pair in pairs])
    figure("rounds", rounds)
    figure("faults", cuts)
    figure("locks lost", lost)
    pool.assert_kept()


def strike(pool: WorkerPool, link: Partition, pairs: list[Pair], chance: random.Random) -> None:
    """Cut the follower off, stop the holders, or both; for times that have nothing to do with each other."""
    kind = chance.choice(["cut", "stop", "both"])
    script: list[tuple[float, Callable[[], object]]] = []

    def cut() -> None:
        pool.note("cut")
        link.wire.freeze()

    def heal() -> None:
        pool.note("heal")
        link.wire.thaw()

    if kind != "stop":
        began = chance.uniform(0, 1)
        script += [(began, cut), (began + chance.uniform(0.3, SYNC_LIMIT * TICK + 0.5), heal)]
    for pair in pairs if kind != "cut" else []:
        began = chance.uniform(0, 1)
        script += [(began, pair.holder.pause), (began + chance.uniform(0.2, 2) * pair.timeout, pair.holder.resume)]
    start = time.monotonic()
    for after, act in sorted(script, key=lambda step: step[0]):
        time.sleep(max(0.0, start + after - time.monotonic()))
        act()
