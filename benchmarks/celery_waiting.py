"""
How Celery tasks on one key fare: how long all of them take, in which order they run, and how long other tasks wait.

Each case starts real ZooKeeper servers, Redis as the broker, and workers with four slots each. The tasks of a case are
sent at once. The ideal is the sum of the work under the lock. Each figure is a median.

* "full pool" and "two workers": a worker has more work without locks than slots; see `celery_pool.py`.
* "60 x 50 ms", among 240 tasks of 5 ms without a lock, and "200 x 20 ms": two workers, three servers of ZooKeeper, and
  several bursts of each policy in one run, so that their ratios count. Before each burst, as many tasks without a lock
  are sent. With one server, only "wait" is measured.
* "crowd": a task on a free key, while many wait for another key.

One round of all cases takes about twelve minutes. Cases without a goal have one round.

`--check` fails if a goal is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from celery_pool import DONE, IDLE, MAKESPAN, SENT_BACK, SLOTS, SLOWER, Figures, full_pool, runs_of, two_workers  # noqa: E402
from support import debian  # noqa: E402
from support.brokers import Redis  # noqa: E402
from support.ensemble import Ensemble  # noqa: E402

POLICIES = {"wait": 5, "wait_linger": 5, "slots": 3, "retry": 1}
"""Bursts in each round. Others wait for a tenth of a second or less, so "wait" needs many for a steady figure."""
OTHER = 0.005  # seconds that the work of another task takes
CROWD = 500  # tasks that wait for one key while a task on another key is sent

INVERSIONS = "inversions"
TO_REDIS = "makespan / redis-py's lock in slots"
OTHERS = "others, p95 / without the hot key"
FREE_KEY = "a free key while 500 wait (s)"


class Goal(NamedTuple):
    """A figure of a policy, and its limit."""

    figure: str
    limit: float
    policy: str = "wait"

    def is_met(self, value: float) -> bool:
        """Tell whether a value is good enough."""
        return value >= self.limit if self.figure == DONE else value <= self.limit

    def __str__(self) -> str:
        return f"goal {'>=' if self.figure == DONE else '<='} {self.limit:g}"


@dataclass(frozen=True)
class Case:
    """Workers, what is measured with them, and how good the figures must be."""

    measure: Callable[[Any, str], Iterator[tuple[str, Figures]]]
    """Called with the module of the tasks and the addresses of ZooKeeper; yields policies and figures."""
    workers: tuple[str, ...] = (f"--concurrency={SLOTS}",) * 2
    nodes: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    goals: tuple[Goal, ...] = ()
    warm_up: int = 2 * SLOTS
    """Tasks of both kinds that are sent first, so that all processes are there, and connected."""


def inversions(began: list[float]) -> float:
    """Return the share of the pairs of tasks that ran in another order than they were sent in."""
    pairs = [(first, second) for index, first in enumerate(began) for second in began[index + 1 :]]
    return sum(first > second for first, second in pairs) / len(pairs)


def send(tasks: Any, policy: str, count: int, seconds: float, others: int) -> tuple[list[Any], list[Any]]:
    """Send the tasks of a burst, the others evenly between those of the hot key."""
    hot: list[Any] = []
    rest: list[Any] = []
    every = (count + others) // count if count else 0
    for number in range(count + others):
        if count and number % every == 0 and len(hot) < count:
            hot.append(getattr(tasks, policy).delay(time.time(), seconds))
        else:
            rest.append(tasks.other.delay(time.time(), OTHER))
    return hot, rest


def burst(tasks: Any, policy: str, count: int, seconds: float, others: int) -> Figures:
    """Send tasks with one policy, and return their figures."""
    alone = runs_of(send(tasks, policy, 0, 0, count + others)[1])
    sent = time.time()
    hot, rest = send(tasks, policy, count, seconds, others)
    runs = runs_of(hot)
    figures = {
        MAKESPAN: (max(run.ended for run in runs) - sent) / (count * seconds),
        INVERSIONS: inversions([run.began for run in runs]),
    }
    if others:
        waits = sorted(run.waited for run in runs_of(rest))
        figures |= {
            "others, median (s)": statistics.median(waits),
            "others, p95 (s)": p95(waits),
            "others, p95 without the hot key (s)": p95(sorted(run.waited for run in alone)),
        }
    return figures


def p95(values: list[float]) -> float:
    """Return the 95th percentile of sorted values."""
    return values[int(len(values) * 0.95)]


def bursts(
    tasks: Any, hosts: str, count: int, seconds: float, others: int, policies: Mapping[str, int] = POLICIES
) -> Iterator[tuple[str, Figures]]:
    """Send bursts of the policies in turn."""
    del hosts
    for number in range(max(policies.values())):
        for policy, times in policies.items():
            if number == 0:
                burst(tasks, policy, 16, 0.01, 16)  # all processes are there, and connected
            if number < times:
                yield policy, burst(tasks, policy, count, seconds, others)


def crowd(tasks: Any, hosts: str) -> Iterator[tuple[str, Figures]]:
    """Measure how soon a task on a free key begins while many wait for another key."""
    del hosts
    waiting = [tasks.wait.delay(time.time(), 6.0), *(tasks.wait.delay(time.time(), 0.0) for _ in range(CROWD))]
    time.sleep(3.0)
    slowest = max(run.waited for _ in range(10) for run in runs_of([tasks.idle_key.delay(time.time(), 0.0)]))
    runs_of(waiting)
    yield "wait", {FREE_KEY: slowest}


ONE_WORKER = (f"--concurrency={SLOTS}",)
ONE_TASK = (f"--concurrency={SLOTS} --max-tasks-per-child=1",)
ONE_BUSY = (f"--concurrency={SLOTS} -Q busy,celery", f"--concurrency={SLOTS} -Q celery")
POOL_GOALS = (Goal(IDLE, 0.15), Goal(SENT_BACK, 0))
WAITING_GOALS = (Goal(TO_REDIS, 1.05), Goal(INVERSIONS, 0.02), Goal(TO_REDIS, 0.95, policy="wait_linger"))
FAST_GOALS = (Goal(MAKESPAN, 1.25), Goal(INVERSIONS, 0.02))
AMONG_OTHERS = functools.partial(bursts, count=60, seconds=0.05, others=240)
SHORT_TASKS = functools.partial(bursts, count=200, seconds=0.02, others=0)
WAIT_ALONE = {"wait": 5}
CASES = {
    "full pool": Case(
        functools.partial(full_pool, alone=True), ONE_WORKER, goals=(Goal(DONE, 95), Goal(SLOWER, 1.10), *POOL_GOALS)
    ),
    "full pool, a child per task": Case(full_pool, ONE_TASK, goals=(Goal(DONE, 90), *POOL_GOALS)),
    "full pool, slow children": Case(
        functools.partial(full_pool, hot=40, unlocked=64), ONE_TASK, environment={"BENCH_START": "1.3"}
    ),
    "full pool, threads": Case(full_pool, (f"--pool=threads --concurrency={SLOTS}",)),
    "full pool, autoscale": Case(full_pool, (f"--autoscale={SLOTS},1",), warm_up=1),
    "two workers": Case(functools.partial(two_workers, busy=64), ONE_BUSY, goals=(Goal(MAKESPAN, 1.4), *POOL_GOALS)),
    "two workers, short backlog": Case(
        functools.partial(two_workers, busy=12), ONE_BUSY, goals=(Goal(MAKESPAN, 1.4), *POOL_GOALS)
    ),
    # The busy worker receives hot tasks behind 15 s of its own work. If it keeps the order, the makespan is about 5.
    "two workers, long backlog": Case(
        functools.partial(two_workers, busy=64, times=1),
        (f"{ONE_BUSY[0]} --prefetch-multiplier=16", ONE_BUSY[1]),
        goals=POOL_GOALS,
    ),
    "60 x 50 ms": Case(AMONG_OTHERS, nodes=3, goals=(*WAITING_GOALS, Goal(OTHERS, 1.2))),
    "200 x 20 ms": Case(SHORT_TASKS, nodes=3, goals=WAITING_GOALS),
    "60 x 50 ms, one server": Case(
        functools.partial(AMONG_OTHERS, policies=WAIT_ALONE), goals=(*FAST_GOALS, Goal(OTHERS, 1.2))
    ),
    "200 x 20 ms, one server": Case(functools.partial(SHORT_TASKS, policies=WAIT_ALONE), goals=FAST_GOALS),
    "crowd": Case(crowd, goals=(Goal(FREE_KEY, 0.2),)),
}


@contextlib.contextmanager
def worker(number: int, options: str) -> Iterator[None]:
    """Run a worker for the length of a with block. Its errors go to this program's."""
    command = [
        *(*debian.tied("TERM"), sys.executable, "-m", "celery", "-A", "celery_tasks", "worker", *options.split()),
        *("--loglevel=ERROR", "--without-gossip", "--without-mingle", f"--hostname=bench{number}@here"),
    ]
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def run(case: Case, broker: Redis, rounds: int) -> dict[str, Figures]:
    """Return the medians of a case by policy."""
    measured: dict[str, list[Figures]] = {}
    with contextlib.ExitStack() as stack:
        ensemble = stack.enter_context(Ensemble(case.nodes))
        os.environ.update(
            {
                "ZKLOCK_URL": f"zk://{ensemble.hosts}/bench",
                "BENCH_REDIS": f"redis://127.0.0.1:{broker.port}",
                "BENCH_START": "0",
                "PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parent)]),
                "PYTHONWARNINGS": "ignore",  # of a worker that runs as root
                **case.environment,
            }
        )
        import celery_tasks as tasks  # noqa: PLC0415 - it reads the environment

        broker.clear()
        for number, options in enumerate(case.workers):
            stack.enter_context(worker(number, options))
        runs_of([task.delay(time.time(), 0.1) for task in (tasks.other, tasks.wait) for _ in range(case.warm_up)])
        for _ in range(rounds if case.goals else 1):
            for policy, figures in case.measure(tasks, ensemble.hosts):
                measured.setdefault(policy, []).append(figures)
    medians = {
        policy: {name: statistics.median(figures[name] for figures in several) for name in several[0]}
        for policy, several in measured.items()
    }
    for figures in medians.values():
        if "slots" in medians:
            figures[TO_REDIS] = figures[MAKESPAN] / medians["slots"][MAKESPAN]
        if "others, p95 (s)" in figures:
            figures[OTHERS] = figures["others, p95 (s)"] / figures["others, p95 without the hot key (s)"]
    return medians


