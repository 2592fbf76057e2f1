"""
How Celery tasks on one key fare: how long all of them take, in which order they run, and how long other tasks wait.

Two workers with four processes each, Redis as the broker, and one real ZooKeeper server. The tasks of each case are
sent at once. The ideal is the sum of the work under the lock. All policies are measured in one run, so that their
ratios count; each figure is the median of several bursts. Before each burst, as many tasks without a lock are sent.

`--check` fails if a figure of "wait" is over its budget.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.brokers import Redis  # noqa: E402

from django_zklock.testing.ensemble import Ensemble  # noqa: E402

WORKERS, PROCESSES = 2, 4
POLICIES = {"wait": 5, "retry": 1, "slots": 1}
"""Bursts in each round. Others wait for a tenth of a second or less, so "wait" needs many for a steady figure."""
CASES = {"60 x 50 ms among 240 x 5 ms": (60, 0.05, 240), "200 x 20 ms": (200, 0.02, 0)}
OTHER = 0.005  # seconds that the work of another task takes
CROWD = 500  # tasks that wait for one key while a task on another key is sent
BUDGETS = {
    "makespan / ideal": 1.25,
    "inversions": 0.02,
    "others, p95 / without the hot key": 1.2,
    "a free key while 500 wait (s)": 0.2,
}


def inversions(began: list[float]) -> float:
    """Return the share of the pairs of tasks that ran in another order than they were sent in."""
    pairs = [(one, other) for place, one in enumerate(began) for other in began[place + 1 :]]
    return sum(one > other for one, other in pairs) / len(pairs)


def send(tasks: Any, policy: str, count: int, seconds: float, others: int) -> tuple[list[Any], list[Any]]:
    """Send the tasks of a case, the others evenly between those of the hot key."""
    hot, rest = [], []
    every = (count + others) // count if count else 0
    for number in range(count + others):
        if count and number % every == 0 and len(hot) < count:
            hot.append(getattr(tasks, policy).delay(time.time(), seconds))
        else:
            rest.append(tasks.other.delay(time.time(), OTHER))
    return hot, rest


def waits_of(results: list[Any]) -> list[float]:
    """Return how long tasks have waited, sorted."""
    return sorted(each.get(timeout=300)[1] for each in results)


def burst(tasks: Any, policy: str, count: int, seconds: float, others: int) -> dict[str, float]:
    """Run one case, and return its figures."""
    alone = waits_of(send(tasks, policy, 0, 0, count + others)[1])
    began = time.time()
    hot, rest = send(tasks, policy, count, seconds, others)
    starts = [each.get(timeout=300)[0] for each in hot]
    figures = {
        "makespan / ideal": (max(starts) + seconds - began) / (count * seconds),
        "inversions": inversions(starts),
    }
    if others:
        waits = waits_of(rest)
        figures |= {
            "others, median (s)": statistics.median(waits),
            "others, p95 (s)": p95(waits),
            "others, p95 without the hot key (s)": p95(alone),
        }
    return figures


def p95(values: list[float]) -> float:
    """Return the 95th percentile of sorted values."""
    return values[int(len(values) * 0.95)]


def free_key(tasks: Any) -> dict[str, float]:
    """Measure how soon a task on a free key begins while many wait for another key."""
    blocker = tasks.wait.delay(time.time(), 6.0)
    crowd = [tasks.wait.delay(time.time(), 0.0) for _ in range(CROWD)]
    time.sleep(3.0)
    slowest = max(tasks.free.delay(time.time(), 0.0).get(timeout=60)[1] for _ in range(10))
    for each in (blocker, *crowd):
        each.get(timeout=300)
    return {"a free key while 500 wait (s)": slowest}


@contextlib.contextmanager
def worker(number: int) -> Iterator[None]:
    """Run a worker for the length of a with block."""
    command = [
        *(sys.executable, "-m", "celery", "-A", "celery_tasks", "worker", f"--concurrency={PROCESSES}"),
        *("--loglevel=ERROR", "--without-gossip", "--without-mingle", f"--hostname=bench{number}@here"),
    ]
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def measure(rounds: int) -> dict[str, dict[str, dict[str, float]]]:
    """Return the medians by case and policy."""
    import celery_tasks as tasks  # noqa: PLC0415 - it reads the environment

    for policy in POLICIES:
        burst(tasks, policy, 16, 0.01, 16)  # all processes are there, and connected
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    for _ in range(rounds):
        for case, (count, seconds, others) in CASES.items():
            for policy, bursts in POLICIES.items():
                for _ in range(bursts):
                    found.setdefault((case, policy), []).append(burst(tasks, policy, count, seconds, others))
        found.setdefault(("a crowd", "wait"), []).append(free_key(tasks))
    medians: dict[str, dict[str, dict[str, float]]] = {}
    for (case, policy), each in found.items():
        figures = {name: statistics.median(one[name] for one in each) for name in each[0]}
        if "others, p95 (s)" in figures:
            ratio = figures["others, p95 (s)"] / figures["others, p95 without the hot key (s)"]
            figures["others, p95 / without the hot key"] = ratio
        medians.setdefault(case, {})[policy] = figures
    return medians


def main(arguments: list[str]) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of all cases (default: 3)")
    parser.add_argument("--check", action="store_true", help="fail if something is over its budget")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(arguments)
    with contextlib.ExitStack() as stack:
        ensemble = stack.enter_context(Ensemble(1))
        broker = stack.enter_context(Redis())
        os.environ["ZKLOCK_URL"] = f"zk://{ensemble.hosts}/bench"
        os.environ["BENCH_REDIS"] = f"redis://127.0.0.1:{broker.port}"
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
        for number in range(WORKERS):
            stack.enter_context(worker(number))
        medians = measure(options.rounds)
    over = False
    for case, policies in medians.items():
        for policy, figures in policies.items():
            for name, value in figures.items():
                budget = BUDGETS.get(name) if policy == "wait" else None
                over = over or (budget is not None and value > budget)
                verdict = "" if budget is None else f"of {budget:g}  {'OVER BUDGET' if value > budget else 'ok'}"
                if not options.json:
                    sys.stdout.write(f"{case:30}{policy:8}{name:36}{value:8.3f}  {verdict}".rstrip() + "\n")
    if options.json:
        sys.stdout.write(json.dumps(medians, indent=2) + "\n")
    return 1 if options.check and over else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
