"""However processes come and go, each that serves has one session, and none outlives its process for long."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.chaos.checker import ROOM
from support.chaos.clocks import ClockShim
from support.chaos.preload import needs_compiler
from support.chaos.report import Figures
from support.chaos.servers import serving
from support.chaos.slowdisk import write_whole
from support.chaos.website import Website
from support.chaos.worker_pool import WorkerPool
from support.ensemble import Ensemble
from support.zoo import Zoo, eventually

from django_zklock import zk_lock
from django_zklock.exceptions import LockLost, LockTimeout, ZooKeeperUnavailable
from django_zklock.signals import connection_state_changed

pytestmark = pytest.mark.zookeeper

SESSION_TIMEOUT = 4.0
TICK = 0.5  # seconds, of the test's servers
HOUR = 3600.0
LONG = 10.0  # seconds, the most these servers grant; a session that ends sooner was closed, and did not expire


# --- one session for each process that serves -----------------------------------------------------------------------


@pytest.mark.scenario("F45")
@pytest.mark.chaos
def test_a_server_that_reloads_has_one_session_and_leaves_none(zoo: Zoo, tmp_path: Path, figure: Figures) -> None:
    """With `runserver`, the process that serves has one for all its threads, and the one that watches files none."""
    serve = ("manage.py", "runserver", "{host}:{port}")
    with Website(tmp_path, zoo, *serve, session_timeout=LONG) as site:
        took = []
        for _ in range(3):
            (before,) = site.sell_many(20)
            sessions = site.sessions()
            (session,) = sessions.pop(before)
            assert list(sessions.values()) == [[]], "the process that watches has a session"
            write_whole(site.views, site.views.read_text() + "\n")  # else there are two changes, and two reloads
            eventually(lambda before=before: before not in site.workers(), 10)  # type: ignore[misc]
            ended = time.monotonic()
            eventually(lambda session=session: not site.knows(session), 1, "its session is left")  # type: ignore[misc]
            took.append(time.monotonic() - ended)
            eventually(site.is_served, 20)
        figure.spread("session gone after its process", took)


@pytest.mark.scenario("F45")
@pytest.mark.chaos
def test_a_preforking_server_has_one_session_a_worker_and_none_in_the_master(
    zoo: Zoo, tmp_path: Path, figure: Figures
) -> None:
    """The master has loaded the application with its locks; workers come and go, and so do their sessions."""
    served: set[int] = set()
    known: dict[int, str] = {}
    serve = ("prefork.py", "{host}", "{port}", "3", "20")
    with Website(tmp_path, zoo, *serve, session_timeout=LONG) as site:
        for _ in range(40):
            served |= site.sell_many(6)
            for pid, sessions in site.sessions().items():
                assert len(sessions) <= (0 if pid == site.process.pid else 1), f"{pid}: {sessions}"
                for session in sessions:
                    known[pid] = session
        assert len(served) > 6, "workers were replaced"
        gone = {session for pid, session in known.items() if pid not in site.workers()}
        eventually(lambda: not any(site.knows(session) for session in gone), 1, "sessions of ended workers are left")
        figure("workers", len(served))


# --- processes that fork, as many as they like ----------------------------------------------------------------------

FORKS = """
import os, sys, threading, time, traceback
seconds = float(sys.argv[1])
stop = []

def load(number):
    while not stop:
        with zk_lock(f"load/{number % 2}", timeout=20):
            pass

def child():
    began = time.monotonic()
    with zk_lock("child", timeout=4):
        pass
    return 0 if time.monotonic() - began < 5 else 71

def fork():
    pid = os.fork()
    if not pid:
        code = 70
        try:
            code = child()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    end = time.monotonic() + 15
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return "hangs"

def fork_often():
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        codes.append(fork())

codes = []
threads = [threading.Thread(target=load, args=(number,)) for number in range(4)]
forker = threading.Thread(target=fork_often)
for thread in (*threads, forker):
    thread.start()
forker.join()
stop.append(1)
for thread in threads:
    thread.join()
