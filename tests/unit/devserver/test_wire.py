"""The dev server on its sockets: frames, handshakes, garbage, and many clients."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import TYPE_CHECKING

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, NoAuthError, NoNodeError
from kazoo.security import make_digest_acl

from django_zklock.testing.server import DevServer
from django_zklock.testing.server import records as r
from django_zklock.testing.server.acl import OPEN
from django_zklock.testing.server.codes import MAX_FRAME, Error, Event, Op
from django_zklock.testing.server.records import Reader, Writer

if TYPE_CHECKING:
    from typing_extensions import Self

LENGTH = struct.Struct("!i")
HEADER = struct.Struct("!iqi")


class Raw:
    """A client that sends what it is told to, malformed or not."""

    def __init__(self, server: DevServer, *, greet: bool = True, session: int = 0, password: bytes = bytes(16)) -> None:
        self.sock = socket.create_connection(("127.0.0.1", server.port), timeout=10)
        self.xid = 0
        self.session = 0
        self.password = b""
        if greet:
            self.greet(session, password)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sock.close()

    def greet(self, session: int = 0, password: bytes = bytes(16), zxid: int = 0) -> None:
        writer = Writer()
        r.write(writer, r.ConnectRequest(0, zxid, 4000, session, password))
        self.sock.sendall(r.frame(writer.data))
        answer = self.frame()
        if answer is not None:
            reply = r.read(r.ConnectReply, Reader(answer))
            self.session, self.password = reply.session_id, reply.password or b""

    def frame(self) -> bytes | None:
        """Return the next frame, or None at the end of the connection."""
        head = self.exactly(4)
        return None if head is None else self.exactly(LENGTH.unpack(head)[0])

    def exactly(self, count: int) -> bytes | None:
        found = b""
        while len(found) < count:
            try:
                chunk = self.sock.recv(count - len(found))
            except ConnectionResetError:
                return None
            if not chunk:
                return None
            found += chunk
        return found

    def send(self, op: int, record: tuple[object, ...] = ()) -> None:
        writer = Writer()
        if record:
            r.write(writer, record)
        self.xid += 1
        self.sock.sendall(r.frame(struct.pack("!ii", self.xid, op) + writer.data))

    def reply(self) -> tuple[int, int, bytes]:
        """Return xid, error and body of the next frame."""
        frame = self.frame()
        assert frame is not None, "the connection is closed"
        xid, _, error = HEADER.unpack_from(frame)
        return xid, error, frame[HEADER.size :]

    def ask(self, op: int, record: tuple[object, ...] = ()) -> tuple[int, int, bytes]:
        self.send(op, record)
        return self.reply()


@pytest.fixture
def server() -> Iterator[DevServer]:
    with DevServer() as server:
        yield server


SYNC = r.PathRequest("/")
GARBAGE = {
    "negative": b"\xff\xff\xff\xff",
    "oversized": LENGTH.pack(MAX_FRAME + 1),
    "huge": b"\x7f\xff\xff\xff",
    "empty": LENGTH.pack(0),
    "short": LENGTH.pack(4) + b"abcd",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "unknown word": b"abcd",
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE)
@pytest.mark.parametrize("greet", [False, True], ids=["stranger", "session"])
def test_garbage_ends_its_connection_and_nothing_else(server: DevServer, data: bytes, *, greet: bool) -> None:
    """Whoever sends it, with a session or without: the others are served, and no session is left over."""
    with Raw(server) as other, Raw(server, greet=greet) as raw:
        raw.sock.sendall(data)
        assert raw.frame() is None
        assert other.ask(Op.SYNC, SYNC)[1] == 0
        assert len(server.sessions()) == 1 + greet
        assert [one.connected for one in server.sessions()].count(True) == 1


@pytest.mark.parametrize("op", [*Op, 0, 5000])
def test_a_truncated_request_is_answered_or_ends_its_connection(server: DevServer, op: int) -> None:
    """No operation harms the server by having no body."""
    with Raw(server) as raw, Raw(server) as other:
        raw.send(op)
        raw.frame()
        assert other.ask(Op.SYNC, SYNC)[1] == 0
        assert server.sessions()


def test_a_connection_that_ends_within_a_frame_leaves_its_session_to_its_timeout(server: DevServer) -> None:
    """Half a request is no request, and the session can be had back."""
    with Raw(server) as raw:
        raw.sock.sendall(LENGTH.pack(100) + b"\0\0\0\1\0\0\0\1")
    with Raw(server, session=raw.session, password=raw.password) as again:
        assert again.session == raw.session
        assert again.ask(Op.SYNC, SYNC)[1] == 0
    assert server.paths() == ["/", "/zookeeper", "/zookeeper/config", "/zookeeper/quota"]


def test_an_unknown_operation_is_unimplemented_and_ends_its_connection(server: DevServer) -> None:
    """As on the real server."""
    with Raw(server) as raw:
        assert raw.ask(999)[1] == Error.UNIMPLEMENTED
        assert raw.frame() is None


def test_a_frame_may_be_as_long_as_the_limit(server: DevServer) -> None:
    """And not a byte longer."""
    empty = Writer()
    r.write(empty, r.SetDataRequest("/", b"", -1))
    room = MAX_FRAME - 8 - len(empty.data)
    with Raw(server) as raw:
        assert raw.ask(Op.SET_DATA, r.SetDataRequest("/", bytes(room), -1))[1] == 0
        with suppress(ConnectionError):  # the server does not wait for the end of it
            raw.send(Op.SET_DATA, r.SetDataRequest("/", bytes(room + 1), -1))
        assert raw.frame() is None


def test_a_session_has_one_connection(server: DevServer) -> None:
    """The one it had is closed; the password decides, and who fails it is told and closed."""
    with Raw(server) as first, Raw(server, session=first.session, password=first.password) as second:
        assert first.frame() is None
        assert second.ask(Op.SYNC, SYNC)[1] == 0
        with Raw(server, session=first.session, password=b"x" * 16) as wrong:
            assert wrong.session == 0
            assert wrong.frame() is None
        with Raw(server, session=12345) as unknown:
            assert unknown.session == 0
            assert unknown.frame() is None
    assert len(server.sessions()) == 1


def test_who_has_seen_more_than_the_server_is_sent_away(server: DevServer) -> None:
    """Without an answer: it shall look for a server that knows as much as it does."""
    with Raw(server, greet=False) as raw:
        raw.greet(zxid=1 << 62)
        assert raw.frame() is None
    assert server.sessions() == []


def test_pipelined_requests_are_answered_in_order(server: DevServer) -> None:
    """However they are cut into pieces."""
    with Raw(server) as raw:
        body = b"".join(
            r.frame(struct.pack("!ii", xid, Op.SYNC) + r.text_bytes("/" + "x" * (xid % 7))) for xid in range(1, 500)
        )
        for start in range(0, len(body), 997):
            raw.sock.sendall(body[start : start + 997])
        assert [raw.reply()[0] for _ in range(1, 500)] == list(range(1, 500))


def test_the_event_comes_before_any_reply_that_shows_the_change(server: DevServer) -> None:
    """For the one who watches and for the one who changes."""
    with Raw(server) as raw, Raw(server) as other:
        raw.ask(Op.EXISTS, r.WatchRequest("/a", True))
        other.ask(Op.GET_CHILDREN, r.WatchRequest("/", True))
        raw.send(Op.CREATE, r.CreateRequest("/a", b"", OPEN, 0))
        xid, _, body = raw.reply()
        assert (xid, Reader(body).int32()) == (-1, Event.CREATED)
        assert raw.reply()[0] == raw.xid
        other.send(Op.EXISTS, r.WatchRequest("/a", False))
        xid, _, body = other.reply()
        assert (xid, Reader(body).int32()) == (-1, Event.CHILD)
        assert other.reply()[:2] == (other.xid, 0)


def test_a_client_that_does_not_read_holds_nobody_up(server: DevServer) -> None:
    """What it was sent waits for it, all of it and in order."""
    with Raw(server) as lazy, Raw(server) as other:
        data = bytes(500_000)
        other.ask(Op.SET_DATA, r.SetDataRequest("/", data, -1))
        for _ in range(40):
            lazy.send(Op.GET_DATA, r.WatchRequest("/", False))
        for _ in range(20):
            assert other.ask(Op.SYNC, SYNC)[1] == 0
        for xid in range(1, 41):
            found, error, body = lazy.reply()
            assert (found, error) == (xid, 0)
            assert Reader(body).blob() == data


def test_whoever_was_quiet_during_a_stall_gets_what_there_is(server: DevServer) -> None:
    """Events wait for the end of it, on the connection that was; who sent something is cut off."""
    with Raw(server) as quiet, Raw(server) as owner, Raw(server) as loud:
        owner.ask(Op.CREATE, r.CreateRequest("/mine", b"", OPEN, 1))
        quiet.ask(Op.EXISTS, r.WatchRequest("/mine", True))
        server.stall = True
        loud.send(Op.CREATE, r.CreateRequest("/lost", b"", OPEN, 0))
        server.expire(owner.session)
        quiet.sock.settimeout(0.1)
        with pytest.raises(TimeoutError):
            quiet.sock.recv(1)
        quiet.sock.settimeout(10)
        server.stall = False
        xid, _, body = quiet.reply()
        assert (xid, Reader(body).int32()) == (-1, Event.DELETED)
        assert quiet.ask(Op.SYNC, SYNC)[1] == 0
        assert loud.frame() is None
        assert server.paths("/lost") == []


def test_empty_containers_go() -> None:
    """Once they had a child, and their watchers hear it; what is fresh stays."""
    with DevServer(container_check=0.05) as server, Raw(server) as raw:
        for path in ("/fresh", "/box"):
            raw.ask(Op.CREATE_CONTAINER, r.CreateRequest(path, b"", OPEN, 4))
        raw.ask(Op.CREATE, r.CreateRequest("/box/x", b"", OPEN, 0))
        raw.ask(Op.EXISTS, r.WatchRequest("/box", True))
        raw.ask(Op.DELETE, r.VersionRequest("/box/x", -1))
        xid, _, body = raw.reply()
        assert (xid, Reader(body).int32()) == (-1, Event.DELETED)
        assert server.paths("/box") == []
        assert server.paths("/fresh") == ["/fresh"]


def test_many_clients_at_once(server: DevServer) -> None:
    """A thousand, each with an ephemeral; all of it gone with their sessions."""
    with ExitStack() as stack:
        clients = [stack.enter_context(Raw(server)) for _ in range(1000)]
        for client in clients:
            client.send(Op.CREATE2, r.CreateRequest("/c-", b"", OPEN, 3))
        for client in clients:
            assert client.reply()[:2] == (1, 0)
        assert len(server.paths()) == 1004
        for client in clients:
            client.send(Op.CLOSE)
        for client in clients:
            assert client.reply()[:2] == (2, 0)
            assert client.frame() is None
    assert server.sessions() == []
    assert len(server.paths()) == 4


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        ("ruok", "imok"),
        ("isro", "rw"),
        ("srvr", "Mode: standalone"),
        ("stat", "Clients:\n /127.0.0.1:"),
        ("mntr", "zk_num_alive_connections\t2"),
        ("cons", ",sid=0x1"),
        ("dump", "Sessions with Ephemerals (1):"),
        ("conf", "tickTime=500"),
        ("envi", "zookeeper.version=3.8"),
    ],
)
def test_four_letter_words(server: DevServer, word: str, wanted: str) -> None:
    """They are answered and their connection is closed."""
    with Raw(server) as client, Raw(server, greet=False) as raw:
        client.ask(Op.CREATE, r.CreateRequest("/e", b"", OPEN, 1))
        raw.sock.sendall(word.encode())
        found = b""
        while chunk := raw.sock.recv(65536):
            found += chunk
        assert wanted in found.decode()


def test_kazoo_and_its_lock(server: DevServer) -> None:
    """The client everybody uses: reads, watches, transactions, digests, a lock."""
    client = KazooClient(server.hosts)
    stranger = KazooClient(server.hosts)
    client.start()
    stranger.start()
    try:
        client.add_auth("digest", "joe:secret")
        client.create("/a/b", b"1", makepath=True, acl=[make_digest_acl("joe", "secret", all=True)])
        assert client.get("/a/b")[0] == b"1"
        with pytest.raises(NoAuthError):
            stranger.get("/a/b")
        transaction = client.transaction()
        transaction.check("/a/b", 0)
        transaction.delete("/nope")
        assert isinstance(transaction.commit()[1], NoNodeError)
        with client.Lock("/lock", "me"):
            assert stranger.Lock("/lock").contenders() == ["me"]
        assert client.get_children("/lock") == []
        with pytest.raises(AuthFailedError):
            stranger.add_auth("nope", "x")
    finally:
        for one in (client, stranger):
            one.stop()
            one.close()
    assert server.sessions() == [] or not server.sessions()[0].ephemerals
