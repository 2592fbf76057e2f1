"""A session is replaced when its client fails, reports its states, and ends all waits when it is closed."""

import signal
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
from kazoo.protocol.serialization import Create2
from support.faults import BackgroundCall, acquire_once, client, connected, proxied, results, within
from support.proxy import CONNECT
from support.signalled import signalled
from support.work import sleep_in_pieces
from support.zoo import eventually

from django_zklock import zk_lock
from django_zklock.core.execution.waiters import ThreadWaiter
from django_zklock.core.log import flush
from django_zklock.core.protocol.contender import CallerWait, Contender
from django_zklock.core.protocol.spec import Caller
from django_zklock.core.protocol.story import StoryRun
from django_zklock.core.zk import process
from django_zklock.core.zk.session import Session, SessionObserver
from django_zklock.exceptions import LockLost, ZkLockError, ZooKeeperUnavailable
from django_zklock.locks.lock import Lock


def test_an_error_in_the_thread_of_the_client_costs_a_connection_only(zoo):
    """The request cannot be written: kazoo's thread would end. Our own names are checked before."""
    with zk_lock("a") as hold, signalled("connection_state_changed") as sent:
        session = process.current()
        before, session_id = client(), session.session_id
        before._call(Create2("/\ud83d", b"", [], 0), before.handler.async_result())
        eventually(lambda: [kwargs["state"] for _, kwargs in sent][-2:] == ["suspended", "connected"])
        eventually(lambda: hold.state == "held")
        assert (client(), session.session_id) == (before, session_id)


def test_another_session_stops_the_work_although_nobody_tells_of_it(zoo):
    """ZooKeeper does. A server of another make may just answer a reconnect with a new session."""
    with proxied(zoo) as proxy:
        with within(10), pytest.raises(LockLost), zk_lock("a", abort_on="lost"):
            proxy.alter_reply(CONNECT, lambda reply: reply[:8] + bytes([*reply[8:15], reply[15] ^ 1]) + reply[16:])
            proxy.cut_all()
            sleep_in_pieces(40)
        connected()


def test_the_states_of_the_connection_are_signalled_in_order(zoo):
    with signalled("connection_state_changed") as sent:
        acquire_once("a")
        session = process.current()
        session_id = session.session_id
        session.post(client().drop_connection)
        eventually(lambda: len(sent) >= 3)
        process.reset()
        eventually(lambda: len(sent) >= 4)
    assert [(kwargs["previous"], kwargs["state"], kwargs["session_id"]) for _, kwargs in sent] == [
        ("connecting", "connected", session_id),
        ("connected", "suspended", session_id),
        ("suspended", "connected", session_id),
        ("connected", "lost", None),
    ]
    assert {(kwargs["sender"], kwargs["thread"]) for _, kwargs in sent} == {(Session, "zklock-signals")}


@pytest.mark.parametrize("outage", ["never connected", "refused", "closed"])
def test_a_session_without_a_connection_for_long_is_asked_for_again(zoo, outage):
    """A server that has lost data refuses a client that has seen more. It gets another chance after three timeouts."""
    with proxied(zoo, 1) as proxy:
        before = connected().session_id if outage != "never connected" else None
        for _ in range(30 if outage == "closed" else 0):
            proxy.kill_before_op(CONNECT)
        proxy.refuse = outage != "closed"
        proxy.cut_all()
        session = process.current()
        if before is not None:
            eventually(lambda: client().last_zxid == 0, 30)
        assert session.session_id == before
        proxy.heal()
        with zk_lock("a", timeout=20) as hold:
            hold.check()


def test_a_session_whose_client_ends_before_it_is_woken_is_closed(zoo, monkeypatch):
    """Its thread sees that it should end, and closes its sockets, just before `end` wakes it."""

    def look_and_wait():
        stopped = is_stopped()
        if threading.current_thread().name == "zklock-loop":
            client.drop_connection()
            client.join()
        return stopped

    with zoo.configured("127.0.0.1:1"):
        session = process.current()
        client = eventually(lambda: session._client)
        is_stopped = client._connection.connection_stopped.is_set
        eventually(lambda: not is_stopped())
        monkeypatch.setattr(client._connection.connection_stopped, "is_set", look_and_wait)
        process.reset(timeout=10)
        assert not session.loop._thread.is_alive()


