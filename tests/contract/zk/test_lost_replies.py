"""A break between a request and its reply loses no lock, leaves no node, and grants nothing twice."""

import itertools
from functools import partial

import pytest
from kazoo.protocol.serialization import Delete
from support.faults import BackgroundCall, caught_up, connected, expire, reconnect, session, within
from support.primitives import KEY, Taker
from support.proxy import CONNECT, CONNECTION_LOSS, CREATE2, GET_DATA, with_error
from support.zoo import eventually

from django_zklock import zk_lock
from django_zklock.core.log import flush
from django_zklock.core.protocol import contender
from django_zklock.core.zk import outage
from django_zklock.core.zk.gateway import Gateway
from django_zklock.exceptions import LockLost, ZooKeeperUnavailable

pytestmark = pytest.mark.usefixtures("key_directory")


def acquire_and_count(zoo, timeout=5):
    with within(timeout), zk_lock(KEY, timeout=timeout) as hold:
        hold.check()
        assert [f"{zoo.base}/{KEY}/{name}" for name in zoo.children(KEY)] == [hold.path]
        stat = zoo.client.exists(hold.path)
        assert (stat.czxid, stat.ephemeralOwner) == (hold.token, session().session_id)
    assert zoo.children(KEY) == []


def test_a_request_that_cannot_be_written_is_not_waited_for(zoo, proxy, caplog):
    """It has no reply. The connection would count as dead again and again."""
    requests = session().requests
    session().post(requests.send, (Delete("/\ud800", -1), print))
    acquire_and_count(zoo)
    eventually(lambda: not requests.unanswered)
    assert flush(5)
    assert "UnicodeEncodeError" in caplog.text


@pytest.mark.timed
def test_a_deadline_holds_though_the_create_is_in_doubt(zoo, proxy):
    lost = proxy.kill_after_op(CREATE2)
    proxy.refuse = True
    with within(0.5 + 1), pytest.raises(ZooKeeperUnavailable), zk_lock(KEY, timeout=0.5):
        pass
    assert lost.is_set()
    assert len(zoo.children(KEY)) == 1
    proxy.heal()
    connected()
    eventually(lambda: zoo.children(KEY) == [], 2, "the node of a create that nobody waits for stays")


@pytest.mark.parametrize(("key", "request_of"), [("cold", "ensure_path"), (KEY, "read")])
def test_a_reply_to_a_request_of_the_last_connection_changes_nothing(zoo, proxy, monkeypatch, key, request_of):
    """It may arrive after the request was made again on the next one."""

    def hold_back(gateway, path, callback, *more, **named):
        on_reply = callback if late else lambda reply: late.append(partial(callback, reply))
        return send(gateway, path, on_reply, *more, **named)

    late = []
    send = getattr(Gateway, request_of)
    monkeypatch.setattr(Gateway, request_of, hold_back)
    proxy.alter_reply(CREATE2, with_error(CONNECTION_LOSS))
    taker = Taker(zk_lock(key, abort_on="lost"))
    eventually(lambda: late)
    reconnect(proxy)
    hold = taker.wait_granted()
    session().post(late[0])
    caught_up()
    assert len(zoo.children(key)) == 1
    zoo.client.delete(hold.path)
    with within(3):
        assert hold.wait_lost(20)
    with pytest.raises(LockLost):
        taker.go()


def test_a_waiter_survives_any_number_of_cuts(zoo, proxy, monkeypatch):
    monkeypatch.setattr(contender, "MAX_CREATES", 4)
    monkeypatch.setattr(outage, "LONGEST_PAUSE", 0.5)  # as the same request is under way each time
    with zoo.hold_elsewhere(KEY):
        waiter = BackgroundCall(lambda: acquire_and_count(zoo, timeout=60))
        for _ in range(6):
            proxy.wait_for(lambda: proxy.counts[GET_DATA])
            proxy.reset()
            proxy.cut_all()
        proxy.wait_for(lambda: proxy.counts[GET_DATA])
        (name,) = zoo.wait_contenders(KEY, 2)[1:]
        expire(zoo)
        eventually(lambda: zoo.children(KEY)[1:] not in ([], [name]))
    waiter.result()


def test_no_request_of_a_session_has_the_id_of_an_earlier_one(zoo, proxy, monkeypatch):
    """The next server of the session would take the result of the earlier request for that of the later one."""
    pauses = itertools.count()
    monkeypatch.setattr(outage, "_pause", lambda count: next(pauses))
    for _ in range(3):
        acquire_and_count(zoo)
        proxy.kill_before_op(CONNECT)
        reconnect(proxy)
    assert next(pauses) == 0, "a quick try may save the session"
    xids = [frame.xid for frame in proxy.frames if frame.request and frame.xid > 0]
    assert xids == sorted(set(xids))
    assert len({frame.connection for frame in proxy.frames if frame.xid > 0}) > 1


def test_no_server_is_blamed_for_an_expired_session(zoo, caplog):
    """A server that says so has answered: after a pause of the process, nobody must look for one that hangs."""
    acquire_and_count(zoo)
    for _ in range(3):
        before = session().session_id
        expire(zoo)
        eventually(lambda before=before: session().session_id not in {before, None})
    acquire_and_count(zoo)
    flush(5)
    assert not [record.getMessage() for record in caplog.records if "No connection" in record.getMessage()]
