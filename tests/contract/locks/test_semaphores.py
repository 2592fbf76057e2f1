"""A semaphore: as many holders as permits, in order, with any order of releases, and with a changed limit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from support.primitives import KEY, foreign, queued
from support.proxy import GET_CHILDREN, GET_DATA, Proxy
from support.zoo import Zoo

from django_zklock import Lock, zk_lock
from django_zklock.core.queue.nodes import Kind

pytestmark = pytest.mark.zookeeper


def permit(limit: int = 3, timeout: float = 20) -> Lock:
    """Return a lock for one permit of so many."""
    return zk_lock(KEY, limit=limit, timeout=timeout)


@contextlib.contextmanager
def holders(zoo: Zoo, count: int) -> Iterator[list[str]]:
    """Have others hold so many permits; yields the paths of their nodes."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(foreign(zoo, Kind.PERMIT)) for _ in range(count)]


# --- costs -------------------------------------------------------------------------------------------------------


def answered(warm_proxy: Proxy, opcode: int) -> int:
    """Count the answers to requests of a kind."""
    return sum(frame.opcode == opcode and not frame.request for frame in warm_proxy.frames)


@pytest.mark.parametrize(("which", "woken"), [(0, 1), (1, 2), (2, 3)])
def test_a_release_wakes_no_more_than_there_are_permits(zoo: Zoo, warm_proxy: Proxy, which: int, woken: int) -> None:
    """The first of them is let in without a request; the others, at most one less than permits, look once more."""
    limit, waiting = 3, 8
    with holders(zoo, limit) as paths, queued(zoo, *(permit(limit) for _ in range(waiting))) as waiters:
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
            waiter.wait_granted()
            waiter.go()
