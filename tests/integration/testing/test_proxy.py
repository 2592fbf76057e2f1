"""The proxy does to real connections what its faults are named for; kazoo and a real server are at its ends."""

from __future__ import annotations

import threading
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
