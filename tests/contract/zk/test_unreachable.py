"""When there is no connection, the error names the server and the cause, and the log has one line for the outage."""

import contextlib
import logging
import random
import re
import socket
import threading

import pytest
from django.test import override_settings
from kazoo.exceptions import AuthFailedError
from kazoo.protocol.serialization import GetData
from support.ensemble import free_ports
from support.frames import frames_with
from support.work import assert_refused
from support.zoo import eventually

from django_zklock import zk_lock
from django_zklock.core.zk import process
from django_zklock.core.zk.codes import CREDENTIALS
from django_zklock.core.zk.errors import translate
from django_zklock.core.zk.outage import CLOSED
from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.testing.server import DevServer


def failure(where, *, scheme="zk", connect_timeout=1.0):
    """Return the error of an acquire at these servers. Its cause is the same after each server has failed."""
    zklock = {"URL": f"{scheme}://{where}/test", "CONNECT_TIMEOUT": connect_timeout}
    with override_settings(ZKLOCK=zklock):
        raised = assert_refused(zk_lock("a", timeout=0), ZooKeeperUnavailable)
        session = process.current()
        eventually(lambda: session.outage._logged)
        text = str(raised)
        assert session.explain() == re.sub(r" within \d\.\d s", "", text)
        assert bool(session.outage.closings) is (CLOSED in text)  # then it is tried less often
    return re.sub(r"within \d\.\d s", "within N s", text)


@contextlib.contextmanager
def answering(answer):
    """Accept connections and reply with `answer`; b"": close them at once; None: send nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as kept:

        def serve():
            with contextlib.suppress(OSError):  # the end
                while True:
                    peer = kept.enter_context(listener.accept()[0])
                    if answer:
                        peer.recv(1)
                        peer.sendall(answer)
                    if answer == b"":
                        peer.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize("where", ["127.0.0.1:1", "localhost:1"])
def test_a_closed_port_on_loopback_is_named_with_its_cause_and_the_dev_server(where):
    assert failure(where) == (
        f"No connection to ZooKeeper at {where} within N s: connection refused. "
        "For development, start one with: python manage.py zklock devserver"
    )


def test_each_of_several_servers_is_named_with_its_own_cause():
    port = free_ports(1)[0]
    said = failure(f"Nowhere.invalid:2181,localhost:{port}", connect_timeout=3)
    assert said == (
        "No connection to ZooKeeper within N s. "
        f"Nowhere.invalid:2181: no such host; localhost:{port}: connection refused."
    )


def test_silent_servers_leave_time_for_the_one_that_answers(server, monkeypatch):
    """All servers are tried within `CONNECT_TIMEOUT`, the best one last."""
    good = int(server.hosts.rpartition(":")[2])
    monkeypatch.setattr(random, "shuffle", lambda hosts: hosts.sort(key=lambda host: host[-1] == good))
    with answering(None) as silent, answering(None) as another:
        options = {"URL": f"zk://{silent},{another},{server.hosts}/test", "CONNECT_TIMEOUT": 6}
        with override_settings(ZKLOCK=options), zk_lock("a") as hold:
            hold.check()


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (None, "it accepts connections, but does not answer as ZooKeeper does"),
        (b"", CLOSED),
        (b"-ERR unknown command\r\n", "it is no ZooKeeper; its answer begins with '-ERR'"),
        (b"\x15\x03\x03\x00\x02\x02\x28", "it expects TLS; use zk+tls://, or its port without TLS"),
    ],
    ids=["silent", "closing", "text", "tls"],
)
def test_a_server_of_another_kind_is_recognized(answer, cause):
    with answering(answer) as where:
        assert failure(where) == f"No connection to ZooKeeper at {where} within N s: {cause}."


def test_tls_to_a_port_without_it_is_recognized(server):
    where = server.hosts
    assert failure(where, scheme="zk+tls", connect_timeout=5) == (
        f"No connection to ZooKeeper at {where} within N s: "
        "it speaks no TLS; use its port for TLS, or zk:// instead of zk+tls://."
    )
    assert "; 127.0.0.1:1: connection refused." in failure(f"{where},127.0.0.1:1", scheme="zk+tls", connect_timeout=5)


@pytest.mark.timed
def test_refused_credentials_are_recognized(server):
    """The server closes the connection. The message is the same for a request that was sent before."""
    reason = CREDENTIALS
    options = {"URL": f"zk://{server.hosts}/test", "CONNECT_TIMEOUT": 1, "AUTH": [("nothing", "user:password")]}
    with override_settings(ZKLOCK={**options, "SESSION_TIMEOUT": 2}):
        assert_refused(zk_lock("a", timeout=0), ZooKeeperUnavailable, re.escape(reason))
        eventually(lambda: process.current().outage._logged)
        eventually(lambda: process.current().explain() == f"No connection to ZooKeeper at {server.hosts}: {reason}.")
    assert reason in str(translate(AuthFailedError(), GetData("/", None)))


@pytest.mark.timed
@pytest.mark.parametrize(("url", "scheme"), [("zk", "nothing"), ("zk+tls", "digest")])
def test_no_frame_of_a_failed_connect_shows_a_credential(server, caplog, url, scheme):
    caplog.set_level(logging.DEBUG)
    options = {"URL": f"{url}://{server.hosts}/x", "AUTH": [(scheme, "user:MARKEDSECRET")], "CONNECT_TIMEOUT": 1}
    with override_settings(ZKLOCK=options), pytest.raises(ZooKeeperUnavailable) as caught, zk_lock("a"):
        raise AssertionError("there is no connection")
    logged = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert [frames_with(error, "MARKEDSECRET") for error in (caught.value, *logged)] == [[]] * (1 + len(logged))
    assert "MARKEDSECRET" not in caplog.text
    assert "passwd" not in caplog.text
    assert "Connecting to" in caplog.text


def test_an_outage_is_one_line_of_the_log(caplog):
    port = free_ports(1)[0]
    zklock = {"URL": f"zk://127.0.0.1:{port}/test", "CONNECT_TIMEOUT": 1}
    with override_settings(ZKLOCK=zklock), caplog.at_level(logging.DEBUG, "django_zklock"):
        for _ in range(2):
            assert_refused(zk_lock("a", timeout=0), ZooKeeperUnavailable)
        with DevServer(port=port):
            eventually(lambda: process.current().connected, 30)
            with zk_lock("a", timeout=30):
                assert process.current().explain() == f"ZooKeeper at 127.0.0.1:{port} did not answer."
            process.reset()
    loud = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    [line] = [line for line in loud if "No connection" in line]
    assert line.startswith(f"No connection to ZooKeeper at 127.0.0.1:{port}: connection refused. ")
    tries = [record.levelno for record in caplog.records if "Connection dropped" in record.getMessage()]
    assert len(tries) > 2
    assert set(tries) == {logging.DEBUG}
