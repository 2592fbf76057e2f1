"""Bad days of an operator: a full disk, an observer, no quorum, no data, and yesterday's backup."""

import contextlib
import resource
import shutil
import time

import pytest
from kazoo.exceptions import ConnectionLoss
from support.chaos.servers import repair, replace_client, serving
from support.ensemble import Ensemble
from support.zoo import eventually

from django_zklock.core.zk.lease import LEASE_SHARE

pytestmark = pytest.mark.timeout(200)

TIMEOUT = 4.0
LATER = 0.5  # seconds of room for a busy machine
REPLACED = 4  # session timeouts until a client that gets no way in is replaced, and some more for that


@pytest.fixture
def ensemble(request):
    with Ensemble(**getattr(request, "param", {"nodes": 3})) as ensemble:
        yield ensemble


@pytest.mark.parametrize("role", ["follower", "leader"])
def test_a_full_disk_of_one_server_costs_no_lock(pool, ensemble, role):
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
    b.use("other", 20)
    assert not working.result(30)["lost"]
    a.release().result()
    server.stop()
    server.start()
    assert server.wait_ready(60)
    pool.note("done", of="full disk")
    serving(pool.zoo)
    b.use(timeout=20)
    pool.assert_kept()


@pytest.mark.parametrize("ensemble", [{"nodes": 4, "observers": 1}], indirect=True)
def test_a_hold_through_an_observer_survives_the_leader(pool, ensemble):
    """An observer does not vote, but its clients lock as all others. Without the leader it waits for the next one."""
    observer = ensemble.servers[-1]
    assert observer.mode() == "observer"
    a, b = pool.start("A", "B", hosts=observer.address, session_timeout=TIMEOUT)
    for worker in (a, b):
        worker.use(timeout=20)
    a.must_acquire(abort_on="lost")
    working = a.work(seconds=2 * TIMEOUT)
    leader = ensemble.leader
    pool.note("kill server")
    leader.kill()
    b.use("other", 20)
    assert not working.result(30)["lost"]
    waiting = b.acquire(timeout=20)
    a.release().result()
    waiting.granted()
    b.release().result()
    leader.start()
    leader.wait_ready()
    pool.note("heal")
    serving(pool.zoo)
    pool.assert_kept()


@pytest.mark.parametrize("raised", [True, False], ids=["epoch raised", "as it was"])
def test_after_a_restore_an_old_token_is_refused_or_below_all_new_ones(pool, ensemble, tmp_path, raised):
    """With a higher number in the files `acceptedEpoch`, fenced rows need no reset."""
    a, b = pool.start("A", "B", session_timeout=TIMEOUT)
    a.use()
    backup = tmp_path / "backup"
    shutil.copytree(data(ensemble.leader), backup)
    for _ in range(2):
        leader = ensemble.leader
        leader.kill()
        serving(pool.zoo)
        leader.start()
        leader.wait_ready()
    old = a.use(timeout=20)
    pool.note("wipe")
    for server in ensemble.servers:
        server.kill()
    for server in ensemble.servers:
        shutil.rmtree(data(server))
        shutil.copytree(backup, data(server))
        if raised:
            (data(server) / "acceptedEpoch").write_text(str(old >> 32))
    repair(ensemble)
    pool.note("done", of="wipe")
    replace_client(pool.zoo)
    answer = b.must_acquire(timeout=60)
    assert (answer["token"] > old) is raised
    b.release().result()
    pool.assert_kept()


def test_without_a_quorum_the_holder_is_aborted_and_no_lock_is_granted(pool, ensemble):
    a, b, c = pool.start("A", "B", "C")
    token = a.must_acquire(abort_on="lost")["token"]
    working = a.work()
    waiting = b.acquire(timeout=90)
    pool.wait_contenders(2)
    leader, follower, _ = ensemble.leader, *ensemble.followers
    killed = pool.note("kill server")
    for server in (leader, follower):
        server.kill()
    outcome = working.result(20)
    assert outcome["lost"]
    assert outcome["t"] - killed <= LEASE_SHARE * a.session_timeout + LATER
    released = a.release()
    hopeless = c.acquire(timeout=3)
    time.sleep(max(0.0, killed + 3 * a.session_timeout - time.monotonic()))
    assert not waiting.done() or not waiting.result()["granted"]
    assert hopeless.done(), "no answer within the deadline"
    assert not hopeless.result()["granted"]
    repair(ensemble)
    pool.note("heal")
    serving(pool.zoo)
    assert waiting.granted(100)["token"] > token
    once_more = c.acquire(timeout=30)
    b.work(seconds=1).result()
    assert not once_more.done()
    b.release().result()
    once_more.granted(35)
    c.release().result()
    released.result(30)
    pool.assert_kept()


@pytest.mark.parametrize("ensemble", [{"nodes": 1}], indirect=True)
def test_an_ensemble_that_lost_its_data_is_reported(pool, ensemble):
    """It refuses clients that have seen its future for ever, so they are replaced. Tokens begin again."""
    a, b = pool.start("A", "B", session_timeout=2.0)
    for _ in range(20):
        a.use()
    old = a.must_acquire()["token"]
    working = a.work()
    waiting = b.acquire(timeout=60)
    pool.wait_contenders(2)
    wiped = pool.note("wipe")
    ensemble.stop()
    outcome = working.result(10)
    assert outcome["lost"]
    assert outcome["t"] - wiped <= LEASE_SHARE * 2.0 + LATER
    released = a.release()
    ensemble.start()
    pool.note("done", of="wipe")
    replace_client(pool.zoo)
    assert waiting.granted(REPLACED * 2.0 + 5)["token"] < old, "the tokens did not start again, so this proves nothing"
    again = a.acquire(timeout=20)
    b.work(seconds=0.5).result()
    assert not again.done()
    b.release().result()
    again.granted(25)
    a.release().result()
    released.result(10)
    pool.assert_kept()


def data(server):
    return server.directory / "data" / "version-2"
