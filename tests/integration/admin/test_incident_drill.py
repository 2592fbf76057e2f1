"""Incidents of real processes that show at once: the first page and the doctor name the cause, and the remedy works."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.browser.pages import LIST
from support.chaos import namespaces
from support.drill import Drill
from support.worker import Worker, outcome

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(120)]


def test_a_deadlock_of_two_processes(drill: Drill) -> None:
    first, second = drill.program("web-1"), drill.program("batch-1")
    first.tell("nest", "orders/a", "orders/b")
    first.hear("held orders/a")
    second.tell("nest", "orders/b", "orders/a")
    second.hear("held orders/b")
    for program in (first, second):
        program.tell("want")
    commands = drill.finds("deadlock", "Deadlock: orders/a, orders/b", "web-1", "batch-1", "Break one of them")
    assert drill.open(f"{LIST}?q=").count("zklock-deadlocked") == 2
    assert {"Break orders/a…", "Break orders/b…"} <= drill.cards()[0].links.keys()
    drill.paste(commands, "break orders/b")
    first.hear("held orders/b")
    first.tell("answer")
    drill.is_calm()


@pytest.mark.parametrize(
    "pool",
    ["prefork", pytest.param("threads", marks=pytest.mark.chaos), pytest.param("gevent", marks=pytest.mark.chaos)],
)
def test_a_deadlock_of_two_tasks(drill: Drill, tmp_path: Path, pool: str) -> None:
    """The main process of the worker holds the lock of a task. A process of the pool wants the inner one."""
    program = [*namespaces.on_host("worker-1"), sys.executable, "-m", "celery"]
    with Worker(drill.zoo, tmp_path, pool=pool, program=program, env=drill.site.environment) as worker:
        gates = [[worker.gate(), worker.gate()] for _ in "12"]
        first, second = (
            worker.send("transfer", *accounts, *map(str, of_task))
            for accounts, of_task in zip(("12", "21"), gates, strict=True)
        )
        for before, _inside in gates:
            before.wait_at_work()
        for before, _inside in gates:
            before.open()
        commands = drill.finds("deadlock", "Deadlock: account/1, account/2", "worker-1", "Break one of them")
        drill.paste(commands, "break account/2")
        inside = gates[0][1]
        inside.wait_at_work()
        inside.open()
        assert [outcome(first), outcome(second)] == [None, "LockLost"]
        drill.is_calm()
