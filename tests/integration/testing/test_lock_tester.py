"""`LockTester`: its faults happen at once, its assertions agree with the queues, and it leaves nothing."""

import threading

import pytest
from support.faults import BackgroundCall, acquire_once, within
from support.proxy import DELETE, Proxy
from support.work import assert_refused
from support.zoo import eventually

from django_zklock import zk_leader, zk_lock, zk_locks
from django_zklock.core.queue.escaping import SEQUENCE_TAIL
from django_zklock.core.zk import process
from django_zklock.exceptions import LockBusy, LockLost
from django_zklock.inspection import look_at
from django_zklock.testing import DevServer, LockTester


@pytest.fixture(scope="module")
def server():
    with DevServer() as server:
        yield server


def work(**options):
    acquire_once("a", timeout=20, **options)


def test_assertions_agree_with_the_queue(zklock):
    zklock.assert_free("a")
    with zk_lock("a"):
        zklock.assert_held("a")
        zklock.assert_waiting("a", 0)
        others = [BackgroundCall(work) for _ in range(2)]
        zklock.assert_waiting("a", 2)
        first, _second, _third = zklock.queue("a")
        assert first.payload is not None
        assert first.payload.thread == "MainThread"
        with pytest.raises(AssertionError, match=r"'a' is not free.\na\n  holds  .*\n  waits  .*\n  waits  "):
            zklock.assert_free("a", timeout=0)
        with pytest.raises(AssertionError, match=r"no parcel: not within 0\.05 s\na\n  holds"):
            zklock.eventually(lambda: False, timeout=0.05, message="no parcel")
    for other in others:
        other.result()
    zklock.assert_free("a")


def test_a_lock_is_free_as_soon_as_its_block_has_ended(server):
    """The delete may still be on its way to the server. `locked()` and the tester, which looks there, agree."""
    with Proxy(server.hosts) as proxy, LockTester(server, settings={"URL": f"zk://{proxy.address}"}) as zklock:
        looks = [
            zk_lock("a").locked,
            lambda: zklock.queue("a"),
            lambda: zklock.describe() != "No lock has a contender.",
            lambda: zklock.assert_free("a", timeout=0),
            lambda: zklock.assert_waiting("a", 0, timeout=0),
        ]
        proxy.delay_op(DELETE, 0.3)
        for look in looks:
            for lock in (zk_lock("a"), zk_lock("a", limit=1), zk_locks("a", "b")):
                with lock:
                    zklock.assert_held("a", timeout=0)
                assert not look()
        work()
        with pytest.raises(AssertionError, match="has no holder"):
            zklock.assert_held("a", timeout=0)
        work()
        with zklock.busy_by("a"):
            zklock.assert_held("a", holders=1, timeout=0)
        work()
        assert not zk_lock("a").locked()  # as the guide says, before a test looks by another client
        assert not any(map(SEQUENCE_TAIL.search, server.paths("/zklock")))


def test_assertions_take_names_and_fields_as_the_lock_does(zklock):
    with zk_lock("orders/{order}", fields={"order": "4/7"}):
        zklock.assert_held("orders/{order}", {"order": "4/7"})
        zklock.assert_free("orders/{order}", {"order": "47"})
        assert zklock.describe().startswith("orders/4%2F7\n  holds  ")
    with pytest.raises(AssertionError, match="has no holder"):
        zklock.assert_held("orders/{order}", {"order": "4/7"}, timeout=0)


def test_a_test_may_look_at_a_lock_by_the_path_of_its_entry(server):
    """It loses no options: it acquires nothing. A warning would be an error here."""
    locks = {"order": {"path": "order/{pk}", "max_hold": 60}}
    with LockTester(server, settings={"LOCKS": locks}) as zklock:
        zklock.assert_free("order/7")
        with zklock.busy_by("order/{pk}", {"pk": 7}):
            zklock.assert_held("order/7")


def test_assertions_and_busy_by_work_during_a_fault(zklock):
    with zklock.busy_by("a"):
        with zklock.suspended():
            zklock.assert_held("a", timeout=0)
            assert zklock.describe().startswith("a\n  holds  ")
        with zklock.busy_by("b"), zklock.busy_by("c"):
            zklock.server.stall = True
            with within(5):
                assert zklock.describe().count("holds") == 3
            zklock.server.stall = False
    with zklock.suspended(), zklock.busy_by("a"):
        zklock.assert_held("a", timeout=0)


