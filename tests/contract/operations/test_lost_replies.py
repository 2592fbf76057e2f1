"""Operations over a connection that breaks: they are carried out once, or raise an error."""

import itertools
import logging

import pytest
from support.faults import BackgroundCall, acquire_once, connected, due, within
from support.proxy import GET_CHILDREN, GET_DATA, MULTI, MULTI_READ, SET_DATA, SYNC
from support.signalled import received
from support.zoo import guid_of

from django_zklock import zk_lock
from django_zklock.exceptions import LockChangedHands, ZooKeeperUnavailable
from django_zklock.inspection import look_at
from django_zklock.operations import break_lock, end_hold, hold_lock, request_release
from django_zklock.signals import lock_broken

WHY = {"reason": "the machine is on fire", "by": "anna"}
CUTS = [
    pytest.param(opcode, when, id=f"{when[5:-3]} {name}", marks=() if name == "multi" else pytest.mark.chaos)
    for (name, opcode), when in itertools.product(
        {"sync": SYNC, "list": GET_CHILDREN, "read": GET_DATA, "multi": MULTI}.items(),
        ("kill_before_op", "kill_after_op"),
    )
]


def named(path, zoo):
    return {"guid": guid_of(path), "token": zoo.client.exists(path).czxid}


@pytest.mark.parametrize(("opcode", "when"), CUTS)
def test_a_break_survives_cuts(zoo, proxy, caplog, opcode, when):
    with zoo.hold_elsewhere("k") as path, caplog.at_level(logging.INFO, "zklock.audit"):
        holder = named(path, zoo)
        fired = getattr(proxy, when)(opcode)
        break_lock("k", **holder, **WHY)
        assert fired.is_set()
        assert zoo.children("k") == []
        with pytest.raises(LockChangedHands):
            break_lock("k", **holder, **WHY)
    assert [record.name for record in caplog.records].count("zklock.audit") == 1


def test_a_lock_that_is_released_just_before_the_break_was_not_broken(zoo, proxy, caplog):
    """ZooKeeper's reply says so. So no record and no signal may say that an operator has perhaps broken it."""
    sent = []
    audited = caplog.at_level(logging.INFO, "zklock.audit")
    with received(lock_broken, lambda **kwargs: sent.append(kwargs)), zoo.hold_elsewhere("k") as path, audited:
        holder = named(path, zoo)
        connected()
        proxy.delay_op(MULTI, 60)
        operator = BackgroundCall(lambda: break_lock("k", **holder, **WHY))
        proxy.wait_for(lambda: any(frame.opcode == MULTI and frame.request for frame in proxy.frames))
        zoo.client.delete(path)
        proxy.delay_op(MULTI, 0)
        with pytest.raises(LockChangedHands):
            operator.result()
        due(0)
    assert not sent
    assert "zklock.audit" not in [record.name for record in caplog.records]


@pytest.mark.parametrize(("call", "opcode"), [(break_lock, MULTI), (request_release, SET_DATA)])
def test_an_unanswered_operation_is_audited_as_possible(zoo, proxy, caplog, call, opcode):
    """The lock may be another's by then."""
    with zoo.hold_elsewhere("k") as path, caplog.at_level(logging.INFO, "zklock.audit"):
        holder = named(path, zoo)
        proxy.kill_after_op(opcode)
        proxy.refuse = True  # new connections; that of the session stays until it is lost
        with within(2), pytest.raises(ZooKeeperUnavailable):
            call("k", **holder, **WHY, reply_timeout=1)
    (record,) = [record for record in caplog.records if record.name == "zklock.audit"]
    text = "Broken" if call is break_lock else "Release requested"
    assert f"Perhaps, as the reply was lost: {text}" in record.getMessage()
    proxy.heal()


@pytest.mark.parametrize(("opcode", "when"), CUTS)
def test_a_hold_survives_a_cut(zoo, proxy, opcode, when):
    fired = getattr(proxy, when)(opcode)
    hold = hold_lock("k", seconds=600, **WHY)
    assert zoo.children("k") == [hold.path.rpartition("/")[2]]
    end_hold("k", token=hold.token, by="anna")
    assert fired.is_set()
    assert zoo.children("k") == []


@pytest.mark.parametrize("passed", [0, 1], ids=["list", "read"])
@pytest.mark.parametrize("when", ["kill_before_op", "kill_after_op"])
def test_a_look_at_the_queue_survives_a_cut(zoo, proxy, passed, when):
    with zoo.hold_elsewhere("k"), zoo.hold_elsewhere("k"):
        if passed:
            proxy.alter_reply(MULTI_READ, lambda reply: reply)
        fired = getattr(proxy, when)(MULTI_READ)
        with within(3):
            seen = look_at("k", reply_timeout=3)
        assert fired.is_set()
        assert [contender.name for contender in (*seen.holders, *seen.waiters)] == zoo.children("k")


@pytest.mark.parametrize("when", ["kill_before_op", "kill_after_op"])
def test_locked_survives_a_cut(zoo, proxy, when):
    with zoo.hold_elsewhere("k"):
        fired = getattr(proxy, when)(GET_CHILDREN)
        with within(3):
            assert zk_lock("k").locked()
        assert fired.is_set()


@pytest.mark.parametrize("when", ["kill_before_op", "kill_after_op"])
def test_the_grant_of_an_operator_hold_survives_a_cut(zoo, proxy, when):
    with zoo.hold_elsewhere("k"):
        operator = BackgroundCall(lambda: hold_lock("k", seconds=600, wait=5, **WHY))
        zoo.wait_contenders("k", 2)
        fired = getattr(proxy, when)(MULTI)
    hold = operator.result()
    assert fired.is_set()
    assert hold.seconds == 600
    assert zoo.children("k") == [hold.path.rpartition("/")[2]]
    end_hold("k", token=hold.token, by="anna")


def test_no_operation_takes_longer_than_its_reply_timeout_without_a_connection(zoo, proxy):
    proxy.go_away()
    for call in (
        lambda: hold_lock("k", seconds=600, reply_timeout=0.3, **WHY),
        lambda: break_lock("k", guid="x", token=1, reply_timeout=0.3, **WHY),
        lambda: end_hold("k", token=1, by="anna", reply_timeout=0.3),
    ):
        with within(1), pytest.raises(ZooKeeperUnavailable):
            call()
    proxy.heal()
    connected()
    acquire_once("k", timeout=5)  # its requests are behind those of the calls
    assert zoo.children("k") == []
