"""The dev server: what it needs and leaves, and its faults, as a client sees them."""

import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, NoAuthError, NoNodeError
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl
from support.chaos.servers import looking_in
from support.zoo import eventually

from django_zklock.testing.server import DevServer


def test_the_dev_server_restarts_on_its_port():
    server = DevServer()
    server.stop()
    server.start()
    port = server.port
    server.start()
    assert (server.address, server.hosts) == (f"127.0.0.1:{port}",) * 2
    assert (server.url(), server.url("/app/")) == (f"zk://127.0.0.1:{port}", f"zk://127.0.0.1:{port}/app")
    server.stop()
    server.stop()
    server.start()
    assert server.port == port
    assert server.paths("/zookeeper") == ["/zookeeper", "/zookeeper/config", "/zookeeper/quota"]
    server.stop()
    assert server.sessions() == []


def test_a_port_in_use_is_an_error_and_leaves_nothing():
    threads = set(threading.enumerate())
    with DevServer() as first:
        second = DevServer(first.port)
        with pytest.raises(OSError, match=r"(?i)address"):
            second.start()
        assert len(set(threading.enumerate()) - threads) == 1
        second.stop()


def written(server):
    with looking_in(server.hosts) as client:
        created = client.create("/new", include_data=True, ephemeral=True)
        return int(created[1].czxid)


def test_transaction_ids_rise_over_restarts():
    """Also of a server in memory, however soon the next one starts: a row that is fenced refuses lower ones."""
    ids = []
    first = DevServer()
    for server in (first, DevServer(), first):
        with server:
            ids.append(written(server))
    assert ids == sorted(set(ids))
    assert ids[-1] < 1 << 53


FORK = """
import os, signal, socket
from django_zklock.testing.server import DevServer
server = DevServer()
server.start()
with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
    child = os.fork()
    if child == 0:
        assert server.sessions() == []
        server.stop()
        signal.pause()
    server.stop()
    assert client.recv(1) == b""
try:
    socket.create_connection(("127.0.0.1", server.port), timeout=10)
except ConnectionRefusedError:
    print("refused")
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
"""


def test_a_forked_child_closes_the_port_of_the_dev_server():
    """Else clients of a server that was stopped would connect and wait for ever."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.stdout, done.returncode) == ("refused\n", 0), done.stderr


@pytest.fixture
def server():
    with DevServer(tick=0.1, container_check=0.1) as server:
        yield server


class Watched:
    def __init__(self, server, timeout=2.0):
        retry = KazooRetry(max_tries=-1, delay=0.01, max_delay=0.05)
        self.zk = KazooClient(server.hosts, timeout=timeout, connection_retry=retry)
        self.states = []
        self._changed = threading.Condition()
        self.zk.add_listener(self._note)
        self.zk.start()

    @property
    def id(self):
        session_id = self.zk.client_id[0]
        return session_id

    def _note(self, state):
        with self._changed:
            self.states.append(state)
            self._changed.notify_all()

    def until(self, *states):
        """Wait until it went through these states, in this order, and restart the count."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._went(states), 15), f"{self.states}, not {states}"
            self.states.clear()

    def _went(self, states):
        seen = iter(self.states)
        return all(state in seen for state in states)


LOST, SUSPENDED, CONNECTED = KazooState.LOST, KazooState.SUSPENDED, KazooState.CONNECTED


@contextmanager
def watched(server, **kwargs):
    client = Watched(server, **kwargs)
    client.until(CONNECTED)
    try:
        yield client
    finally:
        client.zk.stop()
        client.zk.close()


@pytest.fixture
def client(server):
    with watched(server) as client:
        yield client


def test_an_expired_session_loses_its_ephemerals(server, client):
    with watched(server) as other:
        client.zk.create("/mine", ephemeral=True)
        gone = threading.Event()
        other.zk.exists("/mine", watch=lambda event: gone.set())
        session = client.id
        assert server.expire(session)
        assert gone.wait(10)
        assert "/mine" not in server.paths()
        client.until(SUSPENDED, LOST, CONNECTED)
        assert client.id != session
        assert not server.expire(session)


def test_a_silent_session_expires(server):
    with watched(server, timeout=0.5) as client:
        client.zk.create("/mine", ephemeral=True)
        server.refuse = True
        eventually(lambda: not server.sessions())
        assert "/mine" not in server.paths()
        server.refuse = False
        client.until(SUSPENDED, LOST, CONNECTED)


def test_a_cut_client_comes_back_to_its_session(server, client):
    with watched(server) as other:
        client.zk.create("/mine", ephemeral=True)
        session = client.id
        assert server.cut(session) == 1
        client.until(SUSPENDED, CONNECTED)
        assert client.id == session
        assert other.states == []
        assert server.cut() == 2
        other.until(SUSPENDED, CONNECTED)
        assert "/mine" in server.paths()


def test_connections_can_be_refused(server, client):
    server.refuse = True
    assert server.refuse
    client.until(SUSPENDED)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port), timeout=5)
    assert not any(session.connected for session in server.sessions())
    server.refuse = False
    client.until(CONNECTED)


def test_a_stalled_server_drops_requests(server):
    with watched(server, timeout=0.5) as client:
        client.zk.create("/mine", ephemeral=True)
        server.stall = True
        pending = client.zk.create_async("/later")
        with pytest.raises(ConnectionLoss):
            pending.get(timeout=10)
        eventually(lambda: not server.sessions())
        assert server.paths("/mine") == []
        server.stall = False
        client.until(SUSPENDED, LOST, CONNECTED)
        assert server.paths("/later") == []


