"""An answer to a ping says no more than that the server has heard of that very ping."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest
from kazoo.protocol.connection import PING_XID

from django_zklock.zk import clock
from django_zklock.zk.client import Client, Options


@pytest.fixture
def wired() -> Iterator[tuple[Client, socket.socket]]:
    """A client that takes itself for connected, and the server's end."""
    client = Client(Options(hosts=(("127.0.0.1", 1),)))
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    client._connection._socket = ours
    with ours, theirs:
        yield client, theirs


def test_an_answer_belongs_to_the_oldest_ping_without_one(wired: tuple[Client, socket.socket]) -> None:
    """A second one that was sent meanwhile may not have arrived."""
    client, server = wired
    heard: list[float] = []
    client.on_pinged = heard.append
    client._connection._send_ping(1)
    between = clock.now()
    client._connection._send_ping(1)
    server.sendall(struct.pack("!iiqi", 16, PING_XID, 0, 0))
    client._connection._read_socket(1)
    assert heard[0] <= between
    server.sendall(struct.pack("!iiqi", 16, PING_XID, 0, 0))
    client._connection._read_socket(1)
    assert heard[1] >= between
    assert len(heard) == 2
