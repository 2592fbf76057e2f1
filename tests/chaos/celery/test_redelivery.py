"""A task that is delivered twice, to a worker that lives and to one that died: the work is done once, and not lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.policytasks import POLICIES
from support.worker import Worker
from support.zoo import Zoo

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
