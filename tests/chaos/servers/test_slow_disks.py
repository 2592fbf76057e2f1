"""
Servers that take a second and more for each write, so that what is under way can be seen half done.

A create that was sent is not to be seen yet; a session that was closed still has its nodes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator

import pytest
from support.chaos.preload import needs_compiler
from support.chaos.servers import repaired
from support.chaos.slowdisk import SlowDisk
from support.chaos.worker_pool import WorkerPool
from support.ensemble import Ensemble, Server, four_letter
from support.proxy import CREATE, CREATE2, Proxy
from support.zoo import eventually

pytestmark = [pytest.mark.zookeeper, needs_compiler]

SLOW = 1.2  # seconds for a write
TIMEOUT = 20.0  # seconds; a sixth of it without an answer, and a connection is given up
DEADLINE = 10.0


@pytest.fixture(scope="module")
def disk() -> Iterator[SlowDisk]:
    """The disk of all servers."""
    with SlowDisk() as disk:
        yield disk


@pytest.fixture(scope="module")
def servers(disk: SlowDisk) -> Iterator[Ensemble]:
    """Three servers that wait for their disks before they acknowledge anything."""
    with Ensemble(nodes=3, fsync=True, env=disk.env, max_session_timeout=TIMEOUT) as ensemble:
        yield ensemble


@pytest.fixture
def ensemble(servers: Ensemble, disk: SlowDisk) -> Iterator[Ensemble]:
    """The servers, quick before and after."""
    with repaired(servers) as ensemble:
        yield ensemble
        disk.fast()


def next_write(disk: SlowDisk) -> Callable[[], bool]:
    """Return what tells whether a server has begun to write something since."""
    before = disk.waits().total()
    return lambda: disk.waits().total() > before


def outstanding(server: Server) -> int:
    """Return how many requests a server has taken and not answered; it may say -1 for a moment."""
    match = re.search(r"^Outstanding: (-?\d+)$", four_letter("127.0.0.1", server.port, "srvr"), re.MULTILINE)
    assert match
    return int(match[1])


@pytest.mark.convicts_kazoo
def test_a_create_that_appears_after_a_reconnect_does_not_block_its_caller(
    pool: WorkerPool, ensemble: Ensemble, disk: SlowDisk, figure: Callable[..., None]
) -> None:
    """
    The connection breaks while a follower's create is being written, and the client goes on at another follower.

    There it sees a queue without its node: only a sync tells it that one is still to come.
    """
    first, second = ensemble.followers
    pool.zoo.client.ensure_path(f"{pool.zoo.base}/k")
    with Proxy(first.address) as proxy:
        a = pool.start_one("A", hosts=proxy.address, session_timeout=TIMEOUT)
        session = a.ask("session")["id"]
        disk.slow(SLOW)
        writing = next_write(disk)
        began = time.monotonic()
        call = a.acquire(timeout=DEADLINE)
        # Not before the server has read it: what it has not when a connection is reset, it never does.
        eventually(lambda: outstanding(first) > 0 and writing(), 5, "the create has not reached any disk")
        assert proxy.counts[CREATE] + proxy.counts[CREATE2] == 1
        pool.note("cut", target="A")
        proxy.upstream = second.address
        proxy.cut_all()
        answer = call.result(DEADLINE + 5)
        assert answer["granted"], f"refused a lock that no other process wants: {answer['error']}"
        figure("acquired after", answer["t"] - began, "s")
        assert answer["t"] - began <= 5
        disk.fast()
        a.work(seconds=SLOW).result()  # by now all that was under way is there
        pool.zoo.client.sync(pool.zoo.base)
        names = pool.zoo.children("k")
        assert len(names) == 1, f"{len(names)} contenders of one process for one lock"
        stat = pool.zoo.client.exists(f"{pool.zoo.base}/k/{names[0]}")
        assert stat is not None
        assert (stat.czxid, stat.ephemeralOwner) == (answer["token"], session)
        a.release().result()
        pool.start_one("B").must_acquire(timeout=5)
        pool.assert_kept()
