"""The servers that the other tests break are real, start in a moment, and can be broken one by one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest
from kazoo.client import KazooClient

from django_zklock.testing.ensemble import (
    Ensemble,
    ServerFailed,
    ZooKeeperNotFound,
    find_classpath,
    four_letter,
    free_ports,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.zookeeper


@pytest.fixture(scope="module")
def three() -> Iterator[Ensemble]:
    with Ensemble(nodes=3) as ensemble:
        yield ensemble


@pytest.fixture
def whole(three: Ensemble) -> Ensemble:
    """The three servers, all of them serving, whatever the test before did."""
    for server in three.servers:
        server.start()
        server.resume()
    for server in three.servers:
        server.wait_ready()
    return three


def until(condition: Callable[[], bool], timeout: float = 20.0) -> None:
    """Ask a server again and again: it tells nobody when its mode changes."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not in {timeout:g} s"
        time.sleep(0.02)


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


def test_a_given_directory_and_port_are_used_and_left(tmp_path: Path) -> None:
    """Settings reach the server, and data in a directory of the caller's survive the ensemble."""
    (port,) = free_ports(1)
    for _ in range(2):
        with Ensemble(port=port, directory=tmp_path, tick=0.4, max_session_timeout=30, fsync=True) as ensemble:
            assert ensemble.servers[0].port == port
            settings = four_letter("127.0.0.1", port, "conf")
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


@pytest.mark.chaos
def test_three_servers_have_one_leader(whole: Ensemble) -> None:
    """They form a quorum."""
    assert sorted(str(server.mode()) for server in whole.servers) == ["follower", "follower", "leader"]
    assert whole.leader not in whole.followers
    assert whole.hosts == ",".join(server.address for server in whole.servers)


@pytest.mark.chaos
def test_the_others_elect_when_the_leader_is_killed(whole: Ensemble) -> None:
    """Two of three go on, and the third joins them again."""
    killed = whole.leader
    killed.kill()
    until(lambda: any(server.mode() == "leader" for server in whole.servers))
    assert whole.leader is not killed
    killed.start()
    assert killed.wait_ready() == "follower"


@pytest.mark.chaos
def test_one_of_three_serves_nobody(whole: Ensemble) -> None:
    """Without a quorum a server runs, and does not serve; a stop is as good as a crash for that."""
    for follower in whole.followers:
        follower.stop()
    left = next(server for server in whole.servers if server.running)
    until(lambda: left.mode() is None)
    with pytest.raises(ServerFailed, match=r"was not ready within 0.1 s"):
        left.wait_ready(timeout=0.1)


@pytest.mark.chaos
def test_a_paused_server_answers_when_resumed(whole: Ensemble) -> None:
    """A paused process accepts connections and answers none of them."""
    follower = whole.followers[0]
    follower.pause()
    with pytest.raises(TimeoutError):
        four_letter("127.0.0.1", follower.port, "ruok", timeout=0.3)
    follower.resume()
    assert four_letter("127.0.0.1", follower.port, "ruok", timeout=20) == "imok"


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.chaos
def test_in_the_foreground_it_ends_with_its_signal(number: signal.Signals, tmp_path: Path) -> None:
    """`python -m` prints the URL, and its server goes when it goes; on Linux even when it was killed."""
    if number == signal.SIGKILL and sys.platform != "linux":
        pytest.skip("needs PR_SET_PDEATHSIG")
    command = [sys.executable, "-m", "django_zklock.testing.ensemble", "--print-url"]
    command += ["--directory", str(tmp_path)]  # nobody is left to remove one of its own after a SIGKILL
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        port = int(url.removeprefix("zk://127.0.0.1:"))
        assert four_letter("127.0.0.1", port, "ruok", timeout=10) == "imok"
        process.send_signal(number)
        process.wait(20)
    if number != signal.SIGKILL:
        assert process.returncode == 0
    until(lambda: refuses(port))


def refuses(port: int) -> bool:
    try:
        four_letter("127.0.0.1", port, "ruok", timeout=0.5)
    except TimeoutError:
        return False
    except OSError:
        return True
    return False
