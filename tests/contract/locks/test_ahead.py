"""The attribute `ahead` of the errors: who holds a lock that was not acquired, or who is just ahead of a waiter."""

import copy
import pickle
import socket
import struct
import subprocess
import sys

import pytest
from support.faults import connected
from support.primitives import KEY, LOCK, queued
from support.proxy import CREATE2, DELETE, GET_CHILDREN, GET_DATA, HEADER, NO_NODE, with_error
from support.work import assert_refused, seen
from support.zoo import eventually, next_line

from django_zklock import zk_lock
from django_zklock.core.locks import acquisition
from django_zklock.core.queue import nodes
from django_zklock.exceptions import LockBusy, LockNotAcquired
from django_zklock.operations import hold_lock


def empty(reply):
    """Return the reply to a listing as it was before anybody came."""
    return reply[:HEADER] + struct.pack(">i", 0)


def refused(lock):
    return assert_refused(lock, LockNotAcquired)


def ahead_of(lock):
    ahead = refused(lock).ahead
    return ahead


def test_a_try_that_came_at_the_same_moment_knows_the_holder(zoo, warm_proxy, primitive):
    """Both saw a free lock, and both created a znode. The second reads the first while its own is deleted."""
    with primitive.full(zoo) as holders:
        warm_proxy.alter_reply(GET_CHILDREN, empty)
        error = refused(primitive.lock(timeout=0))
        assert error.ahead.path == holders[0]
        assert error.ahead.name in str(error)
        assert len(zoo.children(KEY)) == len(holders)  # it has left when the error is raised
        sent = [frame.opcode for frame in warm_proxy.frames if frame.request]
        assert sent == [GET_CHILDREN, CREATE2, GET_CHILDREN, DELETE, GET_DATA]


def test_a_try_that_comes_later_knows_the_holder(zoo, warm_proxy, primitive):
    with primitive.full(zoo) as holders:
        assert ahead_of(primitive.lock(timeout=0)).path == holders[0]
        counts = warm_proxy.counts
        assert (counts[GET_CHILDREN], counts[CREATE2], counts[DELETE], counts[GET_DATA]) == (1, 0, 0, 1)
        assert warm_proxy.requests == 2


@pytest.mark.usefixtures("emptied")  # the holder is killed, and its session goes on for seconds
@pytest.mark.parametrize("at_once", [False, True], ids=["later", "at once"])
def test_the_holder_is_described_as_by_look_at(zoo, warm_proxy, at_once):
    script = """
with zk_lock("warm/a", what="nightly", about={"task": "shop.nightly"}):
    print("held", flush=True)
    input()
"""
    with zoo.running(script) as process:
        assert next_line(process) == "held"
        if at_once:
            warm_proxy.alter_reply(GET_CHILDREN, empty)
        error = refused(zk_lock(KEY, timeout=0))
        ahead = error.ahead
        (shown,) = seen(KEY).holders
        fields = ("name", "token", "session_id", "host", "pid", "what", "about", "came", "client", "kind", "operator")
        assert [getattr(ahead, name) for name in fields] == [getattr(shown, name) for name in fields]
        assert (ahead.host, ahead.pid, ahead.what) == (socket.gethostname(), process.pid, "nightly")
        assert ahead.about["task"] == "shop.nightly"
        assert ahead.since >= ahead.came
        assert f"is held by 'nightly' on {ahead.host}, process {process.pid}" in str(error)


def test_a_holder_that_has_gone_meanwhile_is_not_known(zoo, warm_proxy):
    with zoo.hold_elsewhere(KEY):
        warm_proxy.alter_reply(GET_DATA, with_error(NO_NODE))
        error = refused(zk_lock(KEY, timeout=0))
    assert error.ahead is None
    assert "is held by another owner" in str(error)


@pytest.mark.parametrize("at_once", [False, True], ids=["later", "at once"])
def test_a_busy_lock_is_busy_even_if_its_holder_cannot_be_read(zoo, proxy, at_once):
    """The connection breaks before the read. It is known by then that the lock is not free."""
    zoo.client.ensure_path(f"{zoo.base}/{KEY}")
    with zoo.hold_elsewhere(KEY):
        if at_once:
            proxy.alter_reply(GET_CHILDREN, empty)
        killed = proxy.kill_before_op(GET_DATA)
        error = refused(zk_lock(KEY, timeout=0))
        assert killed.is_set()
        assert (type(error), error.ahead) == (LockBusy, None)
        connected()
        zoo.wait_contenders(KEY, 1)


@pytest.mark.parametrize("linger", [0, 1])
def test_a_busy_lock_is_busy_even_if_the_read_of_its_holder_takes_too_long(zoo, warm_proxy, monkeypatch, linger):
    lock = zk_lock(KEY, timeout=0, linger=linger)
    monkeypatch.setattr(acquisition, "REPLY_TIMEOUT", 0.7)  # less than the connection may be silent
    with zoo.hold_elsewhere(KEY):
        warm_proxy.delay_op(GET_DATA, 60)
        eventually(lambda: (type(error := refused(lock)), error.ahead) == (LockBusy, None))  # its listing may be late


