"""Ordinary bad days of an operator: a full disk, an observer, and yesterday's backup."""

from __future__ import annotations

import contextlib
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.exceptions import ConnectionLoss
from support.chaos.servers import replace_client, serving
from support.chaos.worker_pool import WorkerPool
from support.ensemble import Ensemble, Server
from support.zoo import eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(200)]

TIMEOUT = 4.0


@pytest.fixture
def ensemble(request: pytest.FixtureRequest) -> Iterator[Ensemble]:
    with Ensemble(**getattr(request, "param", {"nodes": 3})) as ensemble:
        yield ensemble


@pytest.mark.parametrize("role", ["follower", "leader"])
def test_a_full_disk_of_one_server_costs_no_lock(pool: WorkerPool, ensemble: Ensemble, role: str) -> None:
    a, b = pool.start("A", "B", session_timeout=TIMEOUT)
    a.must_acquire(abort_on="lost")
    working = a.work(seconds=2 * TIMEOUT)
    server = ensemble.leader if role == "leader" else ensemble.followers[0]
    pool.note("full disk", target=server.address)
    # A write beyond this size fails, as on a full disk.
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    with contextlib.suppress(ConnectionLoss):  # this client may be connected to that server
        pool.zoo.client.ensure_path(f"{pool.zoo.chroot}/written")
    eventually(lambda: server.mode() is None, 20, "the server still serves")
    b.must_acquire("other", timeout=20)
    b.release("other").result()
    assert not working.result(30)["lost"]
    a.release().result()
    server.stop()
    server.start()
    assert server.wait_ready(60)
    pool.note("done", of="full disk")
    serving(pool.zoo)
    b.must_acquire(timeout=20)
    b.release().result()
    pool.assert_kept()


@pytest.mark.parametrize("ensemble", [{"nodes": 4, "observers": 1}], indirect=True)
def test_a_hold_through_an_observer_survives_the_leader(pool: WorkerPool, ensemble: Ensemble) -> None:
    """An observer does not vote, but its clients lock as all others. Without the leader it waits for the next one."""
    observer = ensemble.servers[-1]
    assert observer.mode() == "observer"
    a, b = pool.start("A", "B", hosts=observer.address, session_timeout=TIMEOUT)
    for worker in (a, b):
        worker.must_acquire(timeout=20)
        worker.release().result()
    a.must_acquire(abort_on="lost")
    working = a.work(seconds=2 * TIMEOUT)
    leader = ensemble.leader
    pool.note("kill server")
    leader.kill()
    b.must_acquire("other", timeout=20)
    b.release("other").result()
    assert not working.result(30)["lost"]
    waiting = b.acquire(timeout=20)
    a.release().result()
    assert waiting.result(30)["granted"]
    b.release().result()
    leader.start()
    leader.wait_ready()
    pool.note("heal")
    serving(pool.zoo)
    pool.assert_kept()


@pytest.mark.parametrize("raised", [True, False], ids=["epoch raised", "as it was"])
def test_after_a_restore_an_old_token_is_refused_or_below_all_new_ones(
    pool: WorkerPool, ensemble: Ensemble, tmp_path: Path, raised: bool
) -> None:
    """
    The backup is older than the last elections, so its tokens are lower.

    With a higher number in the files `acceptedEpoch`, tokens go on above all old ones, and fenced rows need no reset.
    """
    a, b = pool.start("A", "B", session_timeout=TIMEOUT)
    a.must_acquire()
    a.release().result()
    backup = tmp_path / "backup"
    shutil.copytree(data(ensemble.leader), backup)
    for _ in range(2):
        leader = ensemble.leader
        leader.kill()
        serving(pool.zoo)
        leader.start()
        leader.wait_ready()
    old = a.must_acquire(timeout=20)["token"]
    a.release().result()
    pool.note("wipe")
    for server in ensemble.servers:
        server.kill()
    for server in ensemble.servers:
        shutil.rmtree(data(server))
        shutil.copytree(backup, data(server))
        if raised:
            (data(server) / "acceptedEpoch").write_text(str(old >> 32))
    for server in ensemble.servers:
        server.start()
    for server in ensemble.servers:
        server.wait_ready(60)
    pool.note("done", of="wipe")
    replace_client(pool.zoo)
    answer = b.acquire(timeout=60).result(75)
    assert answer["granted"]
    assert (answer["token"] > old) is raised
    b.release().result()
    pool.assert_kept()


def data(server: Server) -> Path:
    return server.directory / "data" / "version-2"
