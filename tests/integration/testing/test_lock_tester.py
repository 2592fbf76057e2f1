"""What `LockTester` promises to a test: faults that happen when they are asked for, and questions with true answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support.faults import BackgroundCall, within
from support.zoo import eventually

from django_zklock import zk_leader, zk_lock, zk_locks
from django_zklock.exceptions import LockBusy, LockLost, ZooKeeperUnavailable
from django_zklock.testing import DevServer, LockTester
from django_zklock.zk import process


@pytest.fixture(scope="module")
def server() -> Iterator[DevServer]:
    with DevServer() as server:
        yield server


def test_who_holds_and_who_waits_is_known(zklock: LockTester) -> None:
    """A queue shows who is in it, in order, and the assertions agree."""

    def work() -> None:
        with zk_lock("a"):
            pass

    zklock.assert_free("a")
    with zk_lock("a"):
        zklock.assert_held("a")
        zklock.assert_waiting("a", 0)
        others = [BackgroundCall(work) for _ in range(2)]
        zklock.assert_waiting("a", 2)
        queue = zklock.queue("a")
        assert len(queue) == 3
        assert queue[0].payload is not None
        assert queue[0].payload.thread == "MainThread"
        with pytest.raises(AssertionError, match=r"'a' is not free.\na\n  holds  .*\n  waits  .*\n  waits  "):
            zklock.assert_free("a", timeout=0)
    for other in others:
        other.result()
    zklock.assert_free("a")


def test_names_and_fields_are_those_of_the_lock(zklock: LockTester) -> None:
    """A question about a lock takes what the lock takes, and says so in the same way when it makes no sense."""
    with zk_lock("orders/{order}", fields={"order": "4/7"}):
        zklock.assert_held("orders/{order}", {"order": "4/7"})
        zklock.assert_free("orders/{order}", {"order": "47"})
        assert zklock.describe().startswith("orders/4%2F7\n  holds  ")
    with pytest.raises(AssertionError, match="has no holder"):
        zklock.assert_held("orders/{order}", {"order": "4/7"}, timeout=0)


def test_a_lock_can_be_somebody_elses(zklock: LockTester) -> None:
    """While another client has the lock nobody gets it here, and who waits gets it when that client is done."""

    def work() -> None:
        with zk_lock("a"):
            pass

    with zklock.busy_by("a", what="nightly report"):
        (holder,) = zklock.queue("a")
        assert holder.payload is not None
        assert holder.payload.what == "nightly report"
        with pytest.raises(LockBusy), zk_lock("a", timeout=0):
            pass
        waiting = BackgroundCall(work)
        zklock.assert_waiting("a")
    waiting.result()


def test_a_lock_that_is_taken_cannot_become_somebody_elses(zklock: LockTester) -> None:
    """`busy_by` fails rather than pretend, and leaves no contender."""
    with zk_lock("a"):
        with pytest.raises(AssertionError, match="'a' is not free"), zklock.busy_by("a"):
            pass
        assert len(zklock.queue("a")) == 1


def test_under_a_fault_the_questions_have_answers(zklock: LockTester) -> None:
    """Who is in line is known while nobody is let in, if not by name; and the other client is back right after it."""
    with zklock.busy_by("a"):
        with zklock.suspended():
            zklock.assert_held("a", timeout=0)
            assert len(zklock.queue("a")) == 1
            assert zklock.describe().startswith("a\n  holds  ")
        with zklock.busy_by("b"):
            zklock.assert_held("b", timeout=0)


def test_nobody_else_comes_in_under_a_fault(zklock: LockTester) -> None:
    """`busy_by` says so when it cannot do what it is for."""
    with zklock.suspended(), pytest.raises(TimeoutError, match="could not create a contender"), zklock.busy_by("a"):
        pass


def test_a_stalled_server_keeps_no_question_for_long(zklock: LockTester) -> None:
    """However many are in line, who cannot be read is asked for once."""
    with zklock.busy_by("a"), zklock.busy_by("b"), zklock.busy_by("c"):
        zklock.server.stall = True
        with within(5):
            assert zklock.describe().count("holds") == 3
        zklock.server.stall = False


def test_work_is_stopped_when_the_session_expires(zklock: LockTester) -> None:
    """An expired session stops the work under its lock, and the lock is free."""
    with within(10), pytest.raises(LockLost), zk_lock("a"):
        zklock.expire_session()
        threading.Event().wait(20)
    zklock.assert_free("a")
    with zk_lock("a"):  # in a new session
        zklock.assert_held("a")


def test_a_lost_session_is_known_in_the_block(zklock: LockTester) -> None:
    """In the block of `lost()` the hold is lost, and behind it there is a new session."""
    with zk_lock("a", abort_on="never") as hold:
        with zklock.lost():
            assert hold.lost
            with pytest.raises(LockLost):
                hold.check()
        session = process.peek()
        assert session is not None
        assert session.connected


def test_a_suspended_session_lives_on(zklock: LockTester) -> None:
    """In the block of `suspended()` nobody vouches for the lock, and behind it the same hold is valid again."""
    with zk_lock("a", abort_on="lost") as hold:
        with zklock.suspended():
            assert process.current().connected is False
            assert not hold.lost
            zklock.assert_held("a", timeout=0)  # the server still has it
        zklock.eventually(lambda: not process.current().suspect)
        hold.check()


def test_work_is_stopped_when_the_connection_is_suspended(zklock: LockTester) -> None:
    """The default policy stops the work under a suspended lock, and the fault is healed although it struck itself."""
    with within(10), pytest.raises(LockLost), zk_lock("a"), zklock.suspended():
        threading.Event().wait(20)
    assert not zklock.server.refuse
    with zk_lock("a"):
        zklock.assert_held("a")


def test_nobody_answers_who_comes_under_a_suspension(zklock: LockTester) -> None:
    """Without a session before, code under test is told that ZooKeeper is away."""
    with zklock.suspended(), pytest.raises(ZooKeeperUnavailable), zk_lock("a"):
        pass


def test_a_thread_is_stopped_too(zklock: LockTester) -> None:
    """A fault strikes the work of all threads."""

    def work() -> None:
        with zk_lock("a"):
            started.set()
            for _ in range(2000):
                threading.Event().wait(0.01)

    started = threading.Event()
    thread = BackgroundCall(work)
    assert started.wait(10)
    zklock.expire_session()
    with pytest.raises(LockLost):
        thread.result()


def test_a_test_that_ends_under_a_fault_is_cleaned_up(server: DevServer) -> None:
    """Every fault is healed at the end, and what it kept in a queue is gone."""
    tester = LockTester(server)
    tester.start()
    with zk_lock("a", abort_on="never"):
        server.refuse = True
        server.cut()
    tester.stop()
    assert not server.refuse
    assert server.paths(below=tester.chroot) == [] or not tester.queue("a")


def test_what_stays_of_a_hold_that_lasts_at_least_a_time_is_not_left(server: DevServer) -> None:
    """It outlives every process, and the next test has a root of its own."""
    with LockTester(server), zk_lock("a", min_hold=300):
        pass
    with LockTester(server), zk_lock("a", timeout=0):
        pass


def test_an_idle_lock_that_lingers_is_not_left(server: DevServer) -> None:
    """It leaves with the end of the test; one that is in use is reported."""
    with LockTester(server), zk_lock("a", linger=300):
        pass
    tester = LockTester(server)
    tester.start()
    assert zk_lock("a", linger=300).acquire(timeout=5) is not None
    with pytest.raises(AssertionError, match="these contenders are left"):
        tester.stop()


def test_what_is_left_is_told_and_let_go(server: DevServer) -> None:
    """A contender that is left fails the end, and is gone afterwards all the same."""
    tester = LockTester(server)
    tester.start()
    assert zk_lock("a").acquire(timeout=5) is not None
    with pytest.raises(AssertionError, match=r"these contenders are left:\na\n  holds  "):
        tester.stop()
    eventually(lambda: not [path for path in server.paths() if path.startswith(f"{tester.chroot}/zklock/a/")])


def test_the_error_of_a_block_is_not_hidden(server: DevServer) -> None:
    """Where the test has failed already, what it left in the queues is not what it has to tell."""
    with pytest.raises(KeyError), LockTester(server):
        zk_lock("a").acquire(timeout=5)
        raise KeyError("the reason")


def test_eventually_shows_the_queues_when_it_never_was(zklock: LockTester) -> None:
    """A condition that does not come true fails with its message and with who is in line."""
    with zk_lock("a"), pytest.raises(AssertionError, match=r"no parcel: not within 0\.05 s\na\n  holds"):
        zklock.eventually(lambda: False, timeout=0.05, message="no parcel")


def test_no_thread_outlives_a_test(server: DevServer) -> None:
    """The end of a test ends its threads: the session's, and those of the other client."""
    before = set(threading.enumerate())
    with LockTester(server) as tester, zk_lock("a"), tester.busy_by("b"):
        assert set(threading.enumerate()) - before
    tester.eventually(lambda: {t for t in threading.enumerate() if t.name.startswith("zklock")} <= before)


