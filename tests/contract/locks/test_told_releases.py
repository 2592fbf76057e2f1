"""A release that fails, or that comes too late, reaches the log: the end of a block does not wait for it."""

from __future__ import annotations

import os
import socket

import pytest
from kazoo.security import OPEN_ACL_UNSAFE, make_acl
from support.faults import acquire_once
from support.primitives import Primitive
from support.proxy import DELETE, MULTI, Proxy
from support.zoo import Zoo, eventually, guid_of, settle

from django_zklock import zk_adopt, zk_lock
from django_zklock.core.protocol import contender
from django_zklock.operations import break_lock

LATE = "had been deleted by another session"


def messages(caplog: pytest.LogCaptureFixture, part: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if part in record.getMessage()]


def test_a_release_that_zookeeper_refuses_is_logged(zoo: Zoo, caplog: pytest.LogCaptureFixture) -> None:
    acquire_once("shop/1")
    settle()
    directory = f"{zoo.base}/shop/1"
    no_deletes = make_acl("world", "anyone", read=True, write=True, create=True, admin=True)
    zoo.client.set_acls(directory, [no_deletes])
    with zk_lock("shop/1") as hold:
        path = hold.path
    (message, *_) = eventually(lambda: messages(caplog, "deleting the znode"))
    for part in (path, "NoAuthError", f"process {os.getpid()} on {socket.gethostname()}", "'shop/1'", directory):
        assert part in message
    (record, *_) = [record for record in caplog.records if record.getMessage() == message]
    assert (record.levelname, vars(record)["lock"]) == ("ERROR", "shop/1")
    zoo.client.set_acls(directory, OPEN_ACL_UNSAFE)
    acquire_once("shop/1", timeout=30)


def confirmed() -> None:
    """Wait until what was sent before has its replies."""
    for _ in range(2):  # the delete, and the record of a break
        acquire_once("another", timeout=0)


def test_a_lock_whose_znode_was_deleted_is_told_after_a_short_hold(
    zoo: Zoo, primitive: Primitive, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a hold is watched, only its release shows it."""
    monkeypatch.setattr(contender, "WATCH_SELF_AFTER", 60.0)
    with primitive.lock() as hold:
        zoo.client.delete(hold.path)
    (message,) = eventually(lambda: messages(caplog, LATE))
    assert f"process {os.getpid()} on {socket.gethostname()}" in message
    assert hold.path in message
    (record,) = [record for record in caplog.records if record.getMessage() == message]
    assert (record.levelname, vars(record)["lock"], vars(record)["token"]) == ("WARNING", hold.key, hold.token)


def test_a_lost_reply_is_no_late_release(zoo: Zoo, proxy: Proxy, caplog: pytest.LogCaptureFixture) -> None:
    """The second delete finds no znode, as the first has deleted it."""
    for op, min_hold in ((DELETE, 0.0), (MULTI, 0.05)):
        with zk_lock("k", timeout=30, min_hold=min_hold):
            fired = proxy.kill_after_op(op)
        eventually(fired.is_set)
        acquire_once("k", timeout=30)
    confirmed()
    assert not messages(caplog, LATE)


def test_a_break_is_no_late_release(zoo: Zoo, caplog: pytest.LogCaptureFixture) -> None:
    """The operator knows. Nor is a lock that is handed over, or the rest of a minimum hold."""
    with zk_lock("k") as hold:
        break_lock("k", guid=guid_of(hold.path), token=hold.token, reason="a test", by="ann")
    hold = acquire_once("k", min_hold=0.05)
    with zk_lock("k", timeout=30) as hold:
        text = hold.hand_over(within=5)
    acquire_once(zk_adopt(text))
    confirmed()
    assert not messages(caplog, LATE)