print(sorted(map(str, set(codes))), len(codes))
"""


@pytest.mark.scenario("F39")
@pytest.mark.chaos
@pytest.mark.timeout(150)
def test_no_fork_under_load_leaves_a_child_that_hangs(zoo: Zoo, figure: Figures) -> None:
    """For a minute, a child is forked while four threads take locks; each of them takes one, too."""
    # They end by os._exit: their sessions stay until they expire, which the server has to bear.
    process = zoo.spawn(FORKS, "60")
    try:
        output, errors = process.communicate(timeout=110)
    finally:
        process.kill()
    assert "Traceback" not in errors, errors
    codes, _, count = output.rpartition(" ")
    assert codes == "['0']", output + errors
    figure("forks", int(count))


# --- servers that come and go ---------------------------------------------------------------------------------------


@pytest.fixture
def strict() -> Iterator[Ensemble]:
    """Three servers that close the connection of a client that sends a request before its credentials."""
    properties = {
        "enforce.auth.enabled": "true",
        "enforce.auth.schemes": "digest",
        # ZooKeeper 3.8's followers, restarted under load, may fail to join a new leader, which waits for them in vain
        # ("NEWLEADER ACK ... is from a different epoch") for as long as this says, in ticks; then there is another one.
        "initLimit": "12",
    }
    with Ensemble(nodes=3, properties=properties) as ensemble:
        yield ensemble


@pytest.mark.scenario("F32")
@pytest.mark.chaos
@pytest.mark.timeout(400)
def test_no_server_refuses_a_client_whose_credentials_it_has_not_heard_yet(strict: Ensemble, figure: Figures) -> None:
    """Servers are killed one by one under locks that only their creator may read. No client gets `NoAuth`."""
    zoo = Zoo(strict.hosts, strict)
    zoo.client.add_auth("digest", "shop:secret")
    errors: list[BaseException] = []
    turns = [0] * 4
    reconnects: list[str] = []
    stop = threading.Event()

    def take_turns(number: int) -> None:
        while not stop.is_set():
            try:
                with zk_lock(f"shelf/{number % 2}", timeout=20):
                    turns[number] += 1
            except Exception as error:
                errors.append(error)
            time.sleep(0.001)

    def note(state: str, **_: object) -> None:
        reconnects.extend([state] if state == "connected" else [])

    def go_on() -> None:
        """Have everybody take turns again."""
        before = list(turns)
        eventually(lambda: all(now > then + 5 for now, then in zip(turns, before, strict=True)), 60, "no turns")

    connection_state_changed.connect(note)
    with zoo.configured(AUTH="shop:secret", ACL="creator"):
        threads = [threading.Thread(target=take_turns, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        try:
            for server in strict.servers * 2:
                server.kill()
                go_on()
                server.start()
                server.wait_ready(60)
                go_on()
        finally:
            stop.set()
            for thread in threads:
                thread.join(30)
        kinds = sorted({type(each).__name__ for error in errors for each in chain_of(error)})
        figure("turns", sum(turns))
        figure("reconnects", len(reconnects))
        figure("errors", f"{len(errors)} {' '.join(kinds)}".strip())
        assert len(reconnects) > 2, "no client connected to another server"
        assert not any(re.search("auth|permi", repr(each), re.IGNORECASE) for each in errors for each in chain_of(each))
        assert all(isinstance(error, (LockTimeout, LockLost, ZooKeeperUnavailable)) for error in errors), errors
        serving(zoo)
        zoo.assert_empty()
    zoo.close()


def chain_of(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what it was raised from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


# --- clocks that are wrong ------------------------------------------------------------------------------------------


@pytest.fixture
def ahead() -> Iterator[ClockShim]:
    """The clocks of the servers, an hour ahead of ours."""
    with ClockShim() as clocks:
        clocks.jump(realtime=HOUR)
        yield clocks


@pytest.fixture
def ensemble(ahead: ClockShim) -> Iterator[Ensemble]:
    """The servers of the pool."""
    with Ensemble(nodes=1, env=ahead.env) as ensemble:
        yield ensemble


@pytest.mark.scenario("F67")
@pytest.mark.chaos
@needs_compiler
@pytest.mark.timeout(120)
def test_wall_clocks_that_are_an_hour_off_mean_nothing(pool: WorkerPool, ahead: ClockShim, figure: Figures) -> None:
    """Neither the server's, which is ahead and then set back, nor that of one of its clients, which is behind."""
    with ClockShim() as behind:
        behind.jump(realtime=-HOUR)
        (a,) = pool.start("A", hosts=None, session_timeout=SESSION_TIMEOUT, **behind.env)
        b = pool.start_one("B")
        for _ in range(10):
            for worker in (a, b):
                worker.take()
                worker.release().result()

        a.take()
        (node,) = pool.zoo.contenders()
        created = pool.zoo.client.get(node)[1].ctime / 1000
        assert created - time.time() > HOUR - 100, "the server's clock is not ahead"
        waiting = b.acquire(timeout=30)
        pool.wait_contenders(2)
        ahead.jump(realtime=-2 * HOUR)
        assert not a.work(seconds=SESSION_TIMEOUT * 1.5).result()["lost"]
        assert not waiting.done()
        a.release().result()
        assert waiting.result()["granted"]

        began = time.monotonic()
        answer = a.acquire(timeout=1.5).result()
        assert not answer["granted"]
        assert 1.4 < answer["t"] - began < 1.5 + ROOM
        figure("a wait of 1.5 s took", answer["t"] - began, "s")

        killed = b.kill()
        answer = a.take(timeout=20)
        assert answer["t"] - killed < SESSION_TIMEOUT + 2 * TICK + ROOM
        figure("dead holder replaced after", answer["t"] - killed, "s")
        pool.assert_kept()
