"""The client: replies, pauses between connects, and when the leader last heard of a session."""

import os
import socket
import struct

import pytest
from kazoo import exceptions as kazoo
from kazoo.exceptions import ConnectionDropped
from kazoo.protocol.connection import PING_XID
from kazoo.protocol.serialization import Delete, GetData
from kazoo.retry import KazooRetry
from support.clients import bare_client

from django_zklock.core import clock
from django_zklock.core.zk.client import Requests
from django_zklock.core.zk.connection import Attempt, Forked, wait_ready
from django_zklock.core.zk.errors import OutcomeUnknown, translate
from django_zklock.core.zk.lease import LastContact
from django_zklock.core.zk.loop import Loop

DELETE, READ = Delete("/a", -1), GetData("/a", None)


@pytest.fixture
def wired():
    client = bare_client()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    client._connection._socket = ours
    with ours, theirs:
        yield client, theirs


def test_a_connect_that_is_under_way_at_a_fork_is_given_up(wired):
    client, _ = wired
    client._connection.attempt = Attempt(("", 0), ("", 0), 10)
    with socket.create_server(("127.0.0.1", 0)) as server:
        client.handler.start()
        client.handler.create_connection(server.getsockname()).close()
        client.forget_sockets()
        with pytest.raises(Forked):
            client.handler.create_connection(server.getsockname())


def test_only_a_refusal_shows_that_a_write_was_not_carried_out():
    """After any other error the outcome is unknown. A read has no outcome, so its error is passed on."""
    unclear = {*range(-100, 1), kazoo.SessionMovedError.code, -122} - {-6, -8}
    for code, kind in kazoo.EXCEPTIONS.items():
        write, read = translate(kind(), DELETE), translate(kind(), READ)
        assert isinstance(write, OutcomeUnknown) is (code in unclear), kind
        assert isinstance(read, OutcomeUnknown) is (code in (-4, -118, -122)), kind
    for error in (struct.error(), UnicodeDecodeError("utf-8", b"", 0, 1, "")):
        assert isinstance(translate(error, DELETE), OutcomeUnknown)
        assert not isinstance(translate(error, READ), OutcomeUnknown)


def test_a_reply_to_a_ping_belongs_to_the_oldest_ping_without_one(wired):
    client, server = wired
    heard = []
    client.on_pinged = heard.append
    client._connection._send_ping(1)
    between = clock.now()
    client._connection._send_ping(1)
    for _ in range(3):  # one more than the pings
        server.sendall(struct.pack("!iiqi", 16, PING_XID, 0, 0))
        client._connection._read_socket(1)
    assert len(heard) == 2
    assert heard[0] <= between <= heard[1]


@pytest.mark.parametrize("reply", [struct.pack("!iiqi", 16, 1, 0, 0), struct.pack("!ii", 4, 1)], ids=["surplus", "cut"])
def test_a_reply_that_cannot_be_read_ends_the_connection(wired, reply):
    client, server = wired
    server.sendall(reply)
    with pytest.raises(ConnectionDropped):
        client._connection._read_socket(1)


def test_requests_in_a_flood_wait_in_their_order_and_fail_with_the_connection(wired, monkeypatch):
    def ask(name, *later):
        def hear(reply):
            replies.append((name, type(reply)))
            ask(*later) if later else None

        requests.send((Delete(f"/{name}", -1), hear))

    monkeypatch.setattr("django_zklock.core.zk.client.MAX_IN_FLIGHT", 1)
    client, server = wired
    replies = []
    client._session_id, client._connection._is_open = 7, True
    requests = Requests(Loop("test"), LastContact(), replies.append, replies.append)
    requests.open(client, 7, 10.0)
    for names in ("ad", "b", "c"):
        ask(*names)
    for xid, client._session_id in (1, 7), (2, 8):  # of the new session, the loop has not heard yet
        server.sendall(struct.pack("!iiqi", 16, xid, 0, 0))
        client._connection._read_socket(1)
    ask("e")
    requests.close()
    assert replies == [("a", bool), ("b", bool), *((name, OutcomeUnknown) for name in "ecd")]


@pytest.mark.parametrize(("hurry", "longest"), [(True, 0.5), (False, 4.0)])
def test_the_pause_between_two_rounds_is_short_while_a_lease_lasts(hurry, longest):
    """
    Most processes are idle during an outage, and their attempts must not flood the servers when these return.

    Still, a caller that waits for the connect timeout sees a try.
    """
    client = bare_client(session_timeout=60)
    client._stopped.set()
    client.lease_lasts = lambda: hurry
    client._connection.negotiated_timeout = 20.0  # this counts: a longer pause would outlast the session
    retry = KazooRetry()
    client._connection._connect_loop(retry)  # it does not connect, because the client is stopped
    assert retry.max_delay * (1 + retry.max_jitter) == pytest.approx(longest)


T = 12.0  # seconds: the session timeout; a follower reports its contacts within 3 s


def test_the_end_of_a_client_without_a_thread_is_reported_at_once():
    """Its thread has died, and reported that to a session that was not closing yet."""
    ended = []
    client = bare_client()
    client._stopped.clear()  # as at its start
    client.on_ended = lambda: ended.append(True)
    client.end()
    assert ended == [True]


@pytest.fixture
def contact():
    """The last contact on a connection whose connect was sent at 100."""
    contact = LastContact()
    contact.restart(100.0)
    return contact


@pytest.mark.parametrize(
    ("contacts", "at", "known"),
    [
        ([], 100.0, 100.0),  # a session that was just created, or moved to another server, has its whole timeout
        ([(109.0, 109.1)], 112.0, 100.0),  # the follower reports within half a tick, and may be cut off before
        ([(109.0, 109.1)], 112.1, 109.0),
        ([(102.0, 102.5), (104.0, 104.5), (106.0, 106.5), (108.0, 108.5)], 110.0, 106.0),
        ([(102.0, 108.0), (108.001, 108.002)], 108.002 + T / 4, 108.001),  # an old reply, read after a pause
    ],
)
def test_the_newest_reported_contact_counts(contact, contacts, at, known):
    for sent, received in contacts:
        contact.record(sent, received, T)
    assert contact.known_to_leader(at, T) == known


def test_a_new_connection_forgets_older_contacts(contact):
    """The old server may never have reported its last contacts."""
    contact.record(105.0, 105.1, T)
    contact.restart(107.0)
    assert contact.known_to_leader(120.0, T) == 107.0


def test_the_memory_does_not_grow_with_the_number_of_replies(contact):
    for number in range(100_000):
        contact.record(100 + number / 1000, 100 + number / 1000, T)
    assert len(contact._replies) < 100
    assert contact.known_to_leader(200.0, T) == pytest.approx(197.0, abs=T / 60)


def test_a_wait_for_sockets_names_those_that_are_ready():
    ends = os.pipe()
    with open(ends[0], "rb", buffering=0) as reader, open(ends[1], "wb", buffering=0) as writer:
        assert wait_ready([reader], [], [], 0) == ([], [], [])
        assert wait_ready([reader], [writer], [], None) == ([], [writer], [])
        writer.write(b"x")
        assert wait_ready([reader], [writer], [], 0.001) == ([reader], [writer], [])
