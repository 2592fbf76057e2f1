"""Tasks that share their lock, as readers or with permits of a semaphore, on a real worker."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.sharingtasks import SHARES
from support.worker import Worker, outcome
from support.zoo import Zoo, eventually

pytestmark = pytest.mark.zookeeper


@pytest.mark.parametrize("kind", SHARES)
def test_tasks_share_their_lock(worker: Worker, kind: str) -> None:
    """Two tasks run at the same time, and `inspect zklocks` shows both as holders."""
    gates = [worker.gate(), worker.gate()]
    sent = [worker.send(f"sharing.{kind}.raise", f"both-{kind}", "linger", str(gate)) for gate in gates]
    for gate in gates:
        gate.wait_entered()
    replies = worker.app.control.broadcast("zklocks", reply=True, timeout=2)
    ((answer,),) = [reply.values() for reply in replies or []]
    for gate in gates:
        gate.open()
    assert {each["id"] for each in answer["held"]} == {each.id for each in sent}
    assert answer["waiting"] == []
    assert [outcome(each) for each in sent] == ["done", "done"]


@pytest.mark.parametrize("pool", [pytest.param("threads", marks=pytest.mark.chaos), "gevent"])
def test_tasks_of_one_process_share_their_lock(zoo: Zoo, tmp_path: Path, pool: str) -> None:
    """Each thread or greenlet has its own permit. A third task gets none, and neither does a copy."""
    pytest.importorskip("gevent")
    with Worker(zoo, tmp_path, pool=pool, concurrency=4) as worker, worker.log_shown():
        gates = [worker.gate(), worker.gate()]
        sent = [worker.send("sharing.permit.raise", "k", "linger", str(gate)) for gate in gates]
        for gate in gates:
            gate.wait_entered()
        assert outcome(worker.send("sharing.permit.skip", "k")) == "TaskRevokedError"
        worker.app.send_task("sharing.permit.raise", ("k", "tell"), task_id=sent[0].id)
        eventually(lambda: f"sharing.permit.raise[{sent[0].id}] retry" in worker.log.read_text())
        for gate in gates:
            gate.open()
        assert [outcome(each) for each in sent] == ["done", "done"]


@pytest.mark.parametrize(("kind", "needs"), [("read", "read"), ("permit", "permit")], ids=["readers", "permits"])
@pytest.mark.parametrize("policy", ["retry", "wait"])
def test_a_task_may_wait_for_one_that_shares_its_lock(worker: Worker, kind: str, needs: str, policy: str) -> None:
    """Both hold the lock at the same time."""
    key = f"room-{kind}-{needs}-{policy}"
    assert worker.run("sharing.waits", key, kind, f"sharing.{needs}.{policy}") == "done"
