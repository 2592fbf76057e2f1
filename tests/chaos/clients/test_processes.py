"""Processes that are interrupted, killed or suspended delay others no longer than promised."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.chaos import namespaces
from support.chaos.worker_pool import WorkerPool
from support.zoo import TESTS, eventually

pytestmark = pytest.mark.zookeeper

TICK = 0.5  # seconds, of the test's servers
T = 3.0  # seconds, the session timeout; the lease is 1.2
LEFT_BEHIND = 2.0  # seconds that a node may outlive its contender; promised


@pytest.mark.convicts_kazoo
def test_a_waiter_leaves_the_queue_at_its_soft_time_limit(pool: WorkerPool) -> None:
    a, b = pool.start("A", "B")
    b.must_acquire(owner="ahead")
    waiting = a.acquire(timeout=30)
    _, mine = pool.wait_contenders(2)
    behind = b.acquire(timeout=10, owner="behind")
    pool.wait_contenders(3)
    pool.note("alarm", target="A")
    a.tell("alarm", after=0.05).result()
    assert waiting.result(5)["error"] == "Struck"
    eventually(lambda: mine not in pool.zoo.children("k"), LEFT_BEHIND, "the one that was struck is still in the queue")
    b.release(owner="ahead").result()
    answer = behind.result(15)
    assert answer["granted"], "the one behind the one that was struck was never served"
    b.release(owner="behind").result()
    a.must_acquire()
    pool.assert_kept()


def test_a_killed_holder_is_replaced_within_its_session_timeout(pool: WorkerPool) -> None:
    a, b = pool.start("A", "B")
    a.must_acquire()
    call = b.acquire(timeout=20)
    pool.wait_contenders(2)
    killed = a.kill()
    answer = call.result(25)
    assert answer["granted"]
    assert answer["t"] - killed <= a.session_timeout + 2 * TICK + 0.5
    pool.assert_kept()


def test_a_suspend_of_the_machine_counts_for_the_lease() -> None:
    """The monotonic clock stops while a machine is suspended, so a lease measured by it would still look valid."""
    script = "from django_zklock.core.clock import now; import time; print(now() - time.monotonic())"
    command = [*namespaces.unshare("--time"), "--boottime=100000", sys.executable, "-c", script]
    assert float(subprocess.check_output(command, cwd=TESTS.parent)) > 99999
