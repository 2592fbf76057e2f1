"""Servers that take a second and more for each write, so that what is under way can be seen half done."""

import re
import time

import pytest
from support.ensemble import Ensemble, four_letter
from support.proxy import CREATE, CREATE2, Proxy
from support.zoo import eventually

SLOW = 1.2  # seconds for a write, at most
TIMEOUT = 20.0  # seconds; a sixth of it without an answer, and a connection is given up
DEADLINE = 10.0


@pytest.fixture
def ensemble():
    """Three servers that gather what they write for so long, and acknowledge nothing before it is written."""
    delay = str(round(SLOW * 1000))
    properties = {"flushDelay": delay, "maxWriteQueuePollTime": delay, "maxBatchSize": "1000"}
    with Ensemble(nodes=3, fsync=True, properties=properties, max_session_timeout=TIMEOUT) as ensemble:
        yield ensemble


def outstanding(server):
    """Return how many requests a server has taken and not answered; it may say -1 for a moment."""
    match = re.search(r"^Outstanding: (-?\d+)$", four_letter("127.0.0.1", server.port, "srvr"), re.MULTILINE)
    assert match
    return int(match[1])


@pytest.mark.convicts_kazoo
def test_a_create_that_appears_after_a_reconnect_does_not_block_its_caller(pool, ensemble):
    """The next follower does not show the node: only a sync tells that one is still to come."""
    first, second = ensemble.followers
    pool.zoo.client.ensure_path(f"{pool.zoo.base}/k")
    with Proxy(first.address) as proxy:
        a = pool.start_one("A", hosts=proxy.address, session_timeout=TIMEOUT)
        session = a.ask("session")
        began = time.monotonic()
        call = a.acquire(timeout=DEADLINE)
        # Not before the server has read it: what it has not when a connection is reset, it never does.
        eventually(lambda: outstanding(first) > 0, 5, "the create has not reached its server")
        assert proxy.counts[CREATE] + proxy.counts[CREATE2] == 1
        pool.note("cut", target="A")
        proxy.upstream = second.address
        proxy.cut_all()
        answer = call.granted(DEADLINE + 5)
        assert answer["t"] - began <= 5
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
