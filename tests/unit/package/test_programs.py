"""One message names all programs that are missing, and one command installs them."""

import os

import pytest
from support import debian


def find_redis():
    raise debian.NotInstalled("Redis server", "redis-server")


def find_zookeeper():
    raise debian.NotInstalled("ZooKeeper", "libzookeeper-java", "default-jre-headless")


def find_sh():
    return "/bin/sh"


@pytest.fixture(autouse=True, params=["apt-get", "dnf", "apk", "brew"])
def manager(request, tmp_path, monkeypatch):
    """The package manager of a machine on which an ordinary user runs the tests, outside of CI."""
    name = request.param
    (tmp_path / name).touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for variable in ("CI", "ZKLOCK_TESTS_ALL"):
        monkeypatch.delenv(variable, raising=False)
    return name


COMMANDS = {
    "apt-get": "sudo apt-get install --no-install-recommends redis-server libzookeeper-java default-jre-headless",
    "dnf": "sudo dnf install redis java-latest-openjdk-headless; unpack https://zookeeper.apache.org/releases.html",
    "apk": "sudo apk add redis openjdk21-jre-headless; unpack https://zookeeper.apache.org/releases.html",
    "brew": "brew install redis zookeeper openjdk",
}


def test_one_command_installs_all_that_is_missing(manager, capsys):
    debian.ensure(find_redis, find_sh, find_zookeeper, or_skip=True)
    said = capsys.readouterr().out
    assert "no Redis server; no ZooKeeper" in said
    assert COMMANDS[manager] in said
