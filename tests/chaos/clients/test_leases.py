"""A lease ends before its session, whenever the write was sent that it begins with."""

import functools
import time

import pytest
from support.ensemble import Ensemble
from support.faults import BackgroundCall
from support.zoo import eventually

T = 4.0  # seconds, of a session
TICK = 1.0
EARLIEST, STEP = -0.5, 0.0625  # seconds: the end of the first pause, reckoned from T, and from one to the next
ROUNDS = 3
KEYS = tuple(f"k{number}" for number in range(8))


@pytest.fixture(scope="module")
def ensemble():
    """Servers with a long tick: for half of it a follower may keep to itself whom it has heard of."""
    with Ensemble(nodes=3, tick=TICK) as ensemble:
        yield ensemble


@pytest.fixture
def keys():
    return KEYS


@pytest.mark.timeout(180)
def test_a_late_lease_ends_before_its_session_expires(pool, ensemble, arena):
    """
    A process that was paused for about its session timeout takes a lock as it goes on, and is paused again.

    Its write is carried out if it comes just in time, but does not restart the leader's timer: that is done by what the
    follower says up to half a tick later, which may be too late.
    """
    assert arena.client.connected
    spare = []
    for number in range(ROUNDS):
        names = [f"{key}-{number}" for key in KEYS]
        workers = pool.start(*names, hosts=ensemble.followers[0].address, session_timeout=T)
        trials = [
            BackgroundCall(functools.partial(seconds_to_spare, pool, arena, worker, key, pause))
            for worker, key, pause in zip(workers, KEYS, pauses(number), strict=True)
        ]
        spare += [trial.result(60) for trial in trials]
        for worker in workers:
            worker.kill()
    assert min(spare) > 0, "a lease outlived its session"


def pauses(number):
    return [T + EARLIEST + STEP * (ROUNDS * index + number) for index in range(len(KEYS))]


def seconds_to_spare(pool, arena, worker, key, pause):
    worker.use(key)
    worker.pause()
    call = worker.acquire(key, 10)
    time.sleep(pause)  # what is tried
    worker.resume()
    answer = call.granted(20)
    worker.pause()
    arena.client.sync(arena.base)  # or a server that lags behind would not show the node yet
    eventually(lambda: not arena.children(key), 4 * T)
    gone = time.monotonic()
    until = next(
        float(event["until"])
        for event in pool.history()
        if event["e"] == "granted" and event["p"] == worker.name and event["token"] == answer["token"]
    )
    return gone - until
