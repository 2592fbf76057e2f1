"""A process that is interrupted, killed or suspended, or whose link fails, keeps its promises."""

import subprocess
import sys
import time

import pytest
from support.chaos import namespaces
from support.proxy import DELETE
from support.zoo import TESTS, eventually

TICK = 0.5  # seconds, of the test's servers
LEFT_BEHIND = 2.0  # seconds that a contender may outlive its caller while ZooKeeper is reachable; promised


def hit(*faults):
    """Wait until one of these faults has happened: that it did not says nothing about the lock."""
    deadline = time.monotonic() + 10
    while not any(fault.is_set() for fault in faults):
        if time.monotonic() > deadline:
            raise RuntimeError("the fault met no request")
        time.sleep(0.005)


@pytest.mark.convicts_kazoo
def test_a_holder_behind_a_dead_link_is_aborted_before_the_next_grant(pool, proxy):
    """The link carries nothing, and no end is told."""
    a, b = pool.start_one("A", hosts=proxy.address), pool.start_one("B")
    a.must_acquire(abort_on="lost")
    a.tell("chatter", every=0.3).result()
    working = a.work()
    call = b.acquire(timeout=20)
    pool.wait_contenders(2)
    pool.note("blackhole", target=a.name)
    proxy.hang = True
    answer = call.granted()
    if not working.done():
        a.stop_work()
    outcome = working.result()
    assert outcome["lost"], "the holder was not told"
    assert outcome["t"] < answer["t"], "the holder was told after the next one was granted"
    proxy.heal()
    pool.assert_kept()


@pytest.mark.convicts_kazoo
def test_a_waiter_leaves_the_queue_though_its_delete_is_lost(pool, arena, proxy):
    a, b = pool.start_one("A"), pool.start_one("B", hosts=proxy.address)
    a.must_acquire()
    fault = proxy.kill_before_op(DELETE)
    answer = b.acquire(timeout=1).result()
    assert not answer["granted"]
    hit(fault)  # later, because ours makes no caller wait for it
    eventually(
        lambda: len(arena.children("k")) == 1, LEFT_BEHIND, "the contender of the one who gave up stays in the queue"
    )
    a.release().result()
    pool.assert_kept()


def test_a_killed_holder_is_replaced_within_its_session_timeout(pool):
    a, b = pool.start("A", "B")
    a.must_acquire()
    call = b.acquire(timeout=20)
    pool.wait_contenders(2)
    killed = a.kill()
    answer = call.granted(25)
    assert answer["t"] - killed <= a.session_timeout + 2 * TICK + 0.5
    pool.assert_kept()


def test_a_suspend_of_the_machine_counts_for_the_lease():
    """The monotonic clock stops while a machine is suspended, so a lease measured by it would still look valid."""
    script = "from django_zklock.core.clock import now; import time; print(now() - time.monotonic())"
    command = [*namespaces.unshare("--time"), "--boottime=100000", sys.executable, "-c", script]
    assert float(subprocess.check_output(command, cwd=TESTS.parent)) > 99999
