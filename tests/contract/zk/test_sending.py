"""Requests arrive complete and in order, however slowly a server reads; and a cut loses no callback."""

import contextlib
import random
import socket
import ssl
import struct
import threading
from functools import partial

import pytest
from kazoo.exceptions import ConnectionDropped
from kazoo.protocol.serialization import Close, Delete
from support.certificates import authority, certificate
from support.clients import bare_client
from support.zoo import eventually

from django_zklock.core.zk.options import TlsOptions


class Server:
    """A server that confirms every delete. It reads while `reads` is set, and ends connections after some bytes."""

    def __init__(self, tls=None, family=socket.AF_INET):
        self.reads = threading.Event()
        self.reads.set()
        self.answers = True
        self.requests = []  # xid, type and body
        self.cuts = []  # of the next connections: after how many bytes, and whether by a reset
        self._tls = tls
        self._listener = socket.create_server(("::1" if family is socket.AF_INET6 else "127.0.0.1", 0), family=family)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.address = self._listener.getsockname()[:2]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self):
        self.reads.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)

    def _run(self):
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return
            with accepted, contextlib.suppress(OSError, EOFError):
                if self._tls is not None:
                    with self._tls.wrap_socket(accepted, server_side=True) as secured:
                        self._serve(secured)
                else:
                    self._serve(accepted)

    def _serve(self, sock):
        left, resets = self.cuts.pop(0) if self.cuts else (-1, False)
        reply = struct.pack("!iiqi", 16, -2, 0, 0)  # to a ping

        def read(count):
            nonlocal left
            data = b""
            while len(data) < count:
                if left == 0:
                    sock.sendall(reply[:9])
                    if resets:
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    raise EOFError
                self.reads.wait()
                chunk = sock.recv(count - len(data) if left < 0 else min(left, count - len(data)))
                if not chunk:
                    raise EOFError
                left -= len(chunk) if left > 0 else 0
                data += chunk
            return data

        frame = partial(lambda: read(*struct.unpack("!i", read(4))))
        session = struct.unpack_from("!q", frame(), 16)[0] or 7  # after the version, the zxid and the timeout
        sock.sendall(struct.pack("!iiiqi16s?", 37, 0, 10_000, session, 16, b"", False))
        while True:
            body = frame()
            xid, kind = struct.unpack_from("!ii", body)
            self.requests.append((xid, kind, body[8:]))
            if self.answers:
                reply = struct.pack("!iiqi", 16, xid, len(self.requests), 0)
                at = xid % len(reply)
                sock.sendall(reply[:at])
                sock.sendall(reply[at:])

    @property
    def deletes(self):
        """The xid and the body of each delete that has arrived."""
        return [(xid, body) for xid, kind, body in list(self.requests) if kind == Delete.type]


class Result:
    """The outcomes of one request; there should be one."""

    def __init__(self, outcomes):
        self.own = []
        outcomes.append(self.own)

    def set(self, value):
        self.own.append(value)

    set_exception = set


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pki")
    authority(folder, "ca")
    key, signed = certificate(folder, "localhost", "ca")
    (folder / "both.pem").write_bytes(key + signed)
    return folder


def context_of(pki):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki / "both.pem")
    return context


@pytest.fixture(params=["plain", "tls", "IPv6"])
def server(request, pki):
    context = context_of(pki) if request.param == "tls" else None
    try:
        server = Server(context, socket.AF_INET6 if request.param == "IPv6" else socket.AF_INET)
    except OSError:
        if request.param != "IPv6":
            raise
        pytest.skip("no IPv6 on this machine")
    yield server
    server.stop()


@contextlib.contextmanager
def client_of(server, pki):
    tls = TlsOptions(ca=str(pki / "ca.pem"), check_hostname=False) if server._tls is not None else None
    client = bare_client(server.address, session_timeout=20, tls=tls)
    client.start_async()
    try:
        eventually(lambda: client._connection._is_open)
        client._connection._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        yield client
    finally:
        client.end()
        client.join()


def deletes(count, outcomes, longest):
    """Return so many requests of random sizes. The path of each begins with its number."""
    numbers = range(len(outcomes), len(outcomes) + count)
    return [(Delete(f"/{n}-{'x' * random.randrange(longest)}", -1), Result(outcomes)) for n in numbers]


def send(client, count, outcomes, longest):
    """Send so many requests. Forget them if there is no connection, as nothing was sent."""
    before = len(outcomes)
    if not client.send(deletes(count, outcomes, longest)):
        del outcomes[before:]


@pytest.mark.parametrize(("batches", "longest"), [(700, 300), (100, 40_000)], ids=["many", "large"])
def test_requests_arrive_in_order_and_complete(server, pki, batches, longest):
    outcomes = []
    sent = []
    with client_of(server, pki) as client:
        server.reads.clear()
        for number in range(batches):
            if number == batches // 2:
                eventually(lambda: client._connection._unwritten, 10, "the socket is full")
                server.reads.set()
            requests = deletes(random.randrange(1, 5), outcomes, longest)
            sent += [request for request, _ in requests]
            client.send(requests)
        client.end()
        client.join()
        eventually(lambda: all(outcomes), 60, "each has a reply")
    assert outcomes == [[True]] * len(sent)
    first_xid, _ = server.deletes[0]
    assert server.deletes == [(xid, bytes(request.serialize())) for xid, request in enumerate(sent, first_xid)]
    eventually(lambda: max(server.requests)[1] == Close.type, 10, "the last xid; a ping, which has none, may follow")


