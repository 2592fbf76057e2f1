"""Requests and updates survive a broken connection, and end at their deadline."""

import uuid

import pytest
from kazoo.protocol import serialization as wire
from kazoo.security import make_acl
from support.faults import BackgroundCall, acquire_once, connected, has_watches, session
from support.proxy import GET_DATA, MULTI, NO_AUTH, NO_NODE, SYNC, with_error
from support.refused import on_real_server
from support.zoo import eventually

from django_zklock.core import clock
from django_zklock.core.log import flush
from django_zklock.core.protocol.registry import Registry
from django_zklock.core.zk import process
from django_zklock.core.zk.errors import NodeMissing, RequestRefused
from django_zklock.core.zk.gateway import DirectoryState
from django_zklock.core.zk.multi import Create, SetData
from django_zklock.exceptions import ZkLockError, ZooKeeperUnavailable
from django_zklock.locks.requests import (
    Commit,
    Done,
    FenceGone,
    OptimisticUpdate,
    WaitUntilGone,
    call,
    run,
)


def soon(seconds=10):
    return clock.now() + seconds


def read(path, seconds=10):
    return call(session(), reading(path), soon(seconds))


def reading(path):
    return lambda gateway, done: gateway.read(path, done)


def counting(path):
    """An update that adds one to the number in a node; its value is the sum."""
    name = str(uuid.uuid4())

    def decide(directory, session_id):
        number, writer = directory.data.decode().split() if directory is not None else ("0", "")
        if writer == name:
            return Done(int(number))
        data = f"{int(number) + 1} {name}".encode()
        if directory is None:
            return Commit((Create(path=path, data=data),), 1)
        return Commit((SetData(path=path, data=data, version=directory.version),), int(number) + 1)

    return OptimisticUpdate(session(), path, decide)


def test_a_request_whose_reply_is_lost_is_sent_again(zoo, proxy):
    zoo.client.create(f"{zoo.base}/node", b"data", makepath=True)
    fired = proxy.kill_after_op(GET_DATA)
    assert read(f"{zoo.base}/node").data == b"data"
    assert fired.is_set()


def test_a_znode_without_data_is_read_as_one_with_empty_data(zoo, proxy):
    path, created = zoo.client.create(f"{zoo.base}/n", makepath=True), zoo.client.handler.async_result()
    zoo.client._call(wire.SetData(path, None, -1), created)  # so may ZooKeeper's command line
    created.get(10)
    update = OptimisticUpdate(session(), path, lambda state, session_id: Done(state and state.data))
    assert read(path).data == run(update, soon()) == b""


def test_a_request_returns_an_error_and_raises_at_the_deadline(zoo, proxy):
    assert isinstance(read(f"{zoo.base}/missing"), NodeMissing)
    proxy.hang = True
    with pytest.raises(ZooKeeperUnavailable):
        read(f"{zoo.base}/missing", 0.3)


@pytest.mark.parametrize("cut", ["before", "after"])
def test_an_update_that_was_given_up_asks_for_no_connection(zoo, proxy, cut):
    proxy.refuse = True
    if cut == "before":
        proxy.kill_before_op(MULTI)
    proxy.hang = cut == "after"
    update = counting(f"{zoo.base}/number")
    with pytest.raises(ZooKeeperUnavailable):
        run(update, soon(0.3))
    proxy.cut_all()
    eventually(lambda: update not in session().observers)


def test_a_thread_that_asks_a_session_after_its_end_is_told_so(zoo, proxy):
    """At once, also while the session still waits for the reply to its close."""
    ended = session()
    proxy.hang = True
    process.reset(0)
    with pytest.raises(ZooKeeperUnavailable, match="was closed"):
        call(ended, reading(zoo.base), soon())
    with pytest.raises(ZooKeeperUnavailable, match="was closed"):
        run(OptimisticUpdate(ended, f"{zoo.base}/n", lambda state, session_id: Done(0)), soon())


@pytest.mark.parametrize("strike", ["kill_before_op", "kill_after_op"])
def test_an_update_whose_reply_is_lost_is_carried_out_once(zoo, proxy, strike):
    path = f"{zoo.base}/deep/number"
    proxy.alter_reply(MULTI, with_error(NO_NODE), carried_out=False)  # it does not name the znode
    assert run(counting(path), soon()) == 1, "the missing directory is created"
    fired = getattr(proxy, strike)(MULTI)
    assert run(counting(path), soon()) == 2
    assert fired.is_set()
    assert zoo.client.get(path)[0].startswith(b"2 ")


