"""Unreadable and unexpected replies break the connection, and no request waits for a reply for ever."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest
from kazoo import exceptions as kazoo
from kazoo.exceptions import ConnectionDropped
from kazoo.protocol.connection import PING_XID
from kazoo.protocol.serialization import GetChildren

from django_zklock.core import clock
from django_zklock.core.zk.client import Client
from django_zklock.core.zk.errors import OutcomeUnknown, translate
from django_zklock.core.zk.options import SessionOptions

UNKNOWN_CODE = -999


@pytest.fixture
def wired() -> Iterator[tuple[Client, socket.socket]]:
    """A client that believes to be connected, and the server's end of its socket."""
    client = Client(SessionOptions(hosts=(("127.0.0.1", 1),)))
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    client._connection._socket = ours
    with ours, theirs:
        yield client, theirs


class Pending:
    """A request without a reply."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []

    def set_exception(self, error: BaseException) -> None:
        self.errors.append(error)


def test_a_reply_without_a_request_breaks_the_connection(wired: tuple[Client, socket.socket]) -> None:
    """It would end kazoo's thread. The locks of the session would then stay held until it expires."""
    client, server = wired
    server.sendall(struct.pack("!iiqi", 16, 7, 0, 0))
    with pytest.raises(ConnectionDropped):
        client._connection._read_socket(1)


def test_a_request_fails_when_the_reply_to_another_one_arrives(wired: tuple[Client, socket.socket]) -> None:
    """Without an error, the session would take each new connection for dead, because this request has no reply."""
    client, server = wired
    pending = Pending()
    client._pending.append((GetChildren("/", None), pending, 7))
    server.sendall(struct.pack("!iiqi", 16, 8, 0, 0))
    with pytest.raises(ConnectionDropped):
        client._connection._read_socket(1)
    assert pending.errors


@pytest.mark.parametrize("code", [UNKNOWN_CODE, kazoo.ConnectionLoss.code])
def test_a_request_fails_with_an_unknown_error_code(wired: tuple[Client, socket.socket], code: int) -> None:
    """It is a server error. The connection is broken only where kazoo itself says so."""
    client, server = wired
    pending = Pending()
    client._pending.append((GetChildren("/", None), pending, 7))
    server.sendall(struct.pack("!iiqi", 16, 7, 0, code))
    client._connection._read_socket(1)
    assert [type(error) for error in pending.errors] == [kazoo.SystemZookeeperError]


def test_an_unreadable_frame_breaks_the_connection(wired: tuple[Client, socket.socket]) -> None:
    """It would end kazoo's thread too."""
    client, server = wired
    server.sendall(struct.pack("!ii", 4, 7))
    with pytest.raises(ConnectionDropped):
        client._connection._read_socket(1)


def test_only_a_refusal_shows_that_a_write_was_not_carried_out() -> None:
    """After any other error the outcome is unknown. A read has no outcome, so its error is passed on."""
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


def test_a_reply_to_a_ping_belongs_to_the_oldest_ping_without_one(wired: tuple[Client, socket.socket]) -> None:
    """A second ping may not have arrived yet."""
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


def wait_for_pings(client: Client, count: int) -> list[float]:
    """Let the client wait for the replies to so many pings. Return the list that gets the time of each reply."""
    heard: list[float] = []
    client.on_pinged = heard.append
    client._connection._pings.extend(range(count))
    return heard


def test_replies_that_arrive_together_are_handled_together(wired: tuple[Client, socket.socket]) -> None:
    """Before each call, kazoo waits for the socket. Replies that were read ahead would wait there for later ones."""
    client, server = wired
    heard = wait_for_pings(client, 3)
    reply = struct.pack("!iiqi", 16, PING_XID, 0, 0)
    server.sendall(3 * reply)
    client._connection._read_socket(1)
    assert heard == [0, 1, 2]


@pytest.mark.parametrize("arrived", [1, 4, 9])
def test_a_part_of_a_reply_is_not_waited_for(wired: tuple[Client, socket.socket], arrived: int) -> None:
    """Requests are sent before the rest of it arrives."""
    client, server = wired
    heard = wait_for_pings(client, 2)
    reply = struct.pack("!iiqi", 16, PING_XID, 0, 0)
    server.sendall(reply + reply[:arrived])
    client._connection._read_socket(0.1)
    assert heard == [0]
    server.sendall(reply[arrived:])
    client._connection._read_socket(1)
    assert heard == [0, 1]


def test_a_part_of_a_reply_ends_with_its_connection(wired: tuple[Client, socket.socket]) -> None:
    """The next connection begins with a reply of its own."""
    client, server = wired
    heard = wait_for_pings(client, 1)
    reply = struct.pack("!iiqi", 16, PING_XID, 0, 0)
    server.sendall(reply + reply[:9])
    client._connection._read_socket(1)
    with pytest.raises(ConnectionDropped):
        client._connection._connect("127.0.0.1", "127.0.0.1", 1)
    heard = wait_for_pings(client, 1)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        client._connection._socket = ours
        theirs.sendall(reply)
        client._connection._read_socket(1)
    assert heard == [0]