def test_a_cut_anywhere_loses_no_callback(server, pki, caplog):
    outcomes = []
    hello = 49  # bytes of a connect, at least
    server.cuts = [(hello + random.randrange(random.choice((60, 9000))), n % 2 == 0) for n in range(12)]
    server.cuts.insert(0, (9, False))
    with client_of(server, pki) as client:
        while server.cuts or not client._connection._is_open:
            send(client, random.randrange(1, 5), outcomes, 1000)
            eventually(lambda: len(outcomes) < 100 or all(outcomes[:-100]))
            client.outage.restarts(server.address)  # or it would make pauses
        while outcomes[-1:] != [[True]]:  # the last cut may be still to come
            send(client, 1, outcomes, 1)
            eventually(lambda: all(outcomes))
    assert set(map(len, outcomes)) == {1}
    assert "it speaks no TLS" not in caplog.text
    xids = [xid for xid, _ in server.deletes]
    assert xids == sorted(set(xids))


def test_nothing_is_sent_after_the_end_of_a_connection(server, pki):
    """The session may not know of the end yet."""
    outcomes = []
    with client_of(server, pki) as client:
        client._connection.stop_sending()  # so does kazoo's thread, which then fails all requests
        assert not client.send(deletes(2, outcomes, 10))
        assert not client._pending
    assert outcomes == [[], []]


@pytest.fixture
def secured(pki):
    """A client that believes to be connected by TLS, and the server's end of its socket."""
    client = bare_client()
    ours, theirs = socket.socketpair()
    ends = []
    accepting = threading.Thread(target=lambda: ends.append(context_of(pki).wrap_socket(theirs, server_side=True)))
    accepting.start()
    context = TlsOptions(ca=str(pki / "ca.pem"), check_hostname=False).context()
    with context.wrap_socket(ours) as secured:
        accepting.join(10)
        secured.setblocking(False)
        client._connection._socket, client._connection._tls = secured, context
        with ends[0]:
            yield client, ends[0]


def replies(client, *sizes):
    """Let the client wait for replies of these sizes. Return its outcomes, and the replies."""
    outcomes = []
    data = b""
    for xid, size in enumerate(sizes, 1):
        client._pending.append((Delete("/", -1), Result(outcomes), xid))
        data += struct.pack("!iiqi", 16 + size, xid, 0, 0) + bytes(size)
    return outcomes, data


def test_replies_in_one_record_of_tls_are_handled_together(secured):
    """No event of the socket follows for what OpenSSL has read already. It would wait there for later replies."""
    client, server = secured
    outcomes, data = replies(client, 9000, 10, 5000, 10)
    server.sendall(data)
    client._connection._read_socket(1)
    assert outcomes == [[True]] * 4


def test_replies_over_tls_are_read_after_the_connection_was_dropped(secured):
    """They are decrypted, and nothing is sent unencrypted from then on."""
    client, server = secured
    outcomes, data = replies(client, 10)
    server.sendall(data)
    client.drop_connection()
    client._connection._read_socket(1)
    assert outcomes == [[True]]


def test_large_requests_are_in_the_socket_at_once(secured):
    """TLS takes them in several records. A process that ends now has sent all of them."""
    client, _ = secured
    client._connection._is_open = True
    outcomes = []
    client.send([(Delete(f"/{'x' * 30_000}", -1), Result(outcomes))])
    assert not client._connection._unwritten


@pytest.fixture
def woken():
    """A client that believes to be connected and can be woken, and the server's end of its socket."""
    client = bare_client()
    client.handler.start()
    handler = client._connection
    ours, theirs = socket.socketpair()
    handler._read_sock, handler._write_sock = socket.socketpair()
    with ours, theirs, handler._read_sock, handler._write_sock:
        ours.setblocking(False)
        handler._read_sock.settimeout(10)
        handler._socket, handler._is_open = ours, True
        yield client, theirs


def test_a_connection_that_cannot_be_written_is_over(woken):
    """The server may not notice it. The requests would wait for their replies for as long as a stall takes."""
    client, _ = woken
    client._connection._socket.shutdown(socket.SHUT_WR)
    client.send([(Delete("/a", -1), Result([]))])
    with pytest.raises(ConnectionDropped):
        client._connection._read_socket(1)


def test_replies_that_came_before_the_end_of_a_connection_are_handled(woken):
    client, server = woken
    outcomes, data = replies(client, 3000, 3000, 3000)
    server.sendall(data)
    client._connection._socket.shutdown(socket.SHUT_WR)
    client.send(deletes(1, outcomes, 1))
    with pytest.raises(ConnectionDropped):
        while True:
            client._connection._read_socket(1)
    assert outcomes == [[True]] * 3 + [[]]


def test_a_socket_that_stays_full_ends_the_connection(woken):
    """If there is room after all, the rest of the request is written before the next one."""
    client, server = woken
    requests = [(Delete(f"/{'x' * 1_000_000}", -1), Result([])), *deletes(1, [], 1)]
    client.send(requests[:1])
    assert client._connection._read_sock.recv(1), "kazoo's thread is to write the rest"
    with pytest.raises(client.handler.timeout_exception):
        client._connection._send_request(0.01, 0.01)
    client.send(requests[1:])
    server.settimeout(0.1)
    data = b""
    with contextlib.suppress(TimeoutError):
        while True:
            data += server.recv(100_000)
            client.send([])
    assert [data.index(bytes(request.serialize())) for request, _ in requests] == [12, 1_000_033]
