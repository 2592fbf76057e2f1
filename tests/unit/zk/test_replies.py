"""An answer says no more than it does; one that cannot be taken costs the connection, and nobody waits for it."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest
from kazoo import exceptions as kazoo
from kazoo.exceptions import ConnectionDropped
from kazoo.protocol.connection import PING_XID
from kazoo.protocol.serialization import GetChildren

from django_zklock.zk import clock
from django_zklock.zk.client import Client, SessionOptions
from django_zklock.zk.errors import OutcomeUnknown, translate

UNKNOWN = -999  # an error's code


@pytest.fixture
def wired() -> Iterator[tuple[Client, socket.socket]]:
    """A client that takes itself for connected, and the server's end."""
    client = Client(SessionOptions(hosts=(("127.0.0.1", 1),)))
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


def test_who_asked_is_told_of_an_answer_to_another_request(wired: tuple[Client, socket.socket]) -> None:
    """A request without an answer is taken for a dead connection, again and again while the session lives."""
    client, server = wired
    asked = Asked()
    client._pending.append((GetChildren("/", None), asked, 7))
    server.sendall(struct.pack("!iiqi", 16, 8, 0, 0))
    with pytest.raises(ConnectionDropped):
        client._connection._read_socket(1)
    assert asked.errors


@pytest.mark.parametrize("code", [UNKNOWN, kazoo.ConnectionLoss.code])
def test_who_asked_is_told_of_an_unknown_error(wired: tuple[Client, socket.socket], code: int) -> None:
    """It is a server error; the connection broke only where kazoo itself says so."""
    client, server = wired
    asked = Asked()
    client._pending.append((GetChildren("/", None), asked, 7))
    server.sendall(struct.pack("!iiqi", 16, 7, 0, code))
    client._connection._read_socket(1)
    assert [type(error) for error in asked.errors] == [kazoo.SystemZookeeperError]


def test_a_frame_that_cannot_be_read_breaks_the_connection(wired: tuple[Client, socket.socket]) -> None:
    """It would end kazoo's thread likewise."""
    client, server = wired
    server.sendall(struct.pack("!ii", 4, 7))
    with pytest.raises(ConnectionDropped):
        client._connection._read_socket(1)


def test_only_a_definite_refusal_says_that_a_write_was_not_carried_out() -> None:
    """All other errors leave the outcome unknown; a read has none, so its error is passed on."""
    unclear = [*range(-5, 0), -7]
    for code, kind in kazoo.EXCEPTIONS.items():
        if code < -100 or code in unclear:
            write, read = translate(kind()), translate(kind(), read=True)
            lost = code in (*unclear, kazoo.SessionMovedError.code, -122)
            assert isinstance(write, OutcomeUnknown) is lost, kind
            assert isinstance(read, OutcomeUnknown) is (code in (-4, -118, -122)), kind
    for error in (struct.error(), UnicodeDecodeError("utf-8", b"", 0, 1, "")):
        assert isinstance(translate(error), OutcomeUnknown)
        assert not isinstance(translate(error, read=True), OutcomeUnknown)


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
