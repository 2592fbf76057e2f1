"""An answer that cannot be taken costs the connection it came on, not the thread that reads it, and nobody waits on."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest
from kazoo.exceptions import ConnectionDropped
from kazoo.protocol.serialization import GetChildren

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
