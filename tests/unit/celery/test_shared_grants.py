"""The memory that a worker's main process shares with its pool processes, and the slots of these."""

from __future__ import annotations

import logging
import os
import select
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from celery.concurrency.prefork import TaskPool
from support.zoo import eventually

from django_zklock.contrib.celery.dispatch.pool_grants import PoolGrant
from django_zklock.contrib.celery.dispatch.pool_process import ContenderProxy, SessionProxy
from django_zklock.contrib.celery.dispatch.pool_slots import PoolSlots
from django_zklock.contrib.celery.dispatch.shared_grants import LONGEST_EVENT, RECORDS, GrantPayload, SharedGrants
from django_zklock.core import clock
from django_zklock.core.execution.waiters import run
from django_zklock.core.locks.held import released
from django_zklock.core.locks.spec import LockSpec
from django_zklock.core.protocol.spec import Caller
from django_zklock.core.queue.nodes import Kind
from django_zklock.core.queue.release_request import release_request
from django_zklock.core.zk import troubles
from django_zklock.core.zk.codes import meaning


@pytest.fixture
def shared():
    memory = SharedGrants()
    yield memory
    memory.close()


def in_child(work):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if work() else 1)
    return os.waitpid(pid, 0)[1] == 0


def begin_and_end(record):
    begun = record.begin()
    record.end()
    return begun


def test_a_pool_process_reads_the_lease_of_its_grant(shared):
    assert shared.until == float("-inf")
    shared.set_lease(12.5, 7)
    assert in_child(lambda: (shared.until, shared.session_id) == (12.5, 7))


def test_a_pool_process_knows_why_the_lease_ends(shared):
    """It tells the end by itself, as soon as the lease is over."""
    proxy = SessionProxy(shared)
    shared.set_lease(12.5, 7, -102)
    assert proxy.why_over == f"{troubles.HEARTBEAT_REFUSED}: {meaning(-102)}"
    shared.set_lease(13.5, 7)
    assert proxy.why_over == troubles.LEASE_OVER
    proxy.stop()


def test_a_pool_process_reads_each_event_of_its_grant_once(shared):
    record = shared.add()
    record.append({"request": "first"})
    record.set_suspect(suspect=True)
    assert in_child(lambda: record.is_current and record.is_suspect)
    events, read_to = record.events(0)
    record.append({"lost": "why"})
    assert events == [{"request": "first"}]
    assert in_child(lambda: record.events(read_to)[0] == [{"lost": "why"}])


def payload_of(number):
    payload = {"key": f"k{number}", "path": f"/k{number}/x", "token": number, "session": 7, "kind": Kind.LOCK}
    return GrantPayload(index=0, number=0, since=0.0, template="", waited=0.0, **payload)


@dataclass
class Impatient:
    value: bool = False

    def set(self, value):
        self.value = value

    def outcome(self, timeout):
        assert self.value
        yield from ()


@pytest.mark.parametrize("count", [1, 2])
def test_the_end_of_a_task_does_not_wait_for_the_main_process(shared, count):
    """Its locks are given back by what it has written, even if it is killed now; also if they are several."""
    session = SessionProxy(shared)
    shared.set_lease(clock.now() + 60, 7)
    holds = []
    for number in range(count):
        contender = ContenderProxy(session, shared.add(), payload_of(number), Caller(thread="", what=""))
        holds.append(contender.hand_over(LockSpec(key=f"k{number}", parent=f"/k{number}", kind=Kind.LOCK)))
        holds[-1].release_uses()
    run(released(holds, Impatient))
    session.stop()


@pytest.mark.parametrize("refused", [False, True])
def test_a_pool_process_knows_whether_its_lock_was_released(shared, refused):
    """As soon as the record is free, which is then that of another grant."""
    session, record = SessionProxy(shared), shared.add()
    shared.set_lease(clock.now() + 60, 7)
    contender = ContenderProxy(session, record, payload_of(0), Caller(thread="", what=""))
    released = []
    contender.when_released(released.append, confirmed=True)
    assert released == []
    if refused:
        record.set_undeleted()
    shared.remove(record)
    eventually(lambda: released == [not refused])
    session.stop()


def test_a_full_record_has_room_for_a_loss(shared):
    record = shared.add()
    written = [record.append({"request": str(number).zfill(500)}) for number in range(20)]
    assert record.append({"lost": "x" * (LONGEST_EVENT - 20)})
    *requests, lost = record.events(0)[0]
    assert [int(event["request"]) for event in requests] == list(range(len(requests)))
    assert written == [True] * len(requests) + [False] * (20 - len(requests))
    assert 0 < len(requests) < 20
    assert "lost" in lost


def test_a_request_for_which_a_record_has_no_room_is_logged(shared, caplog):
    held = SimpleNamespace(contender=None, grant=None)
    grant = PoolGrant(shared.add(), SimpleNamespace(id="t-1"), held)
    with caplog.at_level(logging.WARNING, "django_zklock"):
        for number in range(20):
            grant.on_release_requested(release_request(by="anna", reason=f"{number} {'é' * 400}"))
    written = grant.record.events(0)[0]
    assert 0 < len(written) < 20
    assert len(caplog.messages) == 20 - len(written)
    assert "task t-1 does not learn of a release request by 'anna'" in caplog.messages[0]


def test_a_pool_process_wakes_the_main_process_when_it_is_ready(shared):
    assert shared.ready_processes(4) == {}
    assert in_child(lambda: shared.set_ready(2, os.getpid()) is None)
    assert select.select([shared.wakeup], [], [], 5)[0]
    assert list(shared.ready_processes(4)) == [2]
    assert shared.ready_processes(2) == {}


def test_a_pool_process_wakes_the_main_process_at_begin_and_end(shared):
    record = shared.add()
    assert in_child(lambda: begin_and_end(record))
    assert record.pid != 0
    assert record.has_ended
    assert select.select([shared.wakeup], [], [], 5)[0]
    shared.wakeup.drain()
    assert not select.select([shared.wakeup], [], [], 0)[0]


def test_a_cancelled_grant_is_not_begun(shared):
    record = shared.add()
    assert record.cancel() == 0
    assert in_child(lambda: not record.begin())


def test_a_late_pool_process_does_not_touch_the_next_grant_of_its_record(shared):
    old = shared.add()
    old.append({"lost": "why"})
    old.set_suspect(suspect=True)
    shared.remove(old)
    new = [shared.add() for _ in range(RECORDS)][-1]
    assert (new.index, new.number) == (old.index, old.number + RECORDS)
    assert in_child(lambda: not begin_and_end(old))
    assert (new.pid, new.has_ended) == (0, False)
    assert (new.events(0), new.is_suspect) == (([], 0), False)


def test_there_is_room_for_a_thousand_grants(shared):
    records = [shared.add() for _ in range(RECORDS)]
    with pytest.raises(IndexError):
        shared.add()
    shared.remove(records[3])
    assert shared.add().index == records[3].index


def test_a_pool_that_was_stopped_has_no_slots():
    """A worker that is stopped twice ends its pool while messages still wait."""
    pool = TaskPool(limit=1)
    controller = SimpleNamespace(max_tasks_per_child=None)
    slots = PoolSlots(SimpleNamespace(pool=pool, controller=controller), SimpleNamespace(), on_end=print)
    pool.terminate()
    assert slots.available == 0
