"""The requests and round trips of each kind of lock, counted on the wire."""

from __future__ import annotations

import pytest
from support.primitives import Primitive, queued
from support.proxy import CREATE2, DELETE, GET_CHILDREN, GET_DATA, MULTI, Proxy
from support.zoo import Zoo, settle

pytestmark = pytest.mark.zookeeper

REQUESTS = (CREATE2, GET_CHILDREN, GET_DATA, DELETE)


def requests(warm_proxy: Proxy) -> list[int]:
    """Count what was sent for locks: creates, lists, reads and deletes."""
    settle()
    return [warm_proxy.counts[opcode] for opcode in REQUESTS]


@pytest.mark.parametrize("shared", [False, True], ids=["free", "shared"])
def test_a_lock_costs_two_round_trips_while_there_is_room(
    zoo: Zoo, warm_proxy: Proxy, primitive: Primitive, shared: bool
) -> None:
    """One to take it, the create and the list together, and one to give it back. One that lingers watches, too."""
    with queued(zoo, *(primitive.lock() for _ in range(primitive.room - 1 if shared else 0))) as takers:
        for taker in takers:
            taker.wait_granted()
        warm_proxy.reset()
        warm_proxy.delay = 0.15  # no reply comes between two requests that are sent together
        with primitive.lock():
            pass
        primitive.wait_released(zoo)
        assert requests(warm_proxy) == [1, 1 + primitive.lingers, 0, 1]
        assert 2 <= warm_proxy.round_trips() <= 2 + primitive.lingers  # the watch may be on its way with the delete
        assert shared or warm_proxy.requests == 3 + primitive.lingers  # the others may need a heartbeat


def test_a_waiter_reads_its_predecessors_and_is_granted_by_an_event(
    zoo: Zoo, warm_proxy: Proxy, primitive: Primitive
) -> None:
    """
    It reads its own znode and one more, but for a permit as many as there are.

    Then it reads the limit, too, after which it lists once more.
    """
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