@pytest.mark.parametrize(
    ("op", "call", "done"),
    [
        ("create", lambda zk: zk.create_async("/new"), lambda paths: "/new" in paths),
        ("create", lambda zk: zk.create_async("/new", include_data=True), lambda paths: "/new" in paths),
        ("delete", lambda zk: zk.delete_async("/old"), lambda paths: "/old" not in paths),
        ("multi", lambda zk: zk.transaction().commit_async(), lambda paths: True),
        ("get_children", lambda zk: zk.get_children_async("/"), lambda paths: True),
        ("get", lambda zk: zk.get_async("/"), lambda paths: True),
    ],
)
def test_a_fault_loses_one_reply(server, client, op, call, done):
    client.zk.create("/old")
    lost = server.lose_reply(op)
    assert not lost.is_set()
    with pytest.raises(ConnectionLoss):
        call(client.zk).get(timeout=10)
    assert lost.wait(10)
    assert done(server.paths())
    client.until(SUSPENDED, CONNECTED)
    call(client.zk).exception is None  # noqa: B015 - it is answered, be it with an error
    client.zk.sync("/")


def test_only_the_reply_of_the_session_named_is_lost(server, client):
    with watched(server) as other:
        lost = server.lose_reply("set", session_id=other.id)
        client.zk.set("/", b"1")
        assert not lost.is_set()
        with pytest.raises(ConnectionLoss):
            other.zk.set("/", b"2")
        assert lost.wait(10)
        assert client.zk.get("/")[0] == b"2"


def test_there_are_no_faults_of_operations_that_do_not_exist(server):
    with pytest.raises(ValueError, match="'creat' is not one of the operations create, delete"):
        server.lose_reply("creat")
    with pytest.raises(ValueError, match="not one of the operations"):
        server.delay("nope", 1)


def test_operations_can_be_denied_below_a_path(server, client):
    """Alone, and as parts of a transaction."""
    client.zk.ensure_path("/a/b")
    server.deny("delete", "/a")
    server.deny("create", "/a/b")
    client.zk.create("/a/other")
    for call in (lambda: client.zk.delete("/a/b"), lambda: client.zk.create("/a/b/c", sequence=True)):
        with pytest.raises(NoAuthError):
            call()
    transaction = client.zk.transaction()
    transaction.set_data("/a", b"new")
    transaction.delete("/a/other")
    assert isinstance(transaction.commit()[1], NoAuthError)
    assert client.zk.get("/a")[0] == b""
    server.heal()
    client.zk.delete("/a", recursive=True)


def test_an_acl_is_told_and_forbids_nothing(client):
    acl = [make_digest_acl("anna", "secret", read=True)]
    client.zk.create("/a", acl=acl)
    client.zk.set("/a", b"1")
    assert client.zk.get_acls("/a")[0] == acl
    assert client.zk.set_acls("/a", OPEN_ACL_UNSAFE).aversion == 1


def test_operations_can_be_delayed(server, client):
    server.delay("create", 0.3)
    start = time.monotonic()
    slow, quick = client.zk.create_async("/slow"), client.zk.exists_async("/slow")
    eventually(lambda: "/slow" in server.paths())
    assert quick.get(timeout=10) is not None
    assert slow.get(timeout=10) == "/slow"
    assert time.monotonic() - start >= 0.3
    server.delay("create", 60)
    server.delay("create", 0)
    assert client.zk.create_async("/prompt").get(timeout=30) == "/prompt"


def test_a_paused_server_answers_and_expires_nothing(server):
    with watched(server, timeout=2.0) as client:
        client.zk.create("/mine", ephemeral=True)
        session = client.id
        server.pause()
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as waiting:
            waiting.sendall(b"ruok")
            late = client.zk.create_async("/late")
            client.until(SUSPENDED)
            assert not late.successful()
            assert server.paths("/late") == []
            assert [session.id for session in server.sessions()] == [session]
            server.resume()
            assert waiting.recv(4) == b"imok"
        client.until(CONNECTED)
        assert client.id == session
        assert server.paths("/late") == ["/late"]


def test_a_restart_with_data_keeps_sessions(server, client):
    changed = []
    client.zk.create("/mine", ephemeral=True)
    client.zk.get_children("/", watch=changed.append)
    session, port = client.id, server.port
    server.restart(down=0.1)
    client.until(SUSPENDED, CONNECTED)
    assert (client.id, server.port) == (session, port)
    assert "/mine" in server.paths()
    client.zk.create("/other")


def test_a_restart_without_data_ends_sessions(server, client):
    client.zk.create("/kept", b"")
    session = client.id
    server.restart(keep_data=False)
    client.until(SUSPENDED, LOST, CONNECTED)
    assert client.id != session
    with pytest.raises(NoNodeError):
        client.zk.get("/kept")
    assert client.zk.create("/first", include_data=True)[1].czxid == 2


def test_all_faults_can_be_healed(server, client):
    server.delay("get", 60)
    lost = server.lose_reply("get")
    server.pause()
    server.stall = True
    server.refuse = True
    server.heal()
    eventually(lambda: client.zk.connected)
    assert client.zk.retry(client.zk.get, "/")[0] == b""
    assert not lost.is_set()
    assert not server.refuse
    assert not server.stall