def test_updates_at_the_same_time_lose_nothing(zoo, proxy):
    path = f"{zoo.base}/number"
    calls = [BackgroundCall(lambda: run(counting(path), soon())) for _ in range(5)]
    assert sorted(call.result() for call in calls) == [1, 2, 3, 4, 5]


@on_real_server
def test_an_update_writes_nothing_without_its_fence(zoo, proxy):
    path = f"{zoo.base}/deep/record"
    fence = zoo.client.create(f"{zoo.base}/fence", ephemeral=True, makepath=True)

    def decide(directory, session_id):
        return Done("there") if directory is not None else Commit((Create(path=path),), "new")

    def write():
        return run(OptimisticUpdate(session(), path, decide, fence=fence), soon())

    assert write() == "new"
    zoo.client.delete(path)
    zoo.client.set_acls(fence, [make_acl("world", "anyone", write=True)])
    with pytest.raises(RequestRefused):
        write()
    zoo.client.delete(fence)
    with pytest.raises(FenceGone):
        write()
    assert zoo.client.exists(path) is None


def test_an_update_waits_until_a_child_is_gone(zoo, proxy):
    path = f"{zoo.base}/directory"
    zoo.client.create(f"{path}/child", makepath=True)

    def decide(directory, session_id):
        return WaitUntilGone("child") if directory is not None and "child" in directory.children else Done("gone")

    state = DirectoryState(path=path, data=b"", version=0, children=("child",))
    given_up = OptimisticUpdate(session(), path, decide)
    with pytest.raises(ZooKeeperUnavailable):
        run(given_up, soon(3))
    eventually(lambda: given_up not in session().observers)
    assert not has_watches(), "the wait has ended"
    waiting = OptimisticUpdate(session(), path, decide)
    waiter = BackgroundCall(lambda: run(waiting, soon()))
    eventually(has_watches)  # it has its own reply
    proxy.alter_reply(GET_DATA, with_error(NO_AUTH))
    with pytest.raises(RequestRefused):
        run(OptimisticUpdate(session(), path, decide, guess=state), soon())
    zoo.client.delete(f"{path}/child")
    assert waiter.result() == "gone"
    assert run(OptimisticUpdate(session(), path, decide, guess=state), soon()) == "gone", "it was gone before"


@pytest.mark.parametrize(("creates", "syncs"), [(False, 1), (True, 2)])
def test_a_listing_after_a_sync_serves_those_who_have_created_nothing_since(zoo, proxy, creates, syncs):
    """It does not show the outcome of a later create, so a contender that leaves would take its znode for gone."""
    zoo.client.create(f"{zoo.base}/k", makepath=True)
    registry, parent = connected().attached(Registry), f"{zoo.base}/k"
    replies = []

    def list_twice():
        registry.list_names(parent, replies.append, after_sync=True)
        if creates:
            registry.add("guid", f"{parent}/name")
        registry.list_names(parent, replies.append, after_sync=True)
        registry.discard("guid")

    before = proxy.counts[SYNC]
    session().post(list_twice)
    eventually(lambda: len(replies) == 2)
    assert proxy.counts[SYNC] - before == syncs
    assert replies == [[], []]


UNSENT = {
    "create_and_list": lambda zoo: acquire_once("k", timeout=5),
    "children": lambda zoo: acquire_once("k", timeout=0),
    "read_directory": lambda zoo: run(counting(f"{zoo.base}/number"), soon()),
}


@pytest.mark.parametrize("name", UNSENT)
def test_an_unsent_request_stops_no_other(zoo, monkeypatch, caplog, name):
    """A defect fails the one call that it strikes, and is logged. The listing that was not sent is not waited for."""

    def fail_once(*args):
        monkeypatch.undo()
        raise RuntimeError("the test says so")

    monkeypatch.setattr(connected().gateway, name, fail_once)
    with pytest.raises(ZkLockError, match="the test says so"):
        UNSENT[name](zoo)
    assert flush(5)
    assert "the test says so" in caplog.text
    UNSENT[name](zoo)
    zoo.assert_empty()
