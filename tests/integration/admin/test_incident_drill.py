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
    """They do not look for deadlocks, so an operator ends it."""
    drill.site.environment["SITE_ZKLOCK"] = '{"DEADLOCK_TIMEOUT": null}'
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
    """
    It ends by itself, and the first page says which order of the locks prevents the next one.

    The main process of the worker holds the lock of a task. A process of the pool wants the inner one.
    """
    program = [*namespaces.on_host("worker-1"), sys.executable, "-m", "celery"]
    with Worker(drill.zoo, tmp_path, pool=pool, program=program, env=drill.site.environment) as worker:
        gates = [[worker.gate(), worker.gate()] for _ in "12"]
        first, second = (
            worker.send("transfer", *accounts, *map(str, of_task))
            for accounts, of_task in zip(("12", "21"), gates, strict=True)
        )
        for before, _inside in gates:
            before.wait_at_work()
        for gate in [gate for of_task in gates for gate in of_task]:
            gate.open()
        assert [outcome(first), outcome(second)] == [None, None]
        texts = ("which has ended by itself: account/", "worker-1", "held account/1 and waited for account/2")
        order = "Always lock account/{source} in the order of the keys, or all at once with `zk_locks`."
        commands = drill.finds("order", *texts, order, "To change: task transfer.")
        assert "Deadlock: held account/" in drill.paste(commands, "history --what=deadlock")
