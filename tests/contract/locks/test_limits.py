"""The limit of a semaphore is set for all processes while permits are acquired and released."""

import contextlib
import logging

import pytest
from kazoo.exceptions import NoNodeError
from kazoo.security import make_acl
from support.faults import BackgroundCall, caught_up, results
from support.primitives import Taker
from support.proxy import MULTI
from support.refused import on_real_server
from support.signalled import signalled
from support.work import assert_refused, seen
from support.zoo import eventually, settle

from django_zklock import zk_lock
from django_zklock.core.queue import markers
from django_zklock.exceptions import LockBusy, LockChangedHands, LockLost, ZkLockError
from django_zklock.inspection import snapshot
from django_zklock.operations import break_lock, clear_limit, limit_of, request_release, set_limit

WHY = {"reason": "the printer is slow", "by": "anna"}


class Crowd:
    """Threads that want permits of one semaphore, and hold them until they are told to release."""

    def __init__(self, zoo, limit):
        self.takers = []  # in the order in which they came
        self._zoo = zoo
        self._limit = limit
        self._released = set()

    def come(self, count):
        """Have so many more come, one after the other."""
        for _ in range(count):
            before = len(self._zoo.children("k"))
            self.takers.append(Taker(zk_lock("k", limit=self._limit, timeout=30)))
            self._zoo.wait_contenders("k", before + 1)

    def go(self, *numbers):
        for number in numbers:
            self._released.add(number)
            self.takers[number].go()

    def hold(self, *numbers):
        eventually(lambda: self._holders() == set(numbers), message=f"not {numbers}")
        caught_up()
        assert self._holders() == set(numbers)

    def _holders(self):
        return {number for number, taker in enumerate(self.takers) if taker.granted.is_set()} - self._released


@pytest.fixture
def crowd(zoo):
    crowd = Crowd(zoo, 3)
    yield crowd
    crowd.go(*set(range(len(crowd.takers))) - crowd._released)
    clear_limit("k", **WHY)


def markers_of(zoo):
    return [name for name in zoo.names(f"{zoo.base}/k") if markers.is_marker(name)]


@on_real_server
def test_a_limit_that_zookeeper_refuses_is_an_error_at_once(zoo):
    zoo.client.ensure_path(f"{zoo.base}/k")
    zoo.client.set_acls(f"{zoo.base}/k", [make_acl("world", "anyone", read=True)])
    with pytest.raises(ZkLockError, match=r"NoAuthError.*credentials.* may not do this"):
        set_limit("k", 5, **WHY)
    assert limit_of("k") is None


def test_a_raised_limit_grants_as_many_more_waiters(zoo, crowd):
    crowd.come(7)
    crowd.hold(0, 1, 2)
    set_limit("k", 5, **WHY)
    crowd.hold(0, 1, 2, 3, 4)
    set_limit("k", 6, **WHY)
    crowd.hold(0, 1, 2, 3, 4, 5)


def test_a_lowered_limit_counts_for_later_grants_only(zoo, crowd):
    crowd.come(5)
    crowd.hold(0, 1, 2)
    set_limit("k", 1, **WHY)
    crowd.hold(0, 1, 2)
    crowd.go(0)
    crowd.hold(1, 2)
    crowd.go(2)
    crowd.hold(1)
    crowd.go(1)
    crowd.hold(3)
    assert_refused(zk_lock("k", limit=3, timeout=0), LockBusy)


def test_after_a_clear_the_limit_in_code_counts_again(zoo, crowd):
    set_limit("k", 1, **WHY)
    crowd.come(4)
    crowd.hold(0)
    assert clear_limit("k", **WHY)
    crowd.hold(0, 1, 2)
    assert limit_of("k") is None
    assert not clear_limit("k", **WHY)
    crowd.go(0, 1, 2, 3)
    set_limit("k", 1, **WHY)
    assert clear_limit("k", **WHY)
    assert markers_of(zoo) == [markers.limit_marker(0)], "it goes with the next full scan"


def test_a_holder_beyond_its_own_limit_can_be_broken_after_a_clear(zoo):
    """A waiter cannot. The marker that tells them apart goes with the last but one contender."""
    crowd = Crowd(zoo, 1)
    crowd.come(3)
    set_limit("k", 3, **WHY)
    crowd.hold(0, 1, 2)
    assert clear_limit("k", **WHY)
    crowd.come(1)
    crowd.hold(0, 1, 2)
    info = seen("k")
    assert (len(info.holders), info.waiting, info.limit, info.limit_set) == (3, 1, 1, None)
    assert info.holders_at_most
    assert limit_of("k") is None
    third, (waiter,) = info.holders[2], info.waiters
    with pytest.raises(LockChangedHands):
        request_release("k", "drain", by="anna", guid=waiter.guid)
    (asked,) = request_release("k", "drain", by="anna", guid=third.guid)
    assert asked.holder.name == third.name
    break_lock("k", guid=third.guid, token=third.token, **WHY)
    eventually(lambda: crowd.takers[2].hold.lost)
    with pytest.raises(LockLost):
        crowd.go(2)
    with pytest.raises(LockChangedHands):
        break_lock("k", guid=waiter.guid, token=waiter.token, **WHY)
    crowd.go(0)
    crowd.hold(1)
    crowd.go(1)
    crowd.hold(3)
    crowd.go(3)
    with zk_lock("k", limit=1):
        eventually(lambda: markers_of(zoo) == [])