def verdicts(name: str, medians: dict[str, Figures]) -> Iterator[tuple[bool, str]]:
    """Yield whether a figure of the case is good enough, and a line that shows it."""
    goals = {(goal.policy, goal.figure): goal for goal in CASES[name].goals}
    for policy, figures in medians.items():
        for figure, value in figures.items():
            goal = goals.get((policy, figure))
            is_met = goal is None or goal.is_met(value)
            verdict = "" if goal is None else f"{goal}  {'ok' if is_met else 'MISSED'}"
            yield is_met, f"{name:30}{policy:13}{figure:41}{value:8.3f}  {verdict}".rstrip()


def main(arguments: list[str]) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1, help="rounds of all cases that have a goal (default: 1)")
    parser.add_argument("--case", choices=CASES, action="append", help="run this case only; may be repeated")
    parser.add_argument("--check", action="store_true", help="fail if a goal is missed")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the with blocks end the workers, and then the servers
    missed = False
    results = {}
    with Redis() as broker:
        for name in options.case or CASES:
            results[name] = run(CASES[name], broker, options.rounds)
            for is_met, line in verdicts(name, results[name]):
                missed = missed or not is_met
                if not options.json:
                    print(line, flush=True)  # noqa: T201
    if options.json:
        print(json.dumps(results, indent=2))  # noqa: T201
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
