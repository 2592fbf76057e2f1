"""ZooKeeper refuses a request that this process tries again: that is told as a refusal, and not as silence."""

import contextlib
import logging

import pytest
from kazoo.security import OPEN_ACL_UNSAFE, make_acl
from support.faults import BackgroundCall, acquire_once, session
from support.primitives import KEY
from support.proxy import CREATE2, MULTI, NO_AUTH, Proxy, with_error
from support.refused import on_real_server
from support.work import assert_refused
from support.zoo import eventually

from django_zklock import zk_lock
from django_zklock.core.zk import troubles
from django_zklock.core.zk.codes import meaning
from django_zklock.exceptions import LockLost, LockTimeout, ZooKeeperUnavailable
from django_zklock.operations import hold_lock

pytestmark = pytest.mark.usefixtures("key_directory")

EXPIRED, QUOTA, THROTTLED, LATER = -112, -125, -127, -200
NO_DELETES = make_acl("world", "anyone", read=True, write=True, create=True, admin=True)
SHORT = 2.0  # seconds: a session timeout


@contextlib.contextmanager
def no_deletes(zoo):
    zoo.client.set_acls(f"{zoo.base}/{KEY}", [NO_DELETES])
    yield
    zoo.client.set_acls(f"{zoo.base}/{KEY}", OPEN_ACL_UNSAFE)


@pytest.mark.parametrize("code", [NO_AUTH, QUOTA, THROTTLED], ids=["no permission", "quota exceeded", "throttled"])
def test_a_lock_whose_heartbeat_is_refused_is_lost_with_the_reason(zoo, code, caplog):
    reason = f"{troubles.HEARTBEAT_REFUSED}: {meaning(code)}"
    with Proxy(zoo.address) as proxy, zoo.configured(proxy.address, session_timeout=SHORT):
        with pytest.raises(LockLost) as caught, zk_lock(KEY, abort_on="never") as hold:
            for _ in range(20):
                proxy.alter_reply(MULTI, with_error(0, code), carried_out=False)
            eventually(lambda: hold.state == "lost")
            hold.check()
        assert str(caught.value) == f"The lock {KEY!r} was lost: {reason}."
        (warning,) = [record.getMessage() for record in caplog.records if "heartbeat failed" in record.getMessage()]
        assert f"ZooKeeper refused the request checkVersion of {hold.path}: " in warning
        proxy.heal()


def test_a_heartbeat_that_is_accepted_again_ends_the_refusal(zoo, caplog):
    caplog.set_level(logging.DEBUG, "django_zklock.zk")
    with Proxy(zoo.address) as proxy, zoo.configured(proxy.address, session_timeout=8), zk_lock(KEY) as hold:
        fired = proxy.alter_reply(MULTI, with_error(0, THROTTLED), carried_out=False)
        assert fired.wait(30)
        eventually(lambda: session().refused == THROTTLED)
        eventually(lambda: session().refused == 0)
        assert hold.state == "held"
        assert session().why_over == troubles.LEASE_OVER


def test_a_server_that_fails_at_each_write_is_named_with_its_error(zoo):
    """Its replies are no refusals, as the writes may have been carried out."""
    with Proxy(zoo.address) as proxy, zoo.configured(proxy.address):
        acquire_once(zk_lock(KEY))
        for code in (-5, LATER):
            for _ in range(20):
                proxy.alter_reply(CREATE2, with_error(code), carried_out=False)
            attempt = zk_lock(KEY, timeout=0.3)
            said = f"its replies are unclear: {meaning(code)}"
            while said not in str(assert_refused(attempt, ZooKeeperUnavailable)):
                pass  # until a caller gives up between two connections
            proxy.heal()


def test_a_create_is_repeated_if_a_session_that_was_being_closed_lives_on(proxy):
    """Its leader may die before a quorum has the close."""
    acquire_once(KEY)
    fired = proxy.alter_reply(CREATE2, with_error(EXPIRED), carried_out=False)
    call = BackgroundCall(lambda: acquire_once(KEY, timeout=30))
    assert fired.wait(10)
    acquire_once("another")  # the reply before it has been handled, too
    proxy.cut_all()
    call.result(40)


@on_real_server
def test_a_hold_of_an_operator_that_may_not_be_written_says_so(zoo):
    with no_deletes(zoo), pytest.raises(ZooKeeperUnavailable, match=f"refused the request delete of .*{NO_AUTH}"):
        hold_lock(KEY, seconds=1, reason="test", by="test", reply_timeout=1)
    zoo.wait_contenders(KEY, 0)


@on_real_server
def test_a_minimum_hold_that_may_not_be_created_ends_with_its_time(zoo):
    """Its holder lost the right to create. The waiters of before are not kept behind its znode for ever."""
    lock = zk_lock(KEY, min_hold=2)
    with lock:
        waiter = BackgroundCall(lambda: acquire_once(KEY, timeout=20))
        zoo.wait_contenders(KEY, 2)
        zoo.client.set_acls(f"{zoo.base}/{KEY}", [make_acl("world", "anyone", read=True, delete=True, admin=True)])
    waiter.result()
    zoo.client.set_acls(f"{zoo.base}/{KEY}", OPEN_ACL_UNSAFE)
    zoo.wait_contenders(KEY, 0)


@on_real_server
def test_a_waiter_learns_why_the_hold_ahead_does_not_end(zoo):
    hold_lock(KEY, seconds=0.2, reason="test", by="test", reply_timeout=10)
    with no_deletes(zoo):
        error = assert_refused(zk_lock(KEY, timeout=2), LockTimeout)
        assert "ahead is the hold of" in str(error)
        assert "ZooKeeper refused the request delete of " in str(error)
        assert f"the ACL of {zoo.base}/{KEY})" in str(error)
    zoo.wait_contenders(KEY, 0)
