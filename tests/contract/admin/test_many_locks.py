"""Snapshots of hundreds of locks: what they cost, what is read again, and what they say if a part cannot be read."""

from dataclasses import replace

import pytest
from kazoo.security import OPEN_ACL_UNSAFE, make_acl
from support.browser.actors import Part, staged
from support.faults import connected, expire
from support.proxy import MULTI_READ, NO_AUTH, with_error
from support.refused import on_real_server
from support.zoo import eventually

from django_zklock import inspection
from django_zklock.inspection import scan
from django_zklock.report import verdict

pytestmark = pytest.mark.usefixtures("emptied")
LOCKS, WAITERS = 300, 30
UNIMPLEMENTED = -6


@pytest.fixture
def many(zoo, proxy):
    """Three hundred held locks, thirty with a waiter. The process is connected."""
    connected()
    with staged(zoo) as stage:
        stage.crowd(LOCKS - WAITERS, 0, prefix="held")
        stage.crowd(WAITERS, 1, prefix="contended")
        yield stage


def look(**more):
    return inspection.snapshot(**{"max_age": 0, "reply_timeout": 10, **more})


def cost(proxy):
    """Take a snapshot of all locks; return its requests."""
    proxy.reset()
    assert look().complete
    return proxy.counts[MULTI_READ]


def test_hundreds_of_locks_are_a_few_requests(many, proxy):
    assert cost(proxy) <= 10  # the root, its directories, the queues; the contenders
    assert proxy.reads == 1 + 2 + 2 * LOCKS + WAITERS


def test_all_hold_and_all_are_counted(many):
    shown = look()
    assert shown.total == len(shown.locks) == LOCKS
    assert sum(lock.waiting for lock in shown.locks) == WAITERS
    assert all(lock.holders for lock in shown.locks)


def test_callers_share_a_snapshot_that_is_young_enough(many, proxy):
    look()
    proxy.reset()
    assert all(inspection.snapshot(max_age=60, reply_timeout=10).complete for _ in range(6))
    assert not proxy.counts[MULTI_READ]


def test_a_lock_that_came_or_went_is_seen_by_the_next_look(many, zoo):
    before = {lock.key for lock in look().locks}
    path = many.join_queue("late", Part("web-9", 9))
    assert {lock.key for lock in look().locks} == before | {"late"}
    many.quit_queue(path)
    assert {lock.key for lock in look().locks} == before


def test_a_holder_whose_data_changed_is_described_by_the_new_data(many, zoo):
    path = many.join_queue("late", Part("web-9", 9))
    described = {lock.key: lock.holders[0] for lock in look().locks}
    zoo.client.set(path, Part("web-9", 10).data(described["late"].guid))
    again = {lock.key: lock.holders[0] for lock in look().locks}
    assert (described["late"].pid, again["late"].pid) == (9, 10)
    others = again.keys() - {"late"}
    assert all(again[key].age > described[key].age for key in others)
    assert all(replace(again[key], age=0.0) == replace(described[key], age=0.0) for key in others)


def test_a_waiter_that_became_the_holder_is_one(many, zoo):
    first = many.join_queue("late", Part("web-9", 9))
    many.join_queue("late", Part("web-9", 10))
    look()
    many.quit_queue(first)
    (late,) = [lock for lock in look().locks if lock.key == "late"]
    assert ([holder.pid for holder in late.holders], late.waiting) == ([10], 0)


@pytest.mark.parametrize("denied", ["held/0007", "held"])
@pytest.mark.django_db
@on_real_server
def test_a_queue_that_may_not_be_listed_is_unread_and_no_verdict_is_green(many, zoo, denied):
    look()
    path = f"{zoo.base}/{denied}"
    zoo.client.set_acls(path, [make_acl("ip", "10.9.9.9", read=True), make_acl("world", "anyone", admin=True)])
    try:
        shown = look()
        unread = [lock for lock in shown.locks if lock.is_unread]
        assert [lock.key for lock in unread] == [denied]
        assert "not allowed" in unread[0].problem or "ACL" in unread[0].problem
        assert not shown.complete
        assert not verdict.look(shown, inspection.EnsembleReport(())).healthy
    finally:
        zoo.client.set_acls(path, OPEN_ACL_UNSAFE)
    assert look().complete


@pytest.mark.parametrize("strike", ["kill_before_op", "kill_after_op"])
def test_a_connection_that_breaks_in_the_middle_costs_a_look_nothing(many, proxy, strike):
    fired = getattr(proxy, strike)(MULTI_READ)
    shown = look()
    assert fired.is_set()
    assert shown.complete
    assert shown.total == LOCKS


def test_a_new_session_sees_all_locks(many, zoo):
    look()
    many.join_queue("late", Part("web-9", 9))
    expire(zoo)
    assert eventually(lambda: [lock.key for lock in look().locks if lock.key == "late"])


@pytest.mark.parametrize("code", [UNIMPLEMENTED, NO_AUTH, -999], ids=["a server of 3.5", "denied", "unknown"])
def test_a_server_that_refuses_the_request_is_named(zoo, proxy, code):
    connected()
    proxy.alter_reply(MULTI_READ, with_error(code), carried_out=False)
    shown = look()
    assert "multiRead" in shown.problem
    assert shown.state == "connected"


def test_nothing_that_was_not_read_counts_as_free(many, proxy):
    proxy.delay_op(MULTI_READ, 0.5)
    shown = look(reply_timeout=0.2)
    assert shown.problem
    assert not shown.complete


def test_a_holder_beyond_the_limit_is_unknown_and_its_lock_is_not_free(many, monkeypatch):
    monkeypatch.setattr(scan, "MAX_READS", 10)
    shown = look()
    assert sum(lock.is_unread for lock in shown.locks) == LOCKS - 10
    assert not shown.complete
    assert {lock.state for lock in shown.locks if lock.is_unread} == {"unread"}
