"""The proxy does to real connections what its faults are named for; kazoo and a real server are at its ends."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss
from support.ensemble import Ensemble, Server
from support.proxy import (
    CONNECT,
    CREATE,
    DELETE,
    EXISTS,
    GET_CHILDREN,
    GET_DATA,
    PING,
    SET_DATA,
    Frame,
    Proxy,
    count_round_trips,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.zookeeper


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Ensemble(max_session_timeout=60) as ensemble:
        yield ensemble.servers[0]


@pytest.fixture
def direct(server: Server) -> Iterator[KazooClient]:
    """A client past the proxy: what the server really knows."""
    yield from connected(server.address)


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.address) as proxy:
        yield proxy
        proxy.heal()


@pytest.fixture
def client(proxy: Proxy) -> Iterator[KazooClient]:
    yield from connected(proxy.address)


def connected(hosts: str) -> Iterator[KazooClient]:
    client = KazooClient(hosts, timeout=30, connection_retry={"max_tries": -1, "delay": 0.02, "max_delay": 0.1})
    client.start(timeout=20)
    yield client
    client.stop()
    client.close()


@pytest.fixture
def path(request: pytest.FixtureRequest, direct: KazooClient) -> str:
    path = f"/{request.node.name}"
    assert not direct.exists(path)
    return path


def test_requests_are_counted_by_opcode(proxy: Proxy, client: KazooClient, path: str) -> None:
    """Each request is seen once, connection set-up and pings apart."""
    assert proxy.counts[CONNECT] == 1
    proxy.reset()
    client.create(path)
    client.set(path, b"1")
    client.set(path, b"2")
    client.delete(path)
    counts = proxy.counts
    assert {opcode: counts[opcode] for opcode in counts if opcode != PING} == {CREATE: 1, SET_DATA: 2, DELETE: 1}
    assert proxy.requests == 4
    assert (proxy.connections, proxy.connected) == (1, 1)


def test_pipelined_requests_are_one_round_trip(proxy: Proxy, client: KazooClient, path: str) -> None:
    """What is sent without waiting for a reply costs one wait, however much it is."""
    proxy.delay = 0.02  # longer than it takes to send them
    proxy.reset()
    client.create(path)
    assert proxy.round_trips() == 1
    for request in [client.get_async(path), client.get_children_async(path), client.delete_async(path)]:
        request.get(timeout=10)
    assert proxy.round_trips() == 2


def test_round_trips_ignore_pings_and_other_connections() -> None:
    """Only a connection's own replies start its next batch."""

    def frame(connection: int, request: bool, xid: int, opcode: int | None) -> Frame:
        return Frame(connection, request, xid, opcode, 0.0)

    frames = [
        frame(1, True, 0, CONNECT),
        frame(1, False, 0, CONNECT),
        frame(1, True, 1, CREATE),
        frame(2, True, 1, CREATE),
        frame(2, False, 1, CREATE),
        frame(1, True, 2, GET_CHILDREN),
        frame(1, True, -2, PING),
        frame(1, False, -2, PING),
        frame(1, True, 3, GET_DATA),
        frame(1, False, -1, None),
        frame(1, True, 4, EXISTS),
    ]
    assert count_round_trips(frames) == 2  # one on each connection
    assert count_round_trips([*frames, frame(1, False, 1, CREATE), frame(1, True, 5, DELETE)]) == 3


def test_a_delay_is_kept_each_way_and_does_not_add_up(proxy: Proxy, client: KazooClient) -> None:
    """Ten requests sent together arrive together: the delay is the length of a line, not a queue."""
    proxy.delay = 0.1
    started = time.monotonic()
    for request in [client.exists_async("/zookeeper") for _ in range(10)]:
        request.get(timeout=10)
    took = time.monotonic() - started
    assert 0.2 <= took < 1.9  # one after the other, they would take two seconds


def test_killed_after_an_op_the_deed_is_done_and_its_ack_lost(
    proxy: Proxy, client: KazooClient, direct: KazooClient, path: str
) -> None:
    """The classic lost ACK, once: the same request goes through the next time."""
    fired = proxy.kill_after_op(CREATE)
    with pytest.raises(ConnectionLoss):
        client.create(path)
    assert fired.wait(10)
    assert direct.exists(path)
    client.retry(client.create, f"{path}/again")


def test_killed_before_an_op_the_deed_is_not_done(
    proxy: Proxy, client: KazooClient, direct: KazooClient, path: str
) -> None:
    """The request is lost with its connection, what was sent before it is not."""
    fired = proxy.kill_before_op(SET_DATA)
    created, changed = client.create_async(path, b"old"), client.set_async(path, b"new")
    with pytest.raises(ConnectionLoss):
        changed.get(timeout=10)
    assert fired.wait(10)
    created.wait(10)
    appeared = threading.Event()
    assert direct.exists(path, watch=lambda _: appeared.set()) or appeared.wait(10)
    assert direct.get(path)[0] == b"old"


def test_only_the_chosen_op_is_delayed(proxy: Proxy, client: KazooClient, path: str) -> None:
    """One kind of request is slow, and what was sent before it is not held up."""
    proxy.delay_op(CREATE, 0.3)
    started = time.monotonic()
    before, created = client.exists_async(path), client.create_async(path)
    assert before.get(timeout=10) is None
    assert not created.ready()
    created.get(timeout=10)
    assert time.monotonic() - started >= 0.3
    proxy.delay_op(CREATE, 0)
    created = client.create_async(f"{path}/quick")
    created.get(timeout=10)
