"""The ZooKeeper servers of the tests keep their data over a crash, say why they cannot start, and leave nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.ensemble import Ensemble, ServerFailed, ZooKeeperNotFound, find_classpath

pytestmark = pytest.mark.zookeeper


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
