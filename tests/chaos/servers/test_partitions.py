"""
No lock is granted through a follower that is cut off from its leader, and no hold outlives its session there.

Until it notices, after syncLimit ticks, it goes on answering pings and reads, with what it knew when it was cut off.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
from support.chaos import firewall
from support.chaos.firewall import needs_firewall
from support.chaos.servers import Partition, looking_in, partition, repaired, serving
from support.chaos.worker_pool import WorkerPool
from support.ensemble import Ensemble

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
    wired[1].wire.heal()


@contextlib.contextmanager
def frozen(link: Partition) -> Iterator[None]:
    """Hold back all that the two send each other, until the end of the block."""
    link.wire.freeze()
    try:
        yield
    finally:
        link.wire.heal()


def dropped(link: Partition) -> contextlib.AbstractContextManager[object]:
    """Lose all that the two send each other, at the end of the wire that the follower takes for its leader."""
    return firewall.blackhole(link.wire.port)


CUTS = [frozen, pytest.param(dropped, marks=needs_firewall)]
Cut = Callable[[Partition], contextlib.AbstractContextManager[object]]


@pytest.mark.parametrize(
    "cut_by",
    [pytest.param(frozen, marks=pytest.mark.convicts_kazoo), pytest.param(dropped, marks=needs_firewall)],
)
@pytest.mark.parametrize("moment", ["at rest", "busy"])
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
            outcome = working.result(2 * SYNC_LIMIT * TICK)  # at the latest when the follower sends its clients away
            b.stop_work()
            by_other.result()
        assert outcome["lost"]
        figure("told after", outcome["t"] - began, "s")
        figure("next holder after", answer["t"] - began, "s")
        assert outcome["t"] < answer["t"], f"told {outcome['t'] - answer['t']:.2f} s after the next one was granted"
        pool.assert_kept()


@pytest.mark.parametrize("cut_by", CUTS)
def test_nobody_enters_by_a_cut_off_follower(pool: WorkerPool, link: Partition, cut_by: Cut) -> None:
    """Its view of the queue is old, so it grants nothing, and the call ends in time."""
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


# --- with any session timeout, at any moment ----------------------------------------------------------------------
