"""A task that is delivered twice, to a worker that lives and to one that died: the work is done once, and not lost."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from support.policytasks import POLICIES
from support.worker import Worker
from support.zoo import Zoo, eventually

from django_zklock.contrib.celery.messages import COPY_HEADER, MESSAGE_HEADER

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(150)]


def runs(journal: Path) -> int:
    return len(journal.read_text().splitlines())


def test_a_task_of_a_killed_process_runs_again_under_each_policy(zoo: Zoo, tmp_path: Path) -> None:
    """Its node stays for a while. No task takes that for a conflict, so none skips or fails."""
    with Worker(zoo, tmp_path, session_timeout=4) as worker:
        results = {}
        for policy in POLICIES:
            gate, journal = worker.gate(), tmp_path / f"{policy}.journal"
            results[policy] = worker.send(f"policy.{policy}.late", policy, "linger", str(gate), str(journal))
            pid = gate.wait_at_work()
            worker.kill_process(pid)
            gate.open()
        assert {policy: worker.get(result, 40) for policy, result in results.items()} == dict.fromkeys(POLICIES, "done")
        assert {policy: runs(tmp_path / f"{policy}.journal") for policy in POLICIES} == dict.fromkeys(POLICIES, 2)


def test_two_deliveries_at_the_same_moment_lead_to_one_run(zoo: Zoo, tmp_path: Path) -> None:
    """Two deliveries at once, to idle processes, lead to one run. No other task wants the lock."""
    with Worker(zoo, tmp_path, concurrency=4) as worker:
        journals = []
        for number in range(8):
            journal = tmp_path / f"{number}.journal"
            journals.append(journal)
            call, of_first = (
                ("policy.skip", f"key{number}", "brief", None, str(journal)),
                {MESSAGE_HEADER: str(uuid.uuid4())},
            )
            first = worker.send(*call, headers=of_first)
            worker.send(*call, task_id=first.id, headers={**of_first, COPY_HEADER: "none"})
            eventually(lambda first=first: first.state == "SUCCESS", 20)  # type: ignore[misc]
        eventually(lambda: worker.log.read_text().count("] ignored") == len(journals), 20)
        assert {runs(journal) for journal in journals} == {1}
