"""A server that closes each session at its first request: the caller learns why, and the server is left in peace."""

import contextlib
import logging
import os
import signal
import socket
import struct
import threading
import time

import pytest
from django.test import override_settings
from support.faults import acquire_once, client, connected, proxied, session
from support.proxy import CREATE2, CREATE_CONTAINER, GET_CHILDREN, MULTI
from support.work import assert_refused
from support.zoo import eventually

from django_zklock import zk_lock
from django_zklock.core.zk import process
from django_zklock.core.zk.outage import CLOSED_AT_REQUEST, REFUSALS, REFUSED
from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.inspection import check_quorum


class Refusing:
    """A server that opens each session, and answers its first request with an error code, or not, and closes."""

    def __init__(self, code):
        self.sessions = 0
        self.code = code
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.where = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        with contextlib.suppress(OSError):  # the end
            while True:
                peer = self.listener.accept()[0]
                with peer, contextlib.suppress(OSError, struct.error):
                    self._refuse(peer)

    def _refuse(self, peer):
        request = self._open(peer)
        if request and self.code is not None:
            self._send(peer, request[:4] + struct.pack(">qi", 1, self.code))

    def _open(self, peer):
        if len(connect := self._frame(peer)) < 16:
            return b""  # a four-letter command
        self.sessions += 1
        self._send(peer, struct.pack(">iiqi16s", 0, struct.unpack_from(">i", connect, 12)[0], 1, 16, b"\1" * 16))
        return self._frame(peer)

    def _frame(self, peer):
        return peer.recv(min(struct.unpack(">i", peer.recv(4))[0], 4096))

    def _send(self, peer, body):
        peer.sendall(struct.pack(">i", len(body)) + body)

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self._thread.join()


@contextlib.contextmanager
def locks_at(hosts, **options):
    """Point the locks of this process to these servers. Its session is closed at the end."""
    with override_settings(ZKLOCK={"URL": f"zk://{hosts}/test", **options}):
        yield
        process.reset()


@pytest.fixture(params=[pytest.param(None, marks=pytest.mark.chaos), *REFUSALS], ids=["silent", "with its reason"])
def refusing(request):
    server = Refusing(request.param)
    with contextlib.closing(server), locks_at(server.where, CONNECT_TIMEOUT=0.7):
        yield server


def test_the_reason_reaches_each_caller_and_the_server_is_left_in_peace(refusing, caplog):
    reason = CLOSED_AT_REQUEST if refusing.code is None else REFUSALS[refusing.code]
    with caplog.at_level(logging.WARNING, "django_zklock"):
        with pytest.raises(ZooKeeperUnavailable) as raised, zk_lock("a", timeout=0):
            raise AssertionError("nothing is granted")
        assert reason in str(raised.value)
        assert 2 <= refusing.sessions <= 6
        with pytest.raises(ZooKeeperUnavailable) as raised:
            check_quorum(reply_timeout=0.5)
        assert refusing.sessions <= 8
        assert reason in str(raised.value)
    eventually(lambda: any("No connection" in record.getMessage() for record in caplog.records))
    assert sum("No connection" in record.getMessage() for record in caplog.records) == 1


class Hanging(Refusing):
    """A server that opens each session, and never answers a request, as a leader whose disk hangs."""

    def _refuse(self, peer):
        if self._open(peer):
            while peer.recv(4096):
                pass


def test_a_server_that_hangs_does_not_refuse():
    """This process ends such a connection. The next follows at once, so that a session outlasts the time."""
    with contextlib.closing(Hanging(None)) as server, locks_at(server.where, SESSION_TIMEOUT=1):
        raised = assert_refused(zk_lock("a", timeout=1), ZooKeeperUnavailable)
        assert CLOSED_AT_REQUEST not in str(raised)
        assert server.sessions >= 6


