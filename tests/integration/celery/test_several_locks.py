"""Tasks with several locks, or with a shared one, on a real worker."""

from __future__ import annotations

import contextlib
import uuid
from typing import Any

import pytest
from celery.result import AsyncResult
from support.policytasks import POLICIES, SHARES, VALUE
from support.worker import Worker, outcome
from support.zoo import eventually

from django_zklock.contrib.celery.messages import CONFLICTS_HEADER, COPY_HEADER, MESSAGE_HEADER

pytestmark = pytest.mark.zookeeper


def test_one_busy_lock_is_a_conflict_for_each_policy(worker: Worker) -> None:
    sent: dict[str, AsyncResult[Any]] = {}
    with contextlib.ExitStack() as busy:
        for policy in POLICIES:
            busy.enter_context(worker.zoo.hold_elsewhere(f"{policy}/b"))
            sent[policy] = worker.send(f"several.{policy}", policy)
        results = {policy: outcome(sent[policy]) for policy in ("raise", "skip", "value")}
        assert results == {"raise": "LockBusy", "skip": "TaskRevokedError", "value": VALUE}
        for policy in ("retry", "coalesce"):
            eventually(lambda policy=policy: sent[policy].state == "RETRY")  # type: ignore[misc]
            worker.zoo.wait_contenders(f"{policy}/a", 0)
        worker.zoo.wait_contenders("wait/b", 2)
        worker.zoo.wait_contenders("wait/a", 1)
    for policy in ("retry", "coalesce", "wait"):
        assert outcome(sent[policy]) == "done"


def test_calls_for_the_same_locks_are_merged(worker: Worker) -> None:
    gate, journal = worker.gate(), worker.home / "coalesced"
    running = worker.send("several.coalesce", "one", "linger", str(gate), str(journal))
    gate.wait_at_work()
    waits = worker.send("several.coalesce", "one", "tell", None, str(journal))
    eventually(lambda: waits.state == "RETRY")
    assert {outcome(worker.send("several.coalesce", "one")) for _ in range(2)} == {"TaskRevokedError"}
    gate.open()
    assert (outcome(running), outcome(waits)) == ("done", "done")
    assert len(journal.read_text().splitlines()) == 2


def test_a_task_is_unique_by_all_its_keys(publisher: Worker) -> None:
    send = publisher.app.tasks["several.transfer"].apply_async
    gate = publisher.gate()
    first = send(("1", "2", "linger", str(gate)))
    gate.wait_at_work()
    assert send(("2", "1")).id == first.id
    other = send(("2", "3"))
    assert other.id != first.id
    eventually(lambda: other.state == "RETRY")
    gate.open()
    publisher.get(first)
    assert publisher.get(other)["headers"][CONFLICTS_HEADER] >= 1
    again = send(("2", "1"))
    assert again.id != first.id
    publisher.get(again)


def test_a_revoked_task_leaves_no_lock(worker: Worker) -> None:
    with worker.zoo.hold_elsewhere("limit/b"):
        result = worker.send("several.wait", "limit")
        worker.zoo.wait_contenders("limit/a", 1)
        result.revoke()
        assert outcome(result) == "TaskRevokedError"
        worker.zoo.wait_contenders("limit/a", 0, timeout=2)
        worker.zoo.wait_contenders("limit/b", 1, timeout=2)


# --- shared locks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SHARES)
def test_two_tasks_share_a_semaphore(worker: Worker, kind: str) -> None:
    gates = [worker.gate(), worker.gate()]
    sent = [worker.send(f"sharing.{kind}.raise", f"both-{kind}", "linger", str(gate)) for gate in gates]
    for gate in gates:
        gate.wait_at_work()
    answer = worker.ask("zklocks")
    for gate in gates:
        gate.open()
    assert {item["id"] for item in answer["held"]} == {result.id for result in sent}
    assert answer["waiting"] == []
    assert [outcome(result) for result in sent] == ["done", "done"]


@pytest.mark.parametrize("pool", [pytest.param("threads", marks=pytest.mark.chaos), "gevent"])
def test_threads_of_one_process_share_a_semaphore(request: pytest.FixtureRequest, pool: str) -> None:
    worker: Worker = request.getfixturevalue(f"{pool}_worker")
    gates = [worker.gate(), worker.gate()]
    of_first = {MESSAGE_HEADER: str(uuid.uuid4())}
    sent = [worker.send("sharing.permit.raise", "k", "linger", str(gate), headers=of_first) for gate in gates]
    for gate in gates:
        gate.wait_at_work()
    assert outcome(worker.send("sharing.permit.skip", "k")) == "TaskRevokedError"
    worker.send("sharing.permit.raise", "k", "tell", task_id=sent[0].id, headers={**of_first, COPY_HEADER: "none"})
    eventually(lambda: f"sharing.permit.raise[{sent[0].id}] retry" in worker.log.read_text())
    for gate in gates:
        gate.open()
    assert [outcome(result) for result in sent] == ["done", "done"]
    worker.zoo.assert_empty()


@pytest.mark.parametrize("kind", SHARES)
@pytest.mark.parametrize("policy", ["retry", "wait"])
def test_a_task_may_wait_for_one_that_shares_its_lock(worker: Worker, kind: str, policy: str) -> None:
    assert worker.run("sharing.waits", f"room-{kind}-{policy}", kind, f"sharing.{kind}.{policy}") == "done"
