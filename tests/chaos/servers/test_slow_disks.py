"""
Servers that take a second and more for each write, so that what is under way can be seen half done.

A create that was sent is not to be seen yet; a session that was closed still has its nodes.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from kazoo.protocol.states import ZnodeStat
from support.chaos.preload import needs_compiler
from support.chaos.servers import repaired
from support.chaos.session_killer import expire
from support.chaos.slowdisk import SlowDisk
from support.chaos.worker_pool import LockWorker, WorkerPool
from support.ensemble import Ensemble, Server, four_letter
from support.proxy import CREATE, CREATE2, Proxy
from support.zoo import eventually

from django_zklock.locks.protocol.faultpoints import FAULTPOINTS

pytestmark = [pytest.mark.zookeeper, pytest.mark.chaos, needs_compiler]

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


@pytest.mark.scenario("F7")
def test_a_create_that_shows_up_after_the_reconnect_does_not_block_its_maker(
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
        pool.start_one("B").take(timeout=5)
        pool.assert_kept()


@pytest.mark.scenario("F22")
@pytest.mark.parametrize("point", FAULTPOINTS)
def test_after_an_expiry_at_any_step_only_a_node_of_the_new_session_counts(
    pool: WorkerPool, ensemble: Ensemble, disk: SlowDisk, point: str
) -> None:
    """The session is closed while the process is stopped at the step; its nodes are still there when it goes on."""
    if pool.lock != "zklock":
        pytest.skip("only our lock has steps with names")
    pool.zoo.client.ensure_path(f"{pool.zoo.base}/k")
    a, b = pool.start("A", "B", session_timeout=TIMEOUT)
    old = a.ask("session")
    b.take()  # so that there is somebody to wait for
    a.tell("strike", point=point, action="pause").result()
    call = a.acquire(timeout=4 * DEADLINE)
    b_left = leaving = False
    if not paused(a, 0.5):
        pool.wait_contenders(2)
        b_left = b.release().result()["error"] == ""
        if not paused(a, 0.5):
            assert call.result()["granted"]
            call = a.release()
            leaving = True
            assert paused(a, 5), f"never came by {point}"
    pool.zoo.client.sync(pool.zoo.base)
    there = nodes_of(pool, old["id"])
    disk.slow(SLOW)
    closing = next_write(disk)
    pool.note("expire", target="A", at=point)
    with ThreadPoolExecutor() as elsewhere:
        expired = elsewhere.submit(expire, ensemble.hosts, old["id"], bytes.fromhex(old["password"]))
        eventually(closing, 10, "the session was not closed")
        if point != "after_delete_sent":
            assert nodes_of(pool, old["id"]) == there, "what could be adopted is gone too soon"
        a.resume()
        expired.result()
    pool.note("done", of="expire", target="A")
    disk.fast()
    eventually(lambda: a.ask("session")["id"] not in (0, old["id"]), 15, "no new session")
    if not b_left:
        b.release().result()
    answer = call.result(5 * DEADLINE)
    assert leaving or answer["granted"], f"refused a lock that is free: {answer['error']}"
    if not leaving and not a.check():  # it was granted in the old session, and has been told that it is lost
        a.release().result()
        leaving = True
    if leaving:
        a.take()
    session = a.ask("session")["id"]
    pool.zoo.client.sync(pool.zoo.base)
    [(name, _)] = nodes_of(pool, session)
    assert pool.zoo.children("k") == [name]
    b_waits = b.acquire(timeout=DEADLINE)
    a.work(seconds=0.5).result()
    a.release().result()
    assert b_waits.result()["granted"]
    b.release().result()
    pool.assert_kept()


def nodes_of(pool: WorkerPool, session: int) -> list[tuple[str, ZnodeStat]]:
    """Return the contenders of a session that are to be seen, be it for a moment only."""
    stats = {name: pool.zoo.client.exists(f"{pool.zoo.base}/k/{name}") for name in pool.zoo.children("k")}
    return [(name, stat) for name, stat in stats.items() if stat is not None and stat.ephemeralOwner == session]


def paused(worker: LockWorker, timeout: float) -> bool:
    """Tell whether a process is stopped, or will be within `timeout` seconds."""
    process = psutil.Process(worker.process.pid)
    with contextlib.suppress(AssertionError):
        return bool(eventually(lambda: process.status() == psutil.STATUS_STOPPED, timeout))
    return False
