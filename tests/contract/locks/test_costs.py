"""Round trips, requests and watch events of a lock, counted on the wire; and its calls."""

import contextlib
import sys
from contextvars import Context
from pathlib import Path

import pytest
from support.faults import BackgroundCall, acquire_once, connected, proxied, queue_up, results, session
from support.primitives import KEY, SEMAPHORE, queued
from support.proxy import CREATE2, DELETE, GET_CHILDREN, GET_DATA, MULTI, PING
from support.zoo import eventually, settle

import django_zklock
from django_zklock import zk_lock

REQUESTS = (CREATE2, GET_CHILDREN, GET_DATA, DELETE)


def requests(proxy):
    """Count the creates, lists, reads and deletes; the heartbeat is the session's, and comes when it comes."""
    settle()
    return [proxy.counts[opcode] for opcode in REQUESTS]


def test_twenty_waiters_are_woken_one_by_one(zoo, warm_proxy):
    """One watch event each: no herd. The one for its own znode is that for its successor in the same process."""
    with zoo.hold_elsewhere(KEY):
        waiters, order = queue_up(zoo, KEY, 20)
        warm_proxy.reset()
    results(waiters)
    assert order == list(range(20))
    settle()
    assert warm_proxy.watch_events == 20 + 1
    assert warm_proxy.counts[DELETE] == 20
    assert warm_proxy.counts[CREATE2] == 0


def test_a_try_for_a_new_key_sends_no_create_that_must_fail(warm_proxy):
    acquire_once("new", timeout=0)
    assert requests(warm_proxy) == [1, 2, 0, 1]


def test_a_process_that_only_waits_writes_nothing(zoo):
    """It watches its own node and its predecessor. A late grant takes one quorum check first."""
    with proxied(zoo, 4) as proxy:
        connected()
        with zoo.hold_elsewhere(KEY):
            waiter = BackgroundCall(lambda: acquire_once(KEY, timeout=30))
            zoo.wait_contenders(KEY, 2)
            created = next(frame.time for frame in proxy.frames if frame.opcode == CREATE2)
            proxy.wait_for(lambda: proxy.counts[PING] and proxy.frames[-1].time - created > 3 * 4 / 6)
            assert not proxy.counts[MULTI]
            assert requests(proxy) == [1, 1, 2, 0]
            proxy.reset()
        waiter.result()
        assert proxy.counts[MULTI] == 1
        settle()
        assert requests(proxy) == [0, 0, 0, 1]


def test_an_idle_process_writes_nothing(proxy):
    with zk_lock(KEY):
        proxy.wait_for(lambda: proxy.counts[MULTI])
    eventually(lambda: not session().loop._timers or proxy.counts[MULTI] == 1)
    beats = proxy.counts[MULTI]
    acquire_once(KEY)
    assert proxy.counts[MULTI] == beats


def test_one_heartbeat_serves_all_holds(proxy):
    locks = [zk_lock(f"warm/{number}") for number in range(8)]
    for lock in locks:
        lock.acquire()
    proxy.reset()
    proxy.wait_for(lambda: proxy.counts[MULTI] == 2)
    began, ended = (frame.time for frame in proxy.frames if frame.opcode == MULTI and frame.request)
    assert ended - began > 1
    for lock in locks:
        lock.release()


@pytest.mark.parametrize("shared", [False, True], ids=["free", "shared"])
def test_a_lock_costs_two_round_trips(zoo, warm_proxy, primitive, shared):
    """One to take it, the create and the list together, and one to give it back. One that lingers watches, too."""
    with queued(zoo, *(primitive.lock() for _ in range(primitive.room - 1 if shared else 0))) as takers:
        for taker in takers:
            taker.wait_granted()
        warm_proxy.reset()
        warm_proxy.delay = 0.15  # no reply comes between two requests that are sent together
        acquire_once(primitive.lock())
        primitive.wait_released(zoo)
        assert requests(warm_proxy) == [1, 1 + primitive.lingers, 0, 1]
        assert 2 <= warm_proxy.round_trips() <= 2 + primitive.lingers  # the watch may be on its way with the delete
        assert shared or warm_proxy.requests == 3 + primitive.lingers  # the others may need a heartbeat


def test_a_waiter_reads_those_ahead_and_waits_for_an_event(zoo, warm_proxy, primitive):
    """It reads its own znode and one more. For a permit: as many as there are, and the limit; then it lists again."""
    permits = primitive.options.get("limit", 0)
    reads = 2 + permits if permits else 2
    with primitive.full(zoo) as blockers:
        warm_proxy.reset()
        with queued(zoo, primitive.lock()) as (waiter,):
            warm_proxy.wait_for(lambda: sum(f.opcode == GET_DATA and not f.request for f in warm_proxy.frames) == reads)
            assert requests(warm_proxy) == [1, 2 if permits else 1, reads, 0]
            warm_proxy.reset()
            zoo.client.delete(blockers[-1])
            waiter.wait_granted()
            assert warm_proxy.counts[MULTI] == 0  # the create has just extended the lease
            warm_proxy.wait_for(lambda: requests(warm_proxy) == [0, int(primitive.lingers), 0, 0])  # it watches others
            assert warm_proxy.watch_events == 1


def answered(warm_proxy, opcode):
    return sum(frame.opcode == opcode and not frame.request for frame in warm_proxy.frames)


@pytest.mark.parametrize(("which", "woken"), [(0, 1), (1, 2), (2, 3)])
def test_a_release_wakes_no_more_than_there_are_permits(zoo, warm_proxy, which, woken):
    """The first of them is let in without a request; the others, at most one less than permits, look once more."""
    limit, waiting = 3, 8
    with SEMAPHORE.full(zoo) as paths, queued(zoo, *(SEMAPHORE.lock(timeout=20) for _ in range(waiting))) as waiters:
        # Each reads the directory, its own znode, and `limit` nodes ahead.
        warm_proxy.wait_for(lambda: answered(warm_proxy, GET_DATA) == waiting * (2 + limit))
        warm_proxy.reset()
        zoo.client.delete(paths[which])
        waiters[0].wait_granted()
        warm_proxy.wait_for(lambda: answered(warm_proxy, GET_DATA) == woken - 1)
        assert warm_proxy.counts[GET_CHILDREN] == woken - 1
        assert warm_proxy.counts[GET_DATA] == woken - 1
        assert warm_proxy.watch_events == 1  # of one node, to this one session
        for path in paths:
            with contextlib.suppress(Exception):
                zoo.client.delete(path)
        for waiter in waiters:
            waiter.finish()


def calls_of(lock):
    """Return how many functions of the package a block under this lock calls in the calling thread."""
    package = str(Path(django_zklock.__file__).parent)
    calls = 0

    def count(frame, event, _argument):
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith(package)

    sys.setprofile(count)
    try:
        with lock:
            pass
    finally:
        sys.setprofile(None)
    return calls


def test_a_lock_that_lingers_is_passed_on_by_few_calls(zoo):
    """`benchmarks/hot_key.py` judges the time, on an idle machine only. This notices what makes it longer."""
    lock = zk_lock(KEY, linger=0.5)
    acquire_once(lock)
    context = Context()  # another test may have left a block in that of the thread
    assert min(context.run(calls_of, lock) for _ in range(3)) <= 116
