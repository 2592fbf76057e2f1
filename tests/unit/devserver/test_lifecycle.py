"""Starting and stopping the dev server: what it needs, and what it leaves."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.chaos.servers import looking_in

from django_zklock.testing.server import DevServer
from django_zklock.testing.server.acl import OPEN
from django_zklock.testing.server.codes import Mode
from django_zklock.testing.server.snapshot import load, save
from django_zklock.testing.server.tree import Origin, Tree


def test_the_dev_server_restarts_on_its_port() -> None:
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


def test_a_port_in_use_is_an_error_and_leaves_nothing() -> None:
    threads = set(threading.enumerate())
    with DevServer() as first:
        second = DevServer(first.port)
        with pytest.raises(OSError, match=r"(?i)address"):
            second.start()
        assert len(set(threading.enumerate()) - threads) == 1
        second.stop()


def test_a_fault_before_the_start_is_active_from_the_start() -> None:
    """So that a client can be shown a server that is down from the beginning."""
    server = DevServer()
    server.refuse = True
    with server:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port), timeout=10)
        server.refuse = False
        socket.create_connection(("127.0.0.1", server.port), timeout=10).close()


def test_data_outlives_a_stop(tmp_path: Path) -> None:
    file = tmp_path / "data.json"
    with DevServer(data=file) as server, looking_in(server.hosts) as client:
        client.create("/a", b"\0\xff")
        client.set("/a", b"\1\xff")
        client.create("/a/s-", sequence=True)
        client.create("/a/e", ephemeral=True)
        before = client.get("/a")[1].mzxid
    assert list(tmp_path.iterdir()) == [file]
    with DevServer(data=file) as server, looking_in(server.hosts) as client:
        data, stat = client.get("/a")
        assert (data, stat.version, stat.mzxid) == (b"\1\xff", 1, before)
        assert client.get_children("/a") == ["s-0000000000"]
        path, made = client.create("/a/s-", sequence=True, include_data=True)
        assert path == "/a/s-0000000002"
        assert made.czxid > before


def written(server: DevServer) -> int:
    with looking_in(server.hosts) as client:
        created = client.create("/new", include_data=True, ephemeral=True)
        return int(created[1].czxid)


def test_transaction_ids_rise_over_restarts() -> None:
    """Also of a server in memory, however soon the next one starts: a row that is fenced refuses lower ones."""
    ids = []
    first = DevServer()
    for server in (first, DevServer(), first):
        with server:
            ids.append(written(server))
    assert ids == sorted(set(ids))
    assert ids[-1] < 1 << 53


def test_transaction_ids_rise_though_the_clock_was_set_back(tmp_path: Path) -> None:
    file = tmp_path / "data.json"
    save(file, Tree(), 1 << 60)
    with DevServer(data=file) as server:
        assert written(server) > 1 << 60


def test_a_snapshot_has_all_znodes_but_ephemerals(tmp_path: Path) -> None:
    tree = Tree()
    for path, mode in (("/c", Mode.CONTAINER), ("/c/x", Mode.PERSISTENT), ("/t", Mode.TTL), ("/e", Mode.EPHEMERAL)):
        tree.create(path, None, OPEN, mode, Origin(session=1, zxid=7, now=99), ttl=5 if mode.ttl else None)
    save(tmp_path / "file", tree, 7)
    again, zxid = load(tmp_path / "file")
    assert zxid == 7
    assert again.expiring == {"/c", "/t"}
    assert again.paths() == [path for path in tree.paths() if path != "/e"]
    assert again.nodes["/c/x"].stat() == tree.nodes["/c/x"].stat()
    assert again.nodes[""] is again.nodes["/"]
    (tmp_path / "file").write_text("{}")
    with pytest.raises(ValueError, match="not a snapshot"), DevServer(data=tmp_path / "file"):
        pass


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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_closes_the_port_of_the_dev_server() -> None:
    """Else clients of a server that was stopped would connect and wait for ever."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.stdout, done.returncode) == ("refused\n", 0), done.stderr


def test_calls_from_many_threads_are_all_answered() -> None:
    server = DevServer()
    server.start()
    go = threading.Event()
    answers: list[int] = []

    def ask() -> None:
        go.wait(10)
        answers.extend(len(server.paths()) for _ in range(200))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    go.set()
    server.stop()
    for thread in threads:
        thread.join(30)
    assert answers == [4] * 1600
