"""
How Celery tasks on one key fare: how long all of them take, in which order they run, and how long other tasks wait.

Each case starts real ZooKeeper servers, Redis as the broker, and workers with four slots each. The tasks of a case are
sent at once. The ideal is the sum of the work under the lock.

* "full pool" and "two workers": a worker has more work without locks than slots; see `celery_pool.py`.
* "30 x 50 ms", among 120 tasks of 5 ms without a lock, and "100 x 20 ms": two workers, and three servers of ZooKeeper.
  Bursts of each policy take turns in random order; a round gives the ratios of their makespans.
* "crowd": a task on a free key, while many wait for another key.
* "slot": how much longer a task on a free key uses its slot than one without a lock, where ZooKeeper is 2 ms away. The
  worker has one slot, so that is the time between two tasks. One round trip is for the lock; the rest is the time of
  the processors.

`--check` fails unless all figures are within their budgets; `pairs.py` says how they are judged. It leaves out the
cases without a budget.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
import signal
import statistics
import subprocess
import sys
import time
import timeit
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import pairs  # noqa: E402
from celery_pool import DONE, IDLE, MAKESPAN, SENT_BACK, SLOTS, SLOWER, Figures, full_pool, runs_of, two_workers  # noqa: E402
from support import debian  # noqa: E402
from support.brokers import Redis  # noqa: E402
from support.ensemble import Ensemble  # noqa: E402
from support.proxy import Proxy  # noqa: E402

OTHER = 0.005  # seconds that the work of another task takes
TURNS, IN_TURN = 5, 20  # of each kind of task in a round, and how many tasks a turn has
NUMBERS, KEYS = itertools.count(), 40  # free keys take turns
CROWD = 500  # tasks that wait for one key while a task on another key is sent

OURS = "wait"
POLICIES = (OURS, "wait_linger", "slots")
TO_REDIS = "makespan / redis-py's lock in slots"
LINGER_TO_REDIS = f"with linger, {TO_REDIS}"
INVERSIONS = "tasks in another order than they were sent in (share)"
OTHERS = "others, p95 / without the hot key"
FREE_KEY = "a free key while 500 wait (s)"
IN_SLOT = "a lock's time in the slot, in round trips"


@dataclass(frozen=True)
class Case:
    """Workers, what is measured with them, and how good the figures must be."""

    measure: Callable[..., Figures]
    """Called for each round, with the module of the tasks, the addresses of ZooKeeper and the delay of `--slower`."""
    budgets: Mapping[str, float] = field(default_factory=dict)
    """The most that a figure may be; for the share of the tasks that are done, the least."""
    paired: bool = False
    """Whether the figures come from pairs, and need many rounds."""
    workers: tuple[str, ...] = (f"--concurrency={SLOTS}",) * 2
    nodes: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0
    """Seconds between the workers and ZooKeeper, each way."""
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


def bursts(tasks: Any, hosts: str, slower: float, count: int, seconds: float, others: int) -> Figures:
    """Send a burst of each policy, in random order."""
    del hosts
    makespans, figures = {}, {}
    for policy in random.SystemRandom().sample(POLICIES, len(POLICIES)):
        alone = runs_of(send(tasks, policy, 0, 0, count + others)[1]) if others and policy == OURS else []
        sent = time.time()
        hot, rest = send(tasks, policy, count, seconds * (1 if policy == "slots" else 1 + slower / 100), others)
        runs, other_runs = runs_of(hot), runs_of(rest)
        makespans[policy] = max(run.ended for run in runs) - sent
        if policy == OURS:
            figures[INVERSIONS] = inversions([run.began for run in runs])
        if alone:
            figures[OTHERS] = p95([run.waited for run in other_runs]) / p95([run.waited for run in alone])
    return {
        **{f"{policy}, {MAKESPAN}": makespan / (count * seconds) for policy, makespan in makespans.items()},
        TO_REDIS: makespans[OURS] / makespans["slots"],
        LINGER_TO_REDIS: makespans["wait_linger"] / makespans["slots"],
        **figures,
    }


def p95(values: list[float]) -> float:
    """Return the 95th percentile."""
    return sorted(values)[int(len(values) * 0.95)]


def crowd(tasks: Any, *_: object) -> Figures:
    """Measure how soon a task on a free key begins while many wait for another key."""
    waiting = [tasks.wait.delay(time.time(), 6.0), *(tasks.wait.delay(time.time(), 0.0) for _ in range(CROWD))]
    time.sleep(3.0)
    slowest = max(run.waited for _ in range(10) for run in runs_of([tasks.idle_key.delay(time.time(), 0.0)]))
    runs_of(waiting)
    return {FREE_KEY: slowest}


def time_in_slot(tasks: Any, hosts: str, *_: object) -> Figures:
    """Measure how much longer a slot is in use by a task with a lock; both kinds take turns."""
    client = KazooClient(hosts)
    client.start()
    try:
        periods: dict[str, list[float]] = {"own_key": [], "other": []}
        trips = [timeit.timeit(lambda: client.exists("/"), number=1) for _ in range(IN_TURN)]
        for kind in random.SystemRandom().sample([*periods] * TURNS, 2 * TURNS):
            arguments = [(next(NUMBERS) % KEYS,) if kind == "own_key" else () for _ in range(IN_TURN)]
            sent = [getattr(tasks, kind).delay(*own, time.time(), 0.0) for own in arguments]
            began = sorted(run.began for run in runs_of(sent))
            periods[kind] += [following - before for before, following in itertools.pairwise(began)]
    finally:
        client.stop()
        client.close()
    locked, unlocked = (statistics.median(periods[kind]) for kind in ("own_key", "other"))
    trip = statistics.median(trips)
    return {
        IN_SLOT: (locked - unlocked) / trip,
        "a round trip (ms)": 1000 * trip,
        "time in the slot with a lock (ms)": 1000 * locked,
        "the same without (ms)": 1000 * unlocked,
    }


ONE_WORKER = (f"--concurrency={SLOTS}",)
ONE_TASK = (f"--concurrency={SLOTS} --max-tasks-per-child=1",)
ONE_BUSY = (f"--concurrency={SLOTS} -Q busy,celery", f"--concurrency={SLOTS} -Q celery")
POOL = {IDLE: 0.15, SENT_BACK: 0}
CASES = {
    "full pool": Case(functools.partial(full_pool, alone=True), {DONE: 95, SLOWER: 1.1, **POOL}, workers=ONE_WORKER),
    "full pool, a child per task": Case(full_pool, {DONE: 80, **POOL}, workers=ONE_TASK),
    "full pool, slow children": Case(full_pool, workers=ONE_TASK, environment={"BENCH_START": "1.3"}),
    "full pool, threads": Case(full_pool, workers=(f"--pool=threads --concurrency={SLOTS}",)),
    "full pool, autoscale": Case(full_pool, workers=(f"--autoscale={SLOTS},1",), warm_up=1),
    "two workers": Case(functools.partial(two_workers, busy=32), {MAKESPAN: 1.6, **POOL}, workers=ONE_BUSY),
    "two workers, short backlog": Case(
        functools.partial(two_workers, busy=12), {MAKESPAN: 1.6, **POOL}, workers=ONE_BUSY
    ),
    # The busy worker receives hot tasks behind 7 s of its own work. If it keeps the order, the makespan is about 2.5.
    "two workers, long backlog": Case(
        functools.partial(two_workers, busy=32), POOL, workers=(f"{ONE_BUSY[0]} --prefetch-multiplier=16", ONE_BUSY[1])
    ),
    "30 x 50 ms": Case(
        functools.partial(bursts, count=30, seconds=0.05, others=120),
        {TO_REDIS: 0.96, LINGER_TO_REDIS: 0.89, INVERSIONS: 0.06, OTHERS: 2.5},
        paired=True,
        nodes=3,
    ),
    "100 x 20 ms": Case(
        functools.partial(bursts, count=100, seconds=0.02, others=0),
        {TO_REDIS: 0.95, LINGER_TO_REDIS: 0.84, INVERSIONS: 0.06},
        paired=True,
        nodes=3,
    ),
    "crowd": Case(crowd, {FREE_KEY: 0.2}),
    "slot": Case(time_in_slot, {IN_SLOT: 1.9}, paired=True, workers=("--concurrency=1",), delay=0.002),
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


def run(name: str, broker: Redis, options: Any) -> list[pairs.Figure]:
    """Return the figures of a case."""
    case = CASES[name]
    figures: dict[str, pairs.Figure] = {}
    with contextlib.ExitStack() as stack:
        hosts = stack.enter_context(Ensemble(case.nodes, **(pairs.ENSEMBLE if case.delay else {}))).hosts
        if case.delay:
            hosts = stack.enter_context(Proxy(hosts, delay=case.delay)).address
        os.environ.update(
            {
                "ZKLOCK_URL": f"zk://{hosts}/bench",
                "BENCH_REDIS": f"redis://127.0.0.1:{broker.port}",
                "BENCH_START": "0",
                "PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parent)]),
                "PYTHONWARNINGS": "ignore",  # of a worker that runs as root
                **case.environment,
            }
        )
        import celery_tasks as tasks  # noqa: PLC0415 - it reads the environment

        broker.clear()
        for number, arguments in enumerate(case.workers):
            stack.enter_context(worker(number, arguments))
        runs_of([task.delay(time.time(), 0.1) for task in (tasks.other, tasks.wait) for _ in range(case.warm_up)])
        if case.paired:
            case.measure(tasks, hosts, options.slower)  # warms up
        for _ in pairs.rounds(figures.values(), options.seconds if case.paired else 0):
            for what, value in case.measure(tasks, hosts, options.slower).items():
                budget = case.budgets.get(what)
                new = pairs.Figure(f"{name}: {what}", budget, least=what == DONE, exact=not case.paired)
                figures.setdefault(what, new).values.append(value)
    return [*figures.values()]


def main() -> int:
    """Run the benchmark."""
    parser = pairs.parser(__doc__, seconds=40)
    parser.add_argument("--case", choices=CASES, action="append", help="run this case only; may be repeated")
    options = parser.parse_args()
    status = 0
    with Redis() as broker:
        for name in options.case or CASES:
            if options.case or CASES[name].budgets or not options.check:
                status |= pairs.finish(run(name, broker, options), check=options.check)
    return status


if __name__ == "__main__":
    sys.exit(main())
