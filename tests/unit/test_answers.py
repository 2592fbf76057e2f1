"""An answer says no more than it does; one that cannot be taken costs the connection, and nobody waits for it."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest
from kazoo.exceptions import ConnectionDropped
from kazoo.protocol.connection import PING_XID
from kazoo.protocol.serialization import GetChildren

from django_zklock.zk import clock
from django_zklock.zk.client import Client, Options

UNKNOWN = -999  # an error's code


@pytest.fixture
def wired() -> Iterator[tuple[Client, socket.socket]]:
    """A client that takes itself for connected, and the server's end."""
    client = Client(Options(hosts=(("127.0.0.1", 1),)))
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    client._connection._socket = ours
    with ours, theirs:
        yield client, theirs


class Asked:
    """Who waits for an answer."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []

    def set_exception(self, error: BaseException) -> None:
        self.errors.append(error)


def test_an_answer_to_nothing_breaks_the_connection(wired: tuple[Client, socket.socket]) -> None:
    """It would end kazoo's thread, and the session with it: its locks would block everybody until it expires."""
    client, server = wired
    server.sendall(struct.pack("!iiqi", 16, 7, 0, 0))
    with pytest.raises(ConnectionDropped):
        client._connection._read_socket(1)


@pytest.mark.parametrize(("xid", "error"), [(8, 0), (7, UNKNOWN)], ids=["another's", "an unknown error"])
def test_who_asked_is_told_of_an_answer_that_cannot_be_taken(
    wired: tuple[Client, socket.socket], xid: int, error: int
) -> None:
    """A request without an answer is taken for a dead connection, again and again while the session lives."""
    client, server = wired
    asked = Asked()
    client._pending.append((GetChildren("/", None), asked, 7))
    server.sendall(struct.pack("!iiqi", 16, xid, 0, error))
    with pytest.raises(ConnectionDropped):
        client._connection._read_socket(1)
    assert asked.errors


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
