"""The ZooKeeper servers of the tests keep their data over a crash, say why they cannot start, and leave nothing."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from support.ensemble import Ensemble, ServerFailed, ZooKeeperNotFound, find_classpath, four_letter

pytestmark = pytest.mark.zookeeper


def test_a_server_keeps_its_port_and_data_until_the_ensemble_is_stopped() -> None:
    """Also if a thread that has ended started it. Nothing is left after the stop."""
    ensemble = Ensemble()
    thread = threading.Thread(target=ensemble.start)
    thread.start()
    thread.join()
    (server,) = ensemble.servers
    client = KazooClient(ensemble.hosts, timeout=10)
    try:
        client.start(timeout=20)
        client.create("/before")
        crashed = server.pid
        server.kill()
        assert server.mode() is None
        server.start()
        assert server.wait_ready() == "standalone"
        assert server.pid != crashed
        assert client.retry(client.exists, "/before")
        pid, directory = server.pid, server.directory
    finally:
        client.stop()
        client.close()
        ensemble.stop()
    assert not directory.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(ConnectionRefusedError):
        four_letter("127.0.0.1", server.port, "ruok")


def test_a_server_that_cannot_start_says_why() -> None:
    """The error ends with the server's own log, and no process is left."""
    ensemble = Ensemble(properties={"tickTime": "soon"})
    with pytest.raises(ServerFailed, match="NumberFormatException"):
        ensemble.start()
    assert ensemble.servers == []


def test_the_error_without_zookeeper_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A wrong ZOOKEEPER_HOME is not ignored."""
    monkeypatch.setenv("ZOOKEEPER_HOME", str(tmp_path))
    with pytest.raises(ZooKeeperNotFound, match=r"apt-get install zookeeper.*brew.*docker"):
        find_classpath()
    (tmp_path / "lib").mkdir()
    for name in ("zookeeper-3.9.9.jar", "slf4j-api-2.0.jar"):
        (tmp_path / "lib" / name).touch()
    assert [jar.name for jar in find_classpath()] == ["slf4j-api-2.0.jar", "zookeeper-3.9.9.jar"]
