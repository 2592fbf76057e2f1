"""Round trips, requests and watch events of a lock, counted on the wire."""

from __future__ import annotations

import pytest
from support.faults import BackgroundCall, acquire_once, connected, proxied, queue_up, session
from support.primitives import KEY
from support.proxy import CREATE2, DELETE, GET_CHILDREN, GET_DATA, MULTI, PING, Proxy
from support.zoo import Zoo, eventually, settle

from django_zklock import zk_lock

pytestmark = pytest.mark.zookeeper

LOCK_REQUESTS = {CREATE2, GET_CHILDREN, GET_DATA, DELETE}


def requests(warm_proxy: Proxy) -> dict[int, int]:
    """Count what was sent for locks; the heartbeat is the session's, and comes when it comes."""
    settle()
    return {opcode: count for opcode, count in warm_proxy.counts.items() if opcode in LOCK_REQUESTS}


def test_twenty_waiters_are_woken_one_by_one(zoo: Zoo, warm_proxy: Proxy) -> None:
    """One watch event each: no herd. The one for its own znode is that for its successor in the same process."""
    with zoo.hold_elsewhere(KEY):
        waiters, order = queue_up(zoo, KEY, 20)
        warm_proxy.reset()
    for waiter in waiters:
        waiter.result()
    assert order == list(range(20))
    settle()
    assert warm_proxy.watch_events == 20 + 1
    assert warm_proxy.counts[DELETE] == 20
    assert warm_proxy.counts[CREATE2] == 0


def test_a_try_for_a_new_key_sends_no_create_that_must_fail(warm_proxy: Proxy) -> None:
    """It has seen that the directory is missing, and creates that first."""
    with zk_lock("new", timeout=0):
        pass
    assert requests(warm_proxy) == {GET_CHILDREN: 2, CREATE2: 1, DELETE: 1}


def test_a_process_that_only_waits_writes_nothing(zoo: Zoo) -> None:
    """It watches its own node and its predecessor. A late grant takes one quorum check first."""
    with proxied(zoo, 4) as proxy:
        connected()
        with zoo.hold_elsewhere(KEY):
            waiter = BackgroundCall(lambda: acquire_once(KEY))
            zoo.wait_contenders(KEY, 2)
            proxy.wait_for(lambda: proxy.counts[PING] == 3)  # each after a fifth to a third of the timeout
            created = next(frame.time for frame in proxy.frames if frame.opcode == CREATE2)
            assert proxy.frames[-1].time - created > 3 * 4 / 6
            assert not proxy.counts[MULTI]
            assert requests(proxy) == {CREATE2: 1, GET_CHILDREN: 1, GET_DATA: 2}
            proxy.reset()
        waiter.result()
        assert proxy.counts[MULTI] == 1
        settle()
        assert requests(proxy) == {DELETE: 1}


def test_an_idle_process_writes_nothing(warm_proxy: Proxy) -> None:
    """The heartbeat ends with the last hold."""
    with zk_lock(KEY):
        warm_proxy.wait_for(lambda: warm_proxy.counts[MULTI])
    eventually(lambda: not session().loop._timers or warm_proxy.counts[MULTI] == 1)
    beats = warm_proxy.counts[MULTI]
    with zk_lock(KEY):
        pass
    assert warm_proxy.counts[MULTI] == beats


def test_one_heartbeat_serves_all_holds(warm_proxy: Proxy) -> None:
    """There is one per process, not one per lock."""
    locks = [zk_lock(f"warm/{number}") for number in range(8)]
    for lock in locks:
        lock.acquire()
    warm_proxy.reset()
    warm_proxy.wait_for(lambda: warm_proxy.counts[MULTI] == 2)
    began, ended = (frame.time for frame in warm_proxy.frames if frame.opcode == MULTI and frame.request)
    assert ended - began > 10 / 6 - 0.2
    for lock in locks:
        lock.release()
