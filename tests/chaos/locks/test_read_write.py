"""Readers share, a writer has the lock alone, and the one who becomes the other does so without a gap."""

from __future__ import annotations

import pytest
from support.chaos.report import Figures
from support.chaos.worker_pool import WorkerPool
from support.zoo import Zoo, eventually

pytestmark = pytest.mark.zookeeper

T = 4.0  # seconds, of a session
SOON = 5.0  # seconds, for what takes some milliseconds


def test_a_writer_that_waits_does_not_come_between_when_the_other_becomes_a_reader(
    pool: WorkerPool, figure: Figures
) -> None:
    """CURATOR-621. A reader ahead of it gets the lock at once, and one behind it waits, too."""
    first, second, before, behind = pool.start("A", "B", "C", "D")
    token = first.take(kind="write")["token"]
    reading = before.acquire(kind="read")
    pool.wait_contenders(2)
    writing = second.acquire(kind="write", timeout=30)
    pool.wait_contenders(3)
    late = behind.acquire(kind="read", timeout=30)
    pool.wait_contenders(4)
    downgraded = first.downgrade().result()
    assert (downgraded["kind"], downgraded["error"]) == ("read", "")
    granted = reading.result(SOON)
    assert granted["granted"]
    figure("the next reader comes in after", granted["t"] - downgraded["t"], "s")
    for worker in (first, before):
        assert not worker.work(seconds=0.3).result()["lost"]
    assert not writing.done()
    assert not late.done()
    assert pool.zoo.payloads("k")[0] is not None, "the payload does not show who reads"
    first.release().result()
    assert before.check()
    assert not writing.done(), "another one reads still"
    before.release().result()
    assert writing.result(SOON)["token"] > token
    assert not late.done()
    second.release().result()
    assert late.result(SOON)["granted"]
    pool.assert_kept()


def test_who_lets_go_of_writing_first_reads_on_without_a_gap(pool: WorkerPool) -> None:
    first, second, reader = pool.start("A", "B", "C")
    token = first.take(kind="write")["token"]
    again = first.take(kind="read")
    assert (again["token"], again["kind"]) == (token, "read")
    reading = reader.acquire(kind="read")
    pool.wait_contenders(2)
    writing = second.acquire(kind="write", timeout=30)
    pool.wait_contenders(3)
    assert not reading.done()
    first.release(outermost=True).result()
    assert reading.result(SOON)["granted"]
    assert first.check()
    reader.release().result()
    assert first.check()
    assert not writing.done()
    first.release().result()
    assert writing.result(SOON)["granted"]
    pool.assert_kept()


@pytest.mark.parametrize("downgraded", [False, True])
def test_a_reader_that_is_killed_keeps_writers_out_for_its_session_at_most(pool: WorkerPool, downgraded: bool) -> None:
    first, second, writer = pool.start("A", "B", "C", session_timeout=T)
    first.take(kind="write" if downgraded else "read")
    if downgraded:
        first.downgrade().result()
    second.take(kind="read")
    writing = writer.acquire(kind="write", timeout=30)
    pool.wait_contenders(3)
    killed = first.kill()
    second.release().result()
    answer = writing.result(3 * T)
    assert answer["granted"]
    assert answer["t"] - killed < T + 2
    assert pool.zoo.reading("k") == [], "the sign of a reader that is gone"
    pool.assert_kept()


def test_whose_node_is_deleted_while_it_waits_is_not_granted_anything_by_it(pool: WorkerPool, arena: Zoo) -> None:
    """CURATOR-211, -307: a waiter that is not in the queue believes that it is first, or fails; ours queues again."""
    holder, waiter, reader = pool.start("A", "B", "C")
    holder.take(kind="write")
    for waiting, kind in ((waiter, "read"), (reader, "write")):
        acquiring = waiting.acquire(kind=kind, timeout=30)
        name = pool.wait_contenders(2)[-1]
        path = f"{arena.base}/k/{name}"
        pool.note("delete", key="k", path=path, token=arena.client.get(path)[1].czxid)
        arena.client.delete(path)
        eventually(lambda name=name: pool.zoo.children("k")[-1:] != [name] and len(pool.zoo.children("k")) == 2)  # type: ignore[misc]
        assert not acquiring.done()
        holder.release().result()
        assert acquiring.result(SOON)["granted"]
        holder = waiting
    pool.assert_kept()