def test_a_waiter_knows_the_one_just_ahead_and_a_try_the_holder(zoo, monkeypatch):
    monkeypatch.setattr(sys, "argv", [""])  # as in Python's shell
    with zoo.hold_elsewhere(KEY) as holder, queued(zoo, zk_lock(KEY, timeout=30)):
        late = ahead_of(zk_lock(KEY, timeout=1))
        assert (late.what, late.client) == ("python", "zklock")
        assert ahead_of(zk_lock(KEY, timeout=0)).path == holder
        busy = refused(zk_lock(KEY, max_waiters=1))
        assert "1 caller waits for the lock" in str(busy)
        assert busy.ahead.path == holder
        zoo.client.delete(holder)


@pytest.mark.parametrize("compat", [None, "kazoo"], ids=["Curator", "kazoo"])
def test_a_client_of_another_kind_is_described_by_what_it_wrote(zoo, compat):
    for timeout in (0, 1):
        with zoo.hold_elsewhere(KEY, compat=compat):
            error = refused(zk_lock(KEY, timeout=timeout, compat=compat))
        assert (error.ahead.client, error.ahead.what) == ("kazoo" if compat else "Curator", "foreign")
        assert f"'foreign', a client of {error.ahead.client}, {error.ahead.name}" in str(error)


def test_a_reader_knows_the_writer(zoo):
    with queued(zoo, zk_lock(KEY, kind="write", what="import")):
        for timeout in (0, 1):
            ahead = ahead_of(zk_lock(KEY, kind="read", timeout=timeout))
            assert (ahead.what, ahead.kind) == ("import", "write")


@pytest.mark.usefixtures("no_rests")
def test_an_operator_hold_is_ahead_of_all(zoo):
    """Also of those behind another waiter, as it is the reason for their wait."""
    hold = hold_lock(KEY, seconds=300, reason="deploy 42", by="anna")
    for timeout in (0, 1):
        error = refused(zk_lock(KEY, timeout=timeout))
        assert error.ahead.operator == hold
        assert error.ahead.since == hold.since
        assert str(hold) in str(error)
    assert_refused(zk_lock(KEY, limit=2, timeout=0), LockBusy, "is held by")
    with pytest.raises(LockBusy, match="operator anna") as caught:
        hold_lock(KEY, seconds=300, reason="another", by="berta")
    assert caught.value.ahead is not None
    assert caught.value.ahead.operator == hold


@pytest.mark.parametrize("linger", [0, 1])
def test_the_owner_of_a_lock_that_is_not_reentrant_has_nobody_ahead(zoo, linger):
    lock = zk_lock(KEY, reentrant=False, linger=linger)
    with lock:
        error = refused(lock)
        assert (type(error), error.ahead) == (LockBusy, None)
        assert "its owner has it already" in str(error)
        assert lock.acquire(blocking=False) is lock.acquire() is None


def test_an_error_is_copied_and_pickled_with_the_one_ahead(zoo):
    """A Celery backend and `multiprocessing` pickle it; the other process need not have set up Django."""
    with queued(zoo, LOCK.lock(what="w", about={"task": "t"})):
        for timeout in (0, 1):
            error = refused(zk_lock(KEY, timeout=timeout))
            assert error.ahead.about == {"task": "t"}
            copies = [copy.copy(error), copy.deepcopy(error)]
            copies += [
                pickle.loads(pickle.dumps(error, protocol)) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)
            ]
            for copied in copies:
                assert type(copied) is type(error)
                assert (str(copied), copied.lock, copied.ahead) == (str(error), KEY, error.ahead)
            script = "import pickle, sys; print(pickle.load(sys.stdin.buffer).ahead.what)"
            done = subprocess.run(
                [sys.executable, "-c", script], input=pickle.dumps(error), capture_output=True, check=True, timeout=60
            )
            assert done.stdout == b"w\n"


def test_the_one_ahead_has_only_characters_that_print(zoo):
    """Any client can write anything into its znode, and a page shows it."""
    guid = nodes.new_guid(nodes.Mark.OWN)
    payload = nodes.Payload(
        guid=guid, host="h\x1b[2J", pid=7, thread="t", what="a\nb", since="", template="", about={"x": "\u202e"}
    )
    with zoo.hold_elsewhere(KEY, guid=guid) as path:
        zoo.client.set(path, payload.encode())
        error = refused(zk_lock(KEY, timeout=0))
    assert (error.ahead.what, error.ahead.host, error.ahead.about) == ("a\\nb", "h\\x1b[2J", {"x": "\\u202e"})
    assert str(error).isprintable()
