"""The servers that the other tests break are real, start in a moment, and can be broken one by one."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest
from kazoo.client import KazooClient
from support.ensemble import (
    Ensemble,
    ServerFailed,
    ZooKeeperNotFound,
    find_classpath,
    four_letter,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.zookeeper


def store(hosts: str, path: str) -> None:
    client = KazooClient(hosts, timeout=10)
    client.start(timeout=20)
    client.create(path, b"kept")
    client.stop()
    client.close()


def is_stored(hosts: str, path: str) -> bool:
    client = KazooClient(hosts, timeout=10)
    client.start(timeout=20)
    try:
        return client.exists(path) is not None
    finally:
        client.stop()
        client.close()


def test_one_server_keeps_its_port_and_data_over_a_crash() -> None:
    """A single server that is killed and started again is the same server."""
    with Ensemble() as ensemble:
        (server,) = ensemble.servers
        assert server.mode() == "standalone"
        assert ensemble.leader is server
        assert ensemble.hosts == server.address
        assert ensemble.url("app") == f"zk://{server.address}/app"
        store(ensemble.hosts, "/before")
        pid = server.pid
        server.kill()
        assert not server.running
        assert server.mode() is None
        server.start()
        assert server.wait_ready() == "standalone"
        assert server.pid != pid
        assert is_stored(ensemble.hosts, "/before")


def test_stopping_the_ensemble_leaves_nothing() -> None:
    """Processes, ports and files are gone afterwards; started again, it is empty and has the same ports."""
    ensemble = Ensemble()
    ensemble.start()
    hosts, directory, pid = ensemble.hosts, ensemble.servers[0].directory, ensemble.servers[0].pid
    store(hosts, "/before")
    ensemble.stop()
    assert not directory.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(ConnectionRefusedError):
        four_letter("127.0.0.1", int(hosts.rpartition(":")[2]), "ruok")
    with ensemble:
        assert ensemble.hosts == hosts
        assert not is_stored(hosts, "/before")


def test_a_given_directory_is_used_and_left(tmp_path: Path) -> None:
    """Settings reach the server, and data in a directory of the caller's survive the ensemble."""
    for _ in range(2):
        with Ensemble(directory=tmp_path, tick=0.4, max_session_timeout=30, fsync=True) as ensemble:
            settings = four_letter("127.0.0.1", ensemble.servers[0].port, "conf")
            assert "tickTime=400" in settings
            assert "maxSessionTimeout=30000" in settings
            if not is_stored(ensemble.hosts, "/before"):
                store(ensemble.hosts, "/before")
    assert (tmp_path / "server-1" / "server.log").exists()


def test_a_server_started_by_a_thread_survives_it() -> None:
    """The servers are tied to the process, not to the thread that happened to start them."""
    ensemble = Ensemble()
    thread = threading.Thread(target=ensemble.start)
    thread.start()
    thread.join()
    try:
        assert ensemble.servers[0].mode() == "standalone"
    finally:
        ensemble.stop()


def test_a_server_that_cannot_start_says_why() -> None:
    """The error ends with what the server wrote before it ended, and nothing stays behind."""
    ensemble = Ensemble(properties={"tickTime": "soon"})
    with pytest.raises(ServerFailed, match="NumberFormatException"):
        ensemble.start()
    assert ensemble.servers == []


def test_a_machine_without_zookeeper_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """ZOOKEEPER_HOME is not silently ignored, and the message is enough to go on."""
    monkeypatch.setenv("ZOOKEEPER_HOME", str(tmp_path))
    with pytest.raises(ZooKeeperNotFound, match=r"apt-get install zookeeper.*brew.*docker"):
        find_classpath()
    (tmp_path / "lib").mkdir()
    for name in ("zookeeper-3.9.9.jar", "slf4j-api-2.0.jar"):
        (tmp_path / "lib" / name).touch()
    assert [jar.name for jar in find_classpath()] == ["slf4j-api-2.0.jar", "zookeeper-3.9.9.jar"]