def test_a_holder_by_an_old_limit_keeps_its_permit_after_many_changes(zoo, crowd):
    set_limit("k", 5, **WHY)
    crowd.come(6)
    crowd.hold(0, 1, 2, 3, 4)
    for _ in range(2):
        set_limit("k", 1, **WHY)
        set_limit("k", 2, **WHY)
        clear_limit("k", **WHY)
    set_limit("k", 2, **WHY)
    crowd.come(1)
    info = seen("k")
    assert (len(info.holders), info.waiting, info.holders_at_most) == (5, 2, True)
    assert len(request_release("k", "drain", by="anna")) == 5
    crowd.hold(0, 1, 2, 3, 4)


def test_a_try_gets_no_permit_by_an_older_limit(zoo, crowd):
    """Though there are numbers left that had one: they were those of others, and are given to nobody again."""
    crowd.come(3)
    crowd.hold(0, 1, 2)
    set_limit("k", 1, **WHY)
    crowd.go(1, 2)
    settle()
    created = zoo.client.get(f"{zoo.base}/k")[1].cversion
    assert zk_lock("k", limit=3).acquire(blocking=False) is None
    assert zoo.client.get(f"{zoo.base}/k")[1].cversion == created  # nobody went in for it
    crowd.go(0)
    assert not zk_lock("k", limit=3).locked()


def test_a_limit_is_set_on_an_unused_key(zoo):
    assert limit_of("far/away") is None
    set_limit("far/away", 1, **WHY)
    limit = limit_of("far/away")
    assert limit is not None
    assert (limit.limit, limit.by, limit.reason) == (1, "anna", "the printer is slow")
    assert limit.when is not None
    with zk_lock("far/away", limit=5):
        assert_refused(zk_lock("far/away", limit=5, timeout=0, reentrant=False), LockBusy)
    clear_limit("far/away", **WHY)
    assert limit_of("far/away") is None
    snapshot(max_age=0)
    with contextlib.suppress(NoNodeError):  # its container has gone, too
        eventually(lambda: zoo.client.get_children(f"{zoo.base}/far/away") == [])


def test_a_change_of_the_limit_is_audited_and_sends_a_signal(zoo, caplog):
    with signalled("limit_changed") as sent, caplog.at_level(logging.INFO, "zklock.audit"):
        set_limit("k", 2, **WHY)
        clear_limit("k", reason="it is mended", by="ben")
        eventually(lambda: len(sent) == 2)
    assert [(kwargs["lock"], kwargs["limit"], kwargs["by"], kwargs["reason"]) for _, kwargs in sent] == [
        ("k", 2, "anna", "the printer is slow"),
        ("k", None, "ben", "it is mended"),
    ]
    assert [record.getMessage() for record in caplog.records if record.name == "zklock.audit"] == [
        "lock 'k': Limit set to 2; by anna: the printer is slow",
        "lock 'k': Limit cleared; by ben: it is mended",
    ]


@pytest.mark.parametrize("limit", [0, -1, 10_001, True, 2.5, None])
def test_an_invalid_number_of_permits_is_refused(zoo, limit):
    with pytest.raises(ValueError, match="from 1 to 10000"):
        set_limit("k", limit, **WHY)


def test_of_two_concurrent_changes_the_later_limit_remains(zoo):
    with zk_lock("k", limit=2):
        changes = [BackgroundCall(lambda limit=limit: set_limit("k", limit, **WHY)) for limit in range(1, 9)]
        results(changes)
        (name,) = markers_of(zoo)
        limit = limit_of("k")
        assert limit is not None
        assert name == markers.limit_marker(limit.limit)
    clear_limit("k", **WHY)


@pytest.mark.parametrize("when", ["kill_before_op", "kill_after_op"])
def test_a_limit_change_survives_a_cut(zoo, proxy, caplog, when):
    zoo.client.ensure_path(f"{zoo.base}/k")
    with caplog.at_level(logging.INFO, "zklock.audit"):
        fired = getattr(proxy, when)(MULTI)
        set_limit("k", 2, **WHY)
        assert fired.is_set()
        assert len(markers_of(zoo)) == 1
        assert zoo.client.exists(f"{zoo.base}/k").version == 1
        fired = getattr(proxy, when)(MULTI)
        assert clear_limit("k", **WHY)
        assert fired.is_set()
        assert markers_of(zoo) == [markers.limit_marker(0)]
    assert [record.name for record in caplog.records].count("zklock.audit") == 2