def refused(proxy):
    """Connect, cut the connection, and return the session when a server has closed its connections."""
    session = connected()
    session.wanted_until = 0.0
    for _ in range(30):
        proxy.kill_before_op(CONNECT)
    proxy.cut_all()
    eventually(lambda: 2 in [closings.count for closings in session.outage.closings.values()])
    return session


@pytest.mark.parametrize("proxy", [4], indirect=True)
def test_a_story_that_waits_for_a_connection_ends_on_one_unless_it_is_stopped(zoo, proxy, caplog):
    """A server that has closed connections is tried for it. The first connection ends before the story has a reply."""
    replies = []
    session = refused(proxy)

    class Ending(SessionObserver):
        def on_connected(self, *, resumed):
            session.observers.pop(self)
            session.requests.close()
            client().drop_connection()

    def list_root():
        return (yield partial(session.gateway.children, "/"))

    stopped, running = (StoryRun(session, list_root, replies.append) for _ in range(2))
    session.post(session.observers.setdefault, Ending(), None)
    stopped.start()
    running.start()
    stopped.stop()
    proxy.heal()
    (names,) = eventually(lambda: replies)
    assert "zookeeper" in names
    assert flush(5)
    assert "failed" not in caplog.text


@pytest.mark.parametrize(("longest", "heals"), [(0.1, False), (60.0, True)])
def test_a_session_without_a_connection_is_closed_soon_or_as_soon_as_it_has_one(zoo, monkeypatch, longest, heals):
    """It tries a server that has closed its connections, although nobody waits for a lock."""
    monkeypatch.setattr("django_zklock.core.zk.session.CLOSE_WAIT", longest)
    monkeypatch.setattr("django_zklock.core.zk.outage._pause", lambda count: count / 2 if heals or count < 2 else 600.0)
    with proxied(zoo, 1) as proxy:
        session = refused(proxy)
        closing = BackgroundCall(lambda: process.reset(timeout=20))
        eventually(lambda: session.closing)
        if heals:
            closing.join(2.2)
            assert closing.is_alive(), "the caller waits for it"
            proxy.heal()
        closing.result()
    assert not session.loop._thread.is_alive()


def test_a_waiter_that_cannot_handle_a_cut_is_told_and_stops_no_other(zoo, proxy, monkeypatch, caplog):
    def fail_once(self, *, resumed):
        monkeypatch.undo()
        raise RuntimeError("the test says so")

    with zoo.hold_elsewhere("a"):
        waiters = [BackgroundCall(lambda: acquire_once("a", timeout=30)) for _ in range(2)]
        zoo.wait_contenders("a", 3)
        monkeypatch.setattr(Contender, "on_connected", fail_once)
        proxy.cut_all()
        zoo.wait_contenders("a", 2)
    with pytest.raises(ZkLockError, match="the test says so"):
        results(waiters)
    zoo.wait_contenders("a", 0)
    assert flush(5)
    assert "failed on a change of the session" in caplog.text


def test_a_contender_that_starts_while_the_session_closes_is_told(zoo, caplog):
    """It was not there yet when the others got the error, and could wait for ever."""
    with proxied(zoo) as proxy:
        session = connected()
        proxy.delay = 60.0
        closing = BackgroundCall(process.reset)
        eventually(lambda: session.closing)
        waiter = ThreadWaiter()
        wait = CallerWait(waiter.set)
        Contender(session, Lock("late").spec, Caller(thread="", what="test"), wait, waits=True).start()
        assert isinstance(waiter.wait(30), ZooKeeperUnavailable)
        proxy.heal()
        closing.result()
    assert flush(5)
    assert "Traceback" not in caplog.text


def test_a_wait_without_a_limit_ends_when_the_session_is_closed(zoo):
    with zoo.hold_elsewhere("a"):
        waiter = BackgroundCall(lambda: zk_lock("a").acquire())
        zoo.wait_contenders("a", 2)
        process.reset()
        with pytest.raises(ZooKeeperUnavailable):
            waiter.result(30)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_threads_of_the_package_receive_no_signals(zoo):
    with zk_lock("threads"):
        threads = [thread for thread in threading.enumerate() if thread.name in ("zklock-loop", "zklock-connection")]
        assert len(threads) == 2
        for thread in threads:
            status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
            (blocked,) = (int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigBlk"))
            for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGURG):
                assert blocked & 1 << (number - 1)
            assert not blocked & 1 << (signal.SIGSEGV - 1)
