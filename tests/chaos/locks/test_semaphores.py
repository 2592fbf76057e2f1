"""As many have a permit as the limit says that counts; what one gives up or loses, the next one gets."""

from __future__ import annotations

import pytest
from support.chaos.report import Figures
from support.chaos.session_killer import expire
from support.chaos.worker_pool import LockWorker, WorkerPool
from support.proxy import CREATE2, Proxy
from support.zoo import Zoo, eventually

pytestmark = pytest.mark.zookeeper

T = 4.0  # seconds, of a session
SOON = 5.0  # seconds, for what takes some milliseconds
PERMITS = 2


@pytest.fixture(autouse=True)
def _has_one_queue(pool: WorkerPool) -> None:
    if pool.lock != "zklock":
        pytest.skip("kazoo's semaphore is another than its Lock")


def holding(pool: WorkerPool, *names: str, limit: int = PERMITS) -> list[LockWorker]:
    """Processes that each have a permit."""
    workers = pool.start(*names, session_timeout=T)
    for worker in workers:
        assert worker.take(limit=limit)["kind"] == "semaphore"
    return workers


@pytest.mark.scenario("PERMITS")
def test_the_one_too_many_waits_for_whoever_lets_go_first(pool: WorkerPool, figure: Figures) -> None:
    """Not for the one just ahead, nor for the first; and those behind it come after it."""
    holders = holding(pool, "A", "B")
    for worker in holders:
        worker.work()  # so that the checker sees one that is granted a permit too many
    third, fourth = pool.start("C", "D")
    waiting = third.acquire(limit=PERMITS, timeout=30)
    pool.wait_contenders(3)
    behind = fourth.acquire(limit=PERMITS, timeout=30)
    pool.wait_contenders(4)
    for holder, call, next_one in ((holders[1], waiting, third), (holders[0], behind, fourth)):
        assert not call.done()
        holder.stop_work()
        released = holder.release().result()["t"]
        granted = call.result(SOON)
        assert granted["granted"]
        figure("hand-off", granted["t"] - released, "s")
        assert next_one.check()
        next_one.work()
    pool.assert_kept()


@pytest.mark.scenario("PERMITS")
def test_a_limit_that_is_raised_lets_the_next_in_at_once(pool: WorkerPool, figure: Figures) -> None:
    workers = [*holding(pool, "A", "B"), *pool.start("C", "D")]
    waiting = [worker.acquire(limit=PERMITS, timeout=30) for worker in workers[2:]]
    pool.wait_contenders(PERMITS + 2)
    changed = pool.set_limit("k", PERMITS + 1)
    eventually(lambda: any(call.done() for call in waiting), SOON)
    first = next(call for call in waiting if call.done())
    figure("raised limit heard of after", first.result()["t"] - changed, "s")
    other = next(call for call in waiting if call is not first)
    assert not other.done()
    pool.set_limit("k", PERMITS + 2)
    assert other.result(SOON)["granted"]
    assert all(worker.check() for worker in workers)
    pool.assert_kept()


@pytest.mark.scenario("PERMITS")
@pytest.mark.chaos
def test_a_limit_that_is_lowered_takes_nobodys_permit_and_gives_none_before_enough_are_back(pool: WorkerPool) -> None:
    """Once it is cleared, the limits in the code count again."""
    holders = holding(pool, "A", "B")
    third, fourth = pool.start("C", "D")
    pool.set_limit("k", 1)
    waiting = third.acquire(limit=PERMITS, timeout=30)
    pool.wait_contenders(3)
    holders[0].release().result()
    pool.wait_contenders(2)
    assert holders[1].check()
    assert not waiting.done()
    behind = fourth.acquire(limit=PERMITS, timeout=30)
    pool.wait_contenders(3)
    holders[1].release().result()
    assert waiting.result(SOON)["granted"]
    assert not behind.done()
    pool.set_limit("k", None)
    assert behind.result(SOON)["granted"]
    pool.assert_kept()


@pytest.mark.scenario("PERMITS")
@pytest.mark.chaos
def test_a_permit_that_is_lost_with_its_session_is_the_next_ones(pool: WorkerPool, arena: Zoo) -> None:
    """CURATOR-595: its holder is told, and the others keep theirs."""
    first, second = holding(pool, "A", "B")
    third = pool.start_one("C")
    working = first.work()
    waiting = third.acquire(limit=PERMITS, timeout=30)
    pool.wait_contenders(3)
    session = first.ask("session")
    pool.note("expire", target="A")
    expire(arena.all_hosts, session["id"])
    pool.note("done", of="expire", target="A")
    assert waiting.result(SOON)["granted"]
    assert working.result(SOON)["lost"]
    assert second.check()
    pool.assert_kept()


@pytest.mark.scenario("PERMITS")
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


@pytest.mark.scenario("PERMITS")
@pytest.mark.chaos
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


@pytest.mark.scenario("PERMITS")
@pytest.mark.chaos
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


@pytest.mark.scenario("PERMITS")
@pytest.mark.chaos
def test_a_holder_that_is_paused_past_its_session_has_no_permit_any_more(pool: WorkerPool) -> None:
    first, second = holding(pool, "A", "B")
    third = pool.start_one("C")
    first.pause()
    assert third.take(limit=PERMITS, timeout=3 * T)["granted"]
    first.resume()
    assert not first.check()
    assert second.check()
    pool.assert_kept()