def test_two_names_of_a_server_are_one_server():
    server = Refusing(None)
    hosts = f"{server.where},{server.where.replace('127.0.0.1', 'localhost')}"
    with contextlib.closing(server), locks_at(hosts, CONNECT_TIMEOUT=1):
        assert_refused(zk_lock("a", timeout=1), ZooKeeperUnavailable)
        assert 2 <= server.sessions <= 5


@pytest.mark.parametrize(
    "operation", [CREATE_CONTAINER, pytest.param(GET_CHILDREN, marks=pytest.mark.chaos)], ids=["container", "children"]
)
def test_a_server_that_closes_each_connection_at_one_request_is_left_in_peace(proxy, monkeypatch, operation):
    """A server or a proxy that does not know it answers all others. It may be the first request of a connection."""
    zklock = {"URL": f"zk://{proxy.address}/new{time.monotonic_ns()}", "CONNECT_TIMEOUT": 3}
    monkeypatch.setattr("django_zklock.core.zk.outage.LONGEST_PAUSE", 1.0)
    for _ in range(100):
        proxy.kill_before_op(operation)
    with override_settings(ZKLOCK=zklock):
        with pytest.raises(ZooKeeperUnavailable, match=CLOSED_AT_REQUEST):
            zk_lock("a").acquire(timeout=3)
        assert 2 <= proxy.connected <= 16  # 50 without pauses
        proxy.heal()  # as after an upgrade
        acquire_once("a", timeout=3)
        process.reset()


def test_a_server_that_was_away_in_between_refuses_no_request(proxy):
    """It has restarted each time, whatever it was asked."""
    acquire_once("a")
    for _ in range(3):
        proxy.refuse = True
        proxy.kill_before_op(CREATE2)
        assert_refused(zk_lock("a", timeout=0.3), ZooKeeperUnavailable)
        eventually(lambda: REFUSED in client().outage.explain())
        proxy.refuse = False
        connected()
        assert CLOSED_AT_REQUEST not in client().outage.explain()


def test_a_network_that_breaks_again_and_again_is_no_refusal(zoo):
    """Each connection lasts until the next heartbeat. With pauses, the lease would end."""
    with proxied(zoo, 9) as proxy, zk_lock("a", abort_on="lost") as hold:
        for _ in range(5):
            killed, lease = proxy.kill_before_op(MULTI), session().lease.until
            assert killed.wait(30)
            eventually(lambda lease=lease: session().lease.until > lease and not session().suspect)
        hold.check()
        assert not client().outage.closings


PAUSED = """
import contextlib, os, signal, time
from django_zklock.core.zk.connection import Connection
from django_zklock.core.zk.outage import Outage
from django_zklock.exceptions import LockLost

holds, stops, ping = [], [], Connection._send_ping

def pause(connection, timeout):
    ping(connection, timeout)
    if holds:
        holds.clear()
        stops.append(1)
        time.sleep(0.1)  # the reply arrives, and is read after the next request
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(0.1)  # a thread may go on for a moment
        connection.client.get_children_async("/")
        connection._send_request(timeout, timeout)

Connection._send_ping = pause
Outage.closed = lambda *found, **more: print("blamed", found)
while len(stops) < 4:
    with contextlib.suppress(LockLost), zk_lock("a", timeout=20) as hold:
        holds.append(hold)
        while not hold.lost:
            time.sleep(0.001)
print("done")
"""


def test_a_process_that_is_paused_again_and_again_blames_no_request(zoo):
    """Its session has ended meanwhile, so the server closes the connection at whatever it sends next."""
    with zoo.running(PAUSED, ZKLOCK_URL=zoo.url(session_timeout=1)) as process:
        for _ in range(4):
            state = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            assert state is not None
            assert state.si_code == os.CLD_STOPPED, process.communicate()
            zoo.wait_contenders("a", 0)
            process.send_signal(signal.SIGCONT)
        printed, errors = process.communicate(timeout=50)
    assert printed == "done\n", errors
