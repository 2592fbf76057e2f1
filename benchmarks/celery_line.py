"""
How tasks on one key fare in Celery: how long all take, in which order they run, and how long other tasks wait.

Two workers with four processes each, Redis as the broker, and one real ZooKeeper server. The policies are measured one
after another in one run, so only their ratios count. The ideal is the sum of the work under the lock.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.brokers import Redis

from django_zklock.testing.ensemble import Ensemble

WORKERS, PROCESSES = 2, 4
CASES = {"60 x 50 ms among 240 x 5 ms": (60, 0.05, 240), "200 x 20 ms": (200, 0.02, 0)}
OTHER = 0.005  # seconds


def inversions(began: list[float]) -> float:
    """Return the share of the pairs of tasks that ran in another order than they were sent in."""
    pairs = [(a, b) for place, a in enumerate(began) for b in began[place + 1 :]]
    return sum(a > b for a, b in pairs) / len(pairs)


def burst(tasks: Any, policy: str, count: int, seconds: float, others: int) -> dict[str, float]:
    """Send all tasks at once, and wait for their results."""
    hot, rest = [], []
    every = (count + others) // count
    began = time.time()
    for number in range(count + others):
        if number % every == 0 and len(hot) < count:
            hot.append(getattr(tasks, policy).delay(time.time(), seconds))
        else:
            rest.append(tasks.other.delay(time.time(), OTHER))
    found = [each.get(timeout=180) for each in hot]
    waits = sorted(each.get(timeout=180)[1] for each in rest)
    starts = [start for start, _ in found]
    row = {
        "makespan / ideal": (max(starts) + seconds - began) / (count * seconds),
        "inversions": inversions(starts),
    }
    if waits:
        row |= {"others, median (s)": statistics.median(waits), "others, p95 (s)": waits[int(len(waits) * 0.95)]}
    return row


def main(arguments: list[str]) -> int:
    """Run all cases; print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--policy", action="append", help="only these: wait, retry, redis")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with ExitStack() as stack:
        ensemble = stack.enter_context(Ensemble(1))
        broker = stack.enter_context(Redis())
        os.environ["ZKLOCK_URL"] = f"zk://{ensemble.hosts}/bench"
        os.environ["BENCH_REDIS"] = f"redis://127.0.0.1:{broker.port}"
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
        for number in range(WORKERS):
            stack.enter_context(worker(number))
        import celery_tasks as tasks  # noqa: PLC0415 - it reads the environment

        for policy in ("wait", "retry", "redis"):
            burst(tasks, policy, 8, 0.01, 0)  # all processes are there, and connected
        rows: dict[str, dict[str, list[dict[str, float]]]] = {}
        for _ in range(options.runs):
            for case, (count, seconds, others) in CASES.items():
                for policy in options.policy or ("wait", "redis", "retry"):
                    row = burst(tasks, policy, count, seconds, others)
                    rows.setdefault(case, {}).setdefault(policy, []).append(row)
                    sys.stderr.write(f"{case} {policy} {row}\n")
        medians = {
            case: {
                policy: {name: statistics.median(each[name] for each in found) for name in found[0]}
                for policy, found in policies.items()
            }
            for case, policies in rows.items()
        }
    sys.stdout.write(json.dumps(medians, indent=2) + "\n")
    return 0


class worker:
    """A worker process."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __enter__(self) -> None:
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "celery", "-A", "celery_tasks", "worker", f"--concurrency={PROCESSES}"),
                *("--loglevel=WARNING", "--without-gossip", "--without-mingle", f"--hostname=bench{self._number}@here"),
            ],
            start_new_session=True,
        )

    def __exit__(self, *error: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
