"""The fence of a claimed session: it is read on each new connection, before anything else."""

import threading

import pytest
from kazoo.security import OPEN_ACL_UNSAFE, make_acl
from support.faults import connected, proxied, session
from support.proxy import DELETE, GET_DATA
from support.refused import on_real_server
from support.zoo import eventually

from django_zklock import zk_lock
from django_zklock.contrib.leases.resumption import Claim
from django_zklock.core.queue.escaping import session_hex
from django_zklock.core.zk import connection as connections
from django_zklock.core.zk import process
from django_zklock.core.zk import session as sessions

NO_READS = make_acl("world", "anyone", write=True, admin=True)


class Claimed:
    """The session of this process, which is claimed."""

    def __init__(self, zoo, proxy):
        connected()
        self.proxy, self.session, self.id = proxy, session(), session().session_id
        claimed, self.replaced = threading.Event(), threading.Event()
        Claim(self.session, b"me", lambda _: claimed.set(), self.replaced.set).start()
        assert claimed.wait(10)
        self.path = f"{zoo.base}/!session:{session_hex(self.id)}"

    @property
    def seen(self):
        """The newest transaction that it has seen, as it tells the next server."""
        return self.session._client.last_zxid

    def lose_connection(self):
        self.proxy.refuse = True
        self.proxy.cut_all()


@pytest.fixture
def claimed(zoo):
    with proxied(zoo) as proxy:
        yield Claimed(zoo, proxy)


def test_a_claimed_session_goes_on_after_a_broken_connection(claimed):
    with zk_lock("a") as hold:
        claimed.proxy.cut_all()
        eventually(lambda: not claimed.session.connected)
        connected()
        hold.check()
    assert claimed.session.session_id == claimed.id


def test_a_server_that_does_not_answer_the_read_is_left_in_time(claimed):
    """The lease lasts for longer."""
    with zk_lock("a") as hold:
        claimed.proxy.reset()
        claimed.proxy.delay_op(GET_DATA, 60)
        claimed.proxy.cut_all()
        claimed.proxy.wait_for(lambda: claimed.proxy.counts[GET_DATA])
        claimed.proxy.delay_op(GET_DATA, 0)
        connected()
        hold.check()
    assert claimed.session.session_id == claimed.id


def test_nothing_else_is_sent_before_the_reply(zoo, claimed):
    """Or a process that was replaced would delete a znode of its successor."""
    lock = zk_lock("a")
    lock.acquire()
    claimed.lose_connection()
    claimed.proxy.reset()
    claimed.proxy.delay_op(GET_DATA, 0.4)
    claimed.proxy.refuse = False
    claimed.proxy.wait_for(lambda: claimed.proxy.counts[GET_DATA])
    lock.release()
    zoo.client.set(claimed.path, b"another")
    assert claimed.replaced.wait(10)
    assert not claimed.proxy.counts[DELETE]
    assert len(zoo.children("a")) == 1
    process.reset()  # a coordinator would end


@on_real_server
def test_a_server_that_refuses_the_read_is_told_and_asked_again(zoo, claimed, caplog, monkeypatch):
    monkeypatch.setattr(sessions, "REFUSED_GATE_PAUSE", 0.3)
    zoo.client.set_acls(claimed.path, [NO_READS])
    claimed.proxy.cut_all()
    eventually(lambda: "may not do this" in caplog.text and claimed.path in caplog.text)
    assert not claimed.session.connected
    zoo.client.set_acls(claimed.path, OPEN_ACL_UNSAFE)
    connected()
    assert claimed.session.session_id == claimed.id


@on_real_server
def test_after_a_refused_read_a_server_that_has_lost_data_is_accepted(zoo, claimed, monkeypatch):
    """Servers that have lost data refuse a client that has seen more than they."""
    monkeypatch.setattr(connections, "ASK_ANEW_AFTER", 0.2)
    zoo.client.set_acls(claimed.path, [NO_READS])
    claimed.lose_connection()
    eventually(lambda: not claimed.seen)
    claimed.proxy.refuse = False
    eventually(lambda: claimed.seen)
    claimed.lose_connection()
    eventually(lambda: not claimed.seen)
    zoo.client.set_acls(claimed.path, OPEN_ACL_UNSAFE)
    claimed.proxy.refuse = False
    connected()
    assert claimed.session.session_id == claimed.id
