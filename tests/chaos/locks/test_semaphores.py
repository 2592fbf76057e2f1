"""As many have a permit as the limit says that counts; what one gives up or loses, the next one gets."""

from __future__ import annotations

import pytest
from support.chaos.report import Figures
from support.chaos.worker_pool import LockWorker, WorkerPool
from support.proxy import CREATE2, Proxy

pytestmark = pytest.mark.zookeeper

T = 4.0  # seconds, of a session
SOON = 5.0  # seconds, for what takes some milliseconds
PERMITS = 2


def holding(pool: WorkerPool, *names: str, limit: int = PERMITS) -> list[LockWorker]:
    """Processes that each have a permit."""
    workers = pool.start(*names, session_timeout=T)
    for worker in workers:
        assert worker.take(limit=limit)["kind"] == "semaphore"
    return workers


def test_a_create_whose_answer_is_lost_takes_one_permit(proxy: Proxy, pool: WorkerPool) -> None:
    """CURATOR-335, -315: a lease was left behind that no client knew of."""
    first = pool.start_one("A", hosts=proxy.address)
    (second,) = pool.start("B")
    proxy.kill_after_op(CREATE2)
    pool.note("lose", target="A")
    assert first.take(limit=PERMITS)["granted"]
    assert second.take(limit=PERMITS)["granted"]
    assert len(pool.zoo.children("k")) == 2
    pool.assert_kept()


def test_permits_and_a_lock_of_one_key_keep_each_other_out(pool: WorkerPool) -> None:
    first, second = holding(pool, "A", "B", limit=PERMITS + 1)
    locker, late = pool.start("C", "D")
    locking = locker.acquire(timeout=30)
    pool.wait_contenders(3)
    waiting = late.acquire(limit=PERMITS + 1, timeout=30)
    pool.wait_contenders(4)
    first.release().result()
    assert not locking.done()
    second.release().result()
    assert locking.result(SOON)["granted"]
    assert not waiting.done(), "it came past the lock, as there were permits"
    locker.release().result()
    assert waiting.result(SOON)["granted"]
    pool.assert_kept()


def test_a_permit_of_a_process_that_is_killed_is_free_after_its_session(pool: WorkerPool, figure: Figures) -> None:
    first, second = holding(pool, "A", "B")
    third = pool.start_one("C")
    waiting = third.acquire(limit=PERMITS, timeout=30)
    pool.wait_contenders(3)
    killed = first.kill()
    answer = waiting.result(3 * T)
    assert answer["granted"]
    figure("replaced after", answer["t"] - killed, "s")
    assert answer["t"] - killed < T + 2
    assert second.check()
    pool.assert_kept()


def test_a_holder_that_is_paused_past_its_session_has_no_permit_any_more(pool: WorkerPool) -> None:
    first, second = holding(pool, "A", "B")
    third = pool.start_one("C")
    first.pause()
    assert third.take(limit=PERMITS, timeout=3 * T)["granted"]
    first.resume()
    assert not first.check()
    assert second.check()
    pool.assert_kept()
