"""No lock is granted through a follower that is cut off from its leader, though it answers reads for a while."""

import contextlib
import random
import time

import pytest
from support.chaos.servers import looking_in, partition, repaired, serving
from support.ensemble import Ensemble

TICK = 0.5  # seconds, of the test's servers
SYNC_LIMIT = 10  # ticks for which a follower believes in a leader that is silent: 5 s, so that there is time to look
TIMEOUT = 3.0  # seconds; the leader ends such a session while the follower still believes in it


@pytest.fixture(scope="module")
def wired():
    properties = {"syncLimit": str(SYNC_LIMIT)}
    with Ensemble(nodes=3, tick=TICK, properties=properties) as ensemble, partition(ensemble) as link:
        yield ensemble, link


@pytest.fixture
def ensemble(wired):
    with repaired(wired[0]) as ensemble:
        yield ensemble


@pytest.fixture
def link(ensemble, wired):
    assert ensemble.leader is wired[1].leader
    yield wired[1]
    wired[1].wire.heal()


@contextlib.contextmanager
def frozen(link):
    link.wire.freeze()
    try:
        yield
    finally:
        link.wire.heal()


@pytest.mark.convicts_kazoo
@pytest.mark.parametrize("moment", ["at rest", "busy"])
def test_a_holder_behind_a_cut_off_follower_is_aborted_before_the_next_grant(pool, link, moment):
    a = pool.start_one("A", hosts=link.follower.address, session_timeout=TIMEOUT)
    b = pool.start_one("B", hosts=link.leader.address, session_timeout=TIMEOUT)
    a.must_acquire()
    if moment == "busy":
        a.tell("chatter", every=0.3).result()
    working = a.work()
    call = b.acquire(timeout=20)
    pool.wait_contenders(2)
    with looking_in(link.follower.address) as cut_off:
        pool.note("cut", target="A")
        with frozen(link):
            answer = call.result(25)
            assert cut_off.exists(pool.zoo.base), "a read of the cut-off follower"  # it does not know that it is
            assert answer["granted"]
            by_other = b.work()
            outcome = working.result(2 * SYNC_LIMIT * TICK)  # at the latest when the follower sends its clients away
            b.stop_work()
            by_other.result()
        assert outcome["lost"]
        assert outcome["t"] < answer["t"], f"told {outcome['t'] - answer['t']:.2f} s after the next one was granted"
        pool.assert_kept()


def test_a_cut_off_follower_grants_nothing(pool, link):
    a = pool.start_one("A", hosts=link.follower.address, session_timeout=TIMEOUT)
    b = pool.start_one("B", hosts=link.leader.address, session_timeout=TIMEOUT)
    a.use()
    with frozen(link):
        pool.note("cut", target="A")
        call = a.acquire(timeout=1.5)
        b.must_acquire(timeout=5)
        b.work(seconds=1.5 + 1).result()
        answer = call.result(5)
        assert not answer["granted"]
        b.release().result()
    serving(pool.zoo)
    pool.assert_kept(settle=5)  # the follower may have to find its leader again first


@pytest.fixture
def keys():
    return ("k", "k2", "k3", "k4", "k8")


@pytest.mark.timeout(180)
def test_no_two_leases_overlap_behind_a_cut_off_follower(pool, link, request):
    """
    Holders with sessions of 2, 3, 4 and 8 ticks: their follower is cut off, or they are paused, or both, for any time.

    The fault comes after the first heartbeat. Before it, a session of 2 ticks, the shortest that ZooKeeper grants,
    has 0.017 of its timeout between the end of the lease and its own: less than the hiccups of a small machine.
    """
    chance = random.Random(request.config.getoption("soak_seed"))
    timeouts = {f"k{ticks}": ticks * TICK for ticks in (2, 3, 4, 8)}
    holders = {key: pool.start_one(f"A{key}", link.follower.address, timeout) for key, timeout in timeouts.items()}
    waiters = {key: pool.start_one(f"B{key}", link.leader.address, timeout) for key, timeout in timeouts.items()}
    lost = 0
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        working, waiting = {}, {}
        for key, holder in holders.items():
            holder.must_acquire(key, timeout=40, abort_on="lost")
            working[key] = holder.work(key)
            waiting[key] = waiters[key].tell("turn", **{"as": "main"}, key=key, timeout=60, seconds=0.05)
        for key in timeouts:
            pool.wait_contenders(2, key, 30)
        time.sleep(max(timeouts.values()) / 3 * chance.uniform(1, 1.5))
        inject_faults(pool, link, holders, chance)
        for key, holder in holders.items():
            if not working[key].done():
                holder.stop_work(key)
            lost += working[key].result()["lost"]
            released = holder.release(key)
            waiting[key].granted(70)
            released.result(40)
    pool.assert_kept()


def inject_faults(pool, link, holders, chance):
    fault = chance.choice(["cut", "pause", "both"])
    script = []  # after how many seconds, and what to do
    if fault != "pause":
        begin = chance.uniform(0, 1)
        end = begin + chance.uniform(0.3, SYNC_LIMIT * TICK + 0.5)
        script += [(begin, lambda: pool.note("cut")), (begin, link.wire.freeze)]
        script += [(end, lambda: pool.note("heal")), (end, link.wire.heal)]
    for holder in holders.values() if fault != "cut" else ():
        begin = chance.uniform(0, 1)
        script += [(begin, holder.pause), (begin + chance.uniform(0.2, 2) * holder.session_timeout, holder.resume)]
    start = time.monotonic()
    for after, act in sorted(script, key=lambda step: step[0]):
        time.sleep(max(0.0, start + after - time.monotonic()))
        act()
