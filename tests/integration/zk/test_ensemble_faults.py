"""An ensemble that loses a server, its leader, its data, or the link between two of them grants no lock twice."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from support.chaos.servers import partition, repair, repaired
from support.faults import BackgroundCall, Wire, client, connected, lose, proxied, session, within
from support.proxy import MULTI, Proxy
from support.zoo import Zoo, eventually

from django_zklock import Hold, zk_lock
from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.testing.ensemble import Ensemble, Server
from django_zklock.zk.lease import LEASE_SHARE

pytestmark = [pytest.mark.zookeeper, pytest.mark.chaos]

LATER = 0.5  # seconds of room for a busy machine


@pytest.fixture
def whole(three: Ensemble) -> Iterator[Ensemble]:
    """The three servers, all of them serving before and after."""
    with repaired(three):
        yield three


@pytest.fixture
def zoo3(whole: Ensemble) -> Iterator[Zoo]:
    """A namespace on the three servers, left empty at the end."""
    zoo = Zoo(whole.hosts, whole)
    try:
        assert zoo.client.connected
        with zoo.configured():
            yield zoo
            repair(whole)
            zoo.assert_empty(10)
    finally:
        zoo.close()


def server_of_session(ensemble: Ensemble) -> Server | None:
    """Return the server that the session of this process is connected to, or None."""
    sock = client()._connection._socket  # None between two connections
    try:
        port = sock.getpeername()[1] if sock is not None else None
    except OSError:
        return None
    return next((server for server in ensemble.servers if server.port == port), None)


def test_the_next_server_takes_over(zoo3: Zoo, whole: Ensemble) -> None:
    """The end of the server one is connected to costs no lock: the session goes on at another one."""
    followers = [server.address for server in whole.followers]
    with zoo3.configured(",".join(followers), session_timeout=8), zk_lock("a", abort_on="lost") as hold:
        server = server_of_session(whole)
        assert server
        before = session().session_id
        server.kill()
        eventually(lambda: server_of_session(whole) not in (None, server))
        eventually(lambda: session().connected and not session().suspect)
        hold.check()
        assert session().session_id == before
        exists = zoo3.client.exists  # of a client that may have been at that server, too
        assert zoo3.client.retry(exists, hold.path).czxid == hold.token


def lost_once_the_node_is_gone(zoo: Zoo, hold: Hold, give_up: threading.Event) -> bool:
    """Ask for the hold's node again and again, and tell whether the hold was lost by the time it was gone."""
    while not give_up.is_set():
        with contextlib.suppress(KazooException):
            if zoo.client.exists(hold.path) is None:
                return hold.lost
    return True


def test_a_lost_leader_grants_nothing_twice(zoo3: Zoo, whole: Ensemble) -> None:
    """The hold outlives the election, or is lost by its lease; whoever gets the lock next gets it after that."""
    give_up = threading.Event()
    with zoo3.configured(session_timeout=6):
        with zk_lock("a", abort_on="never") as hold:
            looking = BackgroundCall(lambda: lost_once_the_node_is_gone(zoo3, hold, give_up))
            whole.leader.kill()
            eventually(lambda: any(server.mode() == "leader" for server in whole.servers), 15)
            connected()
            eventually(lambda: hold.lost or not session().suspect)
            give_up.set()
            assert looking.result()
        with zk_lock("a", timeout=15) as again:
            assert again.token > hold.token


def test_without_a_quorum_a_hold_is_lost_and_nobody_gets_the_lock(zoo3: Zoo, whole: Ensemble) -> None:
    """One of three servers vouches for nothing."""

    def two_of_three_die(hold: Hold) -> None:
        for server in [whole.leader, *whole.followers][:2]:
            server.kill()

    with zoo3.configured(session_timeout=4):
        hold, _ = lose(zk_lock("a", abort_on="lost"), two_of_three_die, LEASE_SHARE * 4 + LATER)
        for server in whole.servers:
            server.start()
        connected(20)
        with zk_lock("a") as again:
            assert again.token > hold.token


# --- a follower that its leader has given up --------------------------------------------------------------------------


@pytest.fixture
def cut_off(whole: Ensemble) -> Iterator[tuple[Server, Wire]]:
    """A follower, and the link to its leader, which can be frozen without anybody noticing at first."""
    with partition(whole) as parted:
        yield parted.follower, parted.wire