def test_work_is_stopped_when_the_session_expires(zklock):
    with within(10), pytest.raises(LockLost), zk_lock("a"):
        zklock.expire_session()
        threading.Event().wait(20)
    zklock.assert_free("a")
    with zk_lock("a"):  # in a new session
        zklock.assert_held("a")


def test_a_lost_session_is_known_in_the_block(zklock):
    with zk_lock("a", abort_on="never") as hold:
        with zklock.lost():
            assert hold.lost
        session = process.peek()
        assert session is not None
        assert session.connected


def test_a_suspended_session_lives_on(zklock):
    with zk_lock("a") as hold:
        with zklock.suspended():
            assert process.current().connected is False
            assert not hold.lost
            zklock.assert_held("a", timeout=0)  # the server still has it
        zklock.eventually(lambda: not process.current().suspect)
        hold.check()


def test_a_test_that_ends_under_a_fault_is_cleaned_up(server):
    with LockTester(server) as tester, zk_lock("a", abort_on="never"):
        server.refuse = True
        server.cut()
    assert not server.refuse
    assert server.paths(below=tester.chroot) == [] or not tester.queue("a")


@pytest.mark.parametrize("options", [{"min_hold": 300}, {"linger": 300}], ids=repr)
def test_a_minimum_hold_or_an_idle_lock_is_no_contender_that_is_left(server, options):
    """A minimum hold outlives the process, and the next test has a root of its own. An idle lock is released."""
    with LockTester(server), zk_lock("a", **options):
        pass
    with LockTester(server), zk_lock("a", timeout=0):
        pass


@pytest.mark.parametrize("options", [{}, {"linger": 300}], ids=repr)
def test_a_remaining_contender_fails_the_test_and_is_deleted(server, options):
    left = pytest.raises(AssertionError, match=r"these contenders are left:\na\n  holds  ")
    with left, LockTester(server) as tester:
        assert zk_lock("a", **options).acquire(timeout=30) is not None
    eventually(lambda: not [path for path in server.paths() if path.startswith(f"{tester.chroot}/zklock/a/")])


def test_the_error_of_a_block_is_not_hidden(server):
    with pytest.raises(KeyError), LockTester(server):
        zk_lock("a").acquire(timeout=30)
        raise KeyError("the reason")


@pytest.mark.parametrize("how", [{"kind": "read"}, {"kind": "write"}, {"limit": 3}], ids=["read", "write", "permit"])
def test_another_client_holds_a_lock_of_any_kind_alone(zklock, how):
    with zklock.busy_by("a", what="nightly report"):
        (holder,) = zklock.queue("a")
        assert "nightly report" in str(holder.payload)
        zklock.assert_held("a", holders=1)
        with pytest.raises(AssertionError, match="'a' is not free"), zklock.busy_by("a"):
            pass
        assert_refused(zk_lock("a", timeout=0, **how), LockBusy)
        waiting = BackgroundCall(lambda: work(**how))
        zklock.assert_waiting("a")
    waiting.result()


def test_another_client_may_hold_a_read_lock(zklock):
    with zklock.busy_by("a", kind="read", what="an export"):
        with zk_lock("a", kind="read", timeout=0):
            zklock.assert_held("a", holders=2)
            zklock.assert_waiting("a", 0)
            assert [(entry.holds, entry.kind) for entry in zklock.queue("a")] == [(True, "read")] * 2
            assert zklock.describe().count("  holds  ") == 2
        assert_refused(zk_lock("a", kind="write", timeout=0), LockBusy)
    with zk_lock("a", kind="read"), zklock.busy_by("a", kind="read"):
        zklock.assert_held("a", holders=2)
        with pytest.raises(AssertionError, match="'a' is not free"), zklock.busy_by("a", kind="write"):
            pass


def test_assertions_take_the_names_of_several_locks_and_of_leaders(zklock):
    with zk_locks("a", zk_lock("b", kind="read")), zk_leader("scheduler"):
        for name in ("a", "b", "scheduler"):
            zklock.assert_held(name)
    with zklock.busy_by("scheduler"):
        (leading,) = look_at("scheduler").holders
        assert leading.what == "another client"
