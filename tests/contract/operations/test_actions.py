"""Each operation is on the list of actions in ZooKeeper."""

from __future__ import annotations

import contextlib
import socket
from functools import partial
from typing import Any

import pytest
from kazoo.security import make_acl
from support.faults import BackgroundCall
from support.zoo import Zoo, eventually, guid_of

from django_zklock import zk_lock
from django_zklock.exceptions import LockLost, LockNotHeld
from django_zklock.operations import (
    acting_via,
    action_list,
    break_lock,
    clear_limit,
    end_hold,
    hold_lock,
    recent_actions,
    request_release,
    set_limit,
)

pytestmark = pytest.mark.zookeeper

WHY: dict[str, Any] = {"reason": "the machine is on fire", "by": "anna"}


def test_each_operation_is_on_the_list(zoo: Zoo) -> None:
    """The newest first, with who did it and why, where that came from, and who held the lock."""
    lock = zk_lock("a/b", abort_on="never")
    hold = lock.acquire()
    assert hold is not None
    request_release("a/b", **WHY)
    with acting_via("admin"):
        broken = break_lock("a/b", guid=guid_of(hold.path), token=hold.token, **WHY)
    with contextlib.suppress(LockLost, LockNotHeld):
        lock.release()
    with acting_via("command"):
        held = hold_lock("a/b", seconds=60, **WHY)
    end_hold("a/b", token=held.token, by="bert")
    set_limit("printers", 3, **WHY)
    clear_limit("printers", **WHY)
    found = recent_actions()
    assert [(each.what, each.key, each.via) for each in found] == [
        ("limit cleared", "printers", "code"),
        ("limit set", "printers", "code"),
        ("hold ended", "a/b", "code"),
        ("held", "a/b", "command"),
        ("broken", "a/b", "admin"),
        ("release requested", "a/b", "code"),
    ]
    assert {each.reason for each in found} == {WHY["reason"], ""}
    assert [each.by for each in found if each.reason == ""] == ["bert"]
    assert (found[1].limit, found[3].seconds, found[3].token) == (3, 60.0, held.token)
    for each in found[4:]:
        assert (each.host, each.pid, each.work) == (socket.gethostname(), broken.holder.pid, broken.holder.what)
        assert (each.token, each.sure) == (hold.token, True)
    assert recent_actions("printers") == found[:2]


def test_actions_at_the_same_time_are_all_on_the_list(zoo: Zoo) -> None:
    calls = [BackgroundCall(partial(set_limit, f"k{number}", 2, **WHY)) for number in range(8)]
    for call in calls:
        call.result()
    eventually(lambda: sorted(each.key for each in recent_actions()) == [f"k{number}" for number in range(8)])
    for number in range(8):
        clear_limit(f"k{number}", **WHY)


def test_a_damaged_list_is_replaced(zoo: Zoo) -> None:
    zoo.client.create(action_list.node_path(zoo.base), b"\xff", makepath=True)
    set_limit("k", 2, **WHY)
    assert [each.what for each in recent_actions()] == ["limit set"]
    clear_limit("k", **WHY)


def test_a_list_that_cannot_be_written_fails_no_action(zoo: Zoo, caplog: pytest.LogCaptureFixture) -> None:
    """Another client has made it, and lets us only read it. That is logged."""
    readable = [make_acl("world", "anyone", read=True)]
    zoo.client.ensure_path(zoo.base)
    zoo.client.create(action_list.node_path(zoo.base), b"[]", acl=readable)
    set_limit("k", 2, **WHY)
    assert "'k' is not on the list of actions" in caplog.text
    assert recent_actions() == ()
    clear_limit("k", **WHY)