@pytest.mark.scenario("F15")
@pytest.mark.parametrize("moment", ["at rest", "busy"])
def test_a_holder_on_a_cut_off_follower_is_told_before_the_next_one_is_granted(
    zoo3: Zoo, whole: Ensemble, cut_off: tuple[Server, Wire], moment: str
) -> None:
    """The follower goes on answering pings and reads for seconds after the leader has given the lock away."""
    follower, wire = cut_off
    observer = KazooClient(hosts=whole.leader.address, timeout=10)
    observer.start(timeout=10)
    granted: list[tuple[float, bool]] = []
    told: list[float] = []
    with zoo3.configured(follower.address, session_timeout=2), zk_lock("a", abort_on="never") as hold:
        observer.exists(hold.path, watch=lambda event: granted.append((time.monotonic(), hold.lost)))
        waiting = BackgroundCall(lambda: told.append(time.monotonic()) if hold.wait_lost(10) else None)
        wire.freeze()
        frozen_at = time.monotonic()
        while moment == "busy" and not granted:
            assert time.monotonic() < frozen_at + 10
            session().post(client()._call, *a_read(hold.path))
            time.sleep(0.05)
        eventually(lambda: granted, 10, "the leader has not given the lock away")
        waiting.result()
        (granted_at, was_lost), told_at = granted[0], told[0]
        assert was_lost
        assert told_at < granted_at
        assert told_at - frozen_at <= LEASE_SHARE * 2 + LATER
        wire.thaw()
    observer.stop()
    observer.close()


def a_read(path: str) -> tuple[object, object]:
    from kazoo.protocol.serialization import GetData

    from django_zklock.zk.session import PendingRequest

    request = GetData(path, None)
    return request, PendingRequest(session(), request, lambda answer: None)


@pytest.mark.scenario("F16")
def test_nobody_enters_by_a_cut_off_follower(zoo3: Zoo, whole: Ensemble, cut_off: tuple[Server, Wire]) -> None:
    """What it says of the queue is old, so it grants nothing; the call ends in time."""
    follower, wire = cut_off
    with zoo3.configured(follower.address, session_timeout=4):
        with zk_lock("a"):
            pass
        wire.freeze()
        with within(1.5 + 1), pytest.raises(ZooKeeperUnavailable), zk_lock("a", timeout=1.5):
            pass
        wire.thaw()


# --- hosts ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a host that takes connections and says nothing, as a stopped one does."""
    import socket

    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.scenario("F19")
def test_a_dead_host_among_others_is_passed_over_in_time(zoo: Zoo, silent: str) -> None:
    """Each host has its share of the session timeout, so one that is dead costs half of it at most."""
    for _ in range(3):  # the hosts have a new random order
        hosts = f"{silent},{zoo.hosts},127.0.0.1:1"
        with zoo.configured(hosts, session_timeout=4), within(4 / 2), zk_lock("a", timeout=4):
            pass


@pytest.mark.scenario("F19")
def test_a_dead_host_does_not_cost_the_lease(zoo: Zoo, silent: str) -> None:
    """A cut is survived by finding the live one in time, whichever is tried first."""
    with zoo.configured(f"{silent},{zoo.hosts}", session_timeout=10), zk_lock("a", abort_on="lost") as hold:
        for _ in range(3):
            lease = session().lease.until
            client().drop_connection()
            eventually(functools.partial(lease_goes_on, lease))
        hold.check()


def lease_goes_on(after: float) -> bool:
    return session().lease.until > after and not session().suspect


def test_a_server_that_goes_silent_is_left_for_another_in_time(zoo: Zoo) -> None:
    """A server that is stopped breaks no connection; the lease is saved by going to another one."""
    server = zoo.address
    with (
        Proxy(server) as one,
        Proxy(server) as other,
        zoo.configured(f"{one.address},{other.address}", session_timeout=10),
        zk_lock("a", abort_on="lost") as hold,
    ):
        silent, speaking = (one, other) if one.connections else (other, one)
        silent.hang = True
        speaking.wait_for(lambda: speaking.counts[MULTI], 5)
        eventually(lambda: not session().suspect)
        hold.check()
        silent.heal()


# --- what the server grants -------------------------------------------------------------------------------------------


@pytest.mark.scenario("F18")
def test_pauses_are_measured_by_the_session_timeout_that_was_granted() -> None:
    """With 60 s asked for and 2 s granted, a pause of a quarter of the former would outlast the session many times."""
    with Ensemble(tick=0.1) as ensemble:
        zoo = Zoo(ensemble.hosts, ensemble)
        with proxied(zoo, session_timeout=60) as proxy:
            with zk_lock("a") as hold:
                assert session().timeout == 2
                assert hold.lease_remaining <= LEASE_SHARE * 2
            proxy.upstream = "127.0.0.1:1"
            before = proxy.connected
            proxy.cut_all()
            proxy.wait_for(lambda: proxy.connected >= before + 9, 9 * 2 / 4)  # they begin with shorter ones
            proxy.upstream = ensemble.servers[0].address
        zoo.close()


@pytest.mark.scenario("F25")
def test_an_ensemble_that_comes_back_empty_is_found() -> None:
    """It refuses clients that have seen its future, for ever; they are replaced, some session timeouts later."""
    timeout = 2
    with Ensemble() as ensemble:
        zoo = Zoo(ensemble.hosts, ensemble)
        with zoo.configured(session_timeout=timeout):
            lose(zk_lock("a", abort_on="lost"), lambda hold: ensemble.stop(), LEASE_SHARE * timeout + LATER)
            ensemble.start()
            connected(4 * timeout + LATER)
            with zk_lock("a") as hold:
                hold.check()
        zoo.close()