# --- readers, writers, permits, several locks, leaders ----------------------------------------------------------------


@pytest.mark.parametrize("how", [{"kind": "read"}, {"kind": "write"}, {"limit": 3}], ids=["read", "write", "permit"])
def test_a_lock_of_any_kind_can_be_somebody_elses(zklock: LockTester, how: dict[str, Any]) -> None:
    """Alone, if nothing else is said: code under test finds it busy, and has it when that client is done."""

    def work() -> None:
        with zk_lock("a", timeout=20, **how):
            pass

    with zklock.busy_by("a"):
        zklock.assert_held("a", holders=1)
        with pytest.raises(LockBusy), zk_lock("a", timeout=0, **how):
            pass
        waiting = BackgroundCall(work)
        zklock.assert_waiting("a")
    waiting.result()


def test_somebody_else_may_read(zklock: LockTester) -> None:
    """Code under test can read meanwhile, and waits to write."""
    with zklock.busy_by("a", kind="read", what="an export"):
        with zk_lock("a", kind="read", timeout=0):
            zklock.assert_held("a", holders=2)
            zklock.assert_waiting("a", 0)
            assert [(each.holds, each.kind) for each in zklock.queue("a")] == [(True, "read")] * 2
            assert zklock.describe().count("  holds  ") == 2
        with pytest.raises(LockBusy), zk_lock("a", kind="write", timeout=0):
            pass
    with zk_lock("a", kind="read"), zklock.busy_by("a", kind="read"):
        zklock.assert_held("a", holders=2)
        with pytest.raises(AssertionError, match="'a' is not free"), zklock.busy_by("a", kind="write"):
            pass


def test_somebody_else_may_have_a_permit(zklock: LockTester) -> None:
    """As many as there are permits; the next one waits, and is no holder."""
    with zklock.busy_by("a", limit=2):
        with zk_lock("a", limit=2, timeout=0), pytest.raises(AssertionError, match="not free"):
            zklock.assert_held("a", holders=2)
            with zklock.busy_by("a", limit=2):
                pass
        with zklock.busy_by("a", limit=2):
            with pytest.raises(LockBusy), zk_lock("a", limit=2, timeout=0):
                pass
            with pytest.raises(AssertionError, match="'a' does not have 1 holder"):
                zklock.assert_held("a", holders=1, timeout=0)
    zklock.assert_free("a")


def test_several_locks_and_leaders_are_asked_for_by_their_names(zklock: LockTester) -> None:
    """Each of several locks is a lock; who leads holds the lock of that name."""
    with zk_locks("a", zk_lock("b", kind="read")):
        zklock.assert_held("a")
        zklock.assert_held("b")
    with zk_leader("scheduler"):
        zklock.assert_held("scheduler")
    with zklock.busy_by("scheduler"):
        leading = zk_leader("scheduler").current_leader()
        assert leading is not None
        assert leading.what == "another client"
