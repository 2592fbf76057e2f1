"""Servers that lose all their data, or have no room for more, cost the locks that were held, and nothing after that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.chaos.fulldisk import FullDisk
from support.chaos.namespaces import needs_namespace
from support.chaos.servers import repair, replace_client, serving
from support.chaos.worker_pool import WorkerPool
from support.ensemble import Ensemble
from support.zoo import eventually

from django_zklock.zk.lease import LEASE_SHARE

pytestmark = [pytest.mark.zookeeper, pytest.mark.chaos]

TIMEOUT = 2.0
REPLACED = 4  # session timeouts until a client that gets no way in is replaced, and some more for that
LATER = 0.5  # seconds of room for a busy machine


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FullDisk]:
    """A small disk for the data of the test's server."""
    with FullDisk(tmp_path / "servers") as disk:
        yield disk


@pytest.fixture
def ensemble(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ensemble]:
    """One server of the test's own; on the disk above, if the test has it."""
    on_disk = "disk" in request.fixturenames
    if on_disk:
        request.getfixturevalue("disk")
    with Ensemble(directory=tmp_path / "servers" if on_disk else None, fsync=on_disk) as ensemble:
        yield ensemble


@pytest.mark.scenario("F25")
def test_an_ensemble_that_comes_back_empty_is_found_and_old_tokens_are_refused(
    pool: WorkerPool, ensemble: Ensemble, figure: Callable[..., None]
) -> None:
    """
    It refuses clients that have seen its future for ever, so they are replaced.

    Its transactions, and so the tokens, are counted from 0 again. A fence that is ahead of them reports that.
    """
    a, b = pool.start("A", "B", session_timeout=TIMEOUT)
    for _ in range(20):
        a.take()
        a.release().result()
    old = a.take()["token"]
    fenced = {"as": "main", "key": "k"}
    value = a.tell("claim", **fenced).result()
    assert a.tell("write", **fenced, value=value + 1).result()
    working = a.work()
    waiting = b.acquire(timeout=60)
    pool.wait_contenders(2)
    wiped = pool.note("wipe")
    ensemble.stop()
    told = working.result(10)
    assert told["lost"]
    assert told["t"] - wiped <= LEASE_SHARE * TIMEOUT + LATER
    released = a.release()
    ensemble.start()
    back = pool.note("done", of="wipe")
    replace_client(pool.zoo)
    answer = waiting.result(REPLACED * TIMEOUT + 5)
    assert answer["granted"]
    figure("back after", answer["t"] - back, "s")
    assert answer["token"] < old, "the tokens did not start again, so this proves nothing"
    assert b.tell("claim", **fenced).result() is None, "the fence has let an older token in"
    again = a.acquire(timeout=20)
    b.work(seconds=0.5).result()
    assert not again.done()
    b.release().result()
    assert again.result(25)["granted"]
    a.release().result()
    released.result(10)
    pool.assert_kept()


@pytest.mark.scenario("F26")
@needs_namespace
def test_a_server_out_of_disk_space_means_errors_in_time(
    pool: WorkerPool, ensemble: Ensemble, disk: FullDisk, figure: Callable[..., None]
) -> None:
    """It ends at the next write, and nothing is wrong any more once it has space and runs."""
    pool.keys = ("k", "k2")
    a, b = pool.start("A", "B")
    token = a.take(abort_on="lost")["token"]
    working = a.work()
    [server] = ensemble.servers
    pool.note("outage")
    disk.fill()
    # A small write may still find its place in a block that the log has already.
    pool.zoo.client.create_async(f"{pool.zoo.chroot}/large", bytes(16384))
    eventually(lambda: not server.running, 10, "the server bears a full disk")
    ended = pool.note("server ended")
    call = b.acquire("k2", timeout=3)
    told = working.result(10)
    assert told["lost"]
    assert told["t"] - ended <= LEASE_SHARE * a.session_timeout + LATER
    figure("told after", told["t"] - ended, "s")
    answer = call.result(10)
    assert not answer["granted"]
    assert answer["t"] - ended <= 3 + 1
    figure("what the caller is told", answer["error"])
    released = a.release()
    disk.free()
    repair(ensemble)
    pool.note("heal")
    serving(pool.zoo)
    again = b.take(timeout=30)
    assert again["token"] > token
    b.work(seconds=0.5).result()
    b.release().result()
    released.result(20)
    a.take(timeout=20)
    a.release().result()
    pool.assert_kept(settle=5)
