"""
How tasks on one key fare in a worker whose slots are busy with other tasks. `celery_waiting.py` runs these cases.

An observer with its own client of ZooKeeper reads the queue of the lock every few milliseconds. The tasks return when
they worked, by the same clock. So the time in which the lock is granted and no task works is measured from outside.
"""

from __future__ import annotations

import bisect
import itertools
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Self

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

SLOTS = 4  # of each worker
HOT = 0.05  # seconds that the work of a task on the hot key takes
UNLOCKED = 1.0  # the same, for a task without a lock
OBSERVE_EVERY = 0.004  # seconds
QUEUE = "/bench/zklock/hot"  # the znode whose children are the contenders for the lock
TIMEOUT = 300  # seconds for a task to end

Figures = dict[str, float]
DONE = "hot done when the unlocked are done (%)"
SLOWER = "unlocked, makespan / without the hot"
MAKESPAN = "makespan / ideal"
IDLE = "lock granted, no task at work (share)"
SENT_BACK = "hot, sent back to the broker"


class Run(NamedTuple):
    """When a task ran, by the clock of the machine."""

    began: float
    waited: float  # seconds since it was sent
    ended: float


def runs_of(results: Iterable[Any]) -> list[Run]:
    """Wait for tasks, and return their runs in the order in which they were sent."""
    return [Run(*result.get(timeout=TIMEOUT)) for result in results]


class Observer:
    """Record the holder of the hot lock for the length of a with block, in a thread."""

    def __init__(self, hosts: str) -> None:
        self._client = KazooClient(hosts)
        self._ended = threading.Event()
        self._thread = ThreadPoolExecutor(1)
        self._samples: list[tuple[float, str | None]] = []  # the time, and the znode of the holder

    def __enter__(self) -> Self:
        self._client.start()
        self._record = self._thread.submit(self._observe)
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.shutdown()
        self._client.stop()
        self._client.close()
        self._record.result()

    def _observe(self) -> None:
        while not self._ended.wait(OBSERVE_EVERY):
            asked = time.time()
            try:
                contenders = [name for name in self._client.get_children(QUEUE) if name[-10:].isdigit()]
            except NoNodeError:
                contenders = []
            holder = min(contenders, key=lambda name: int(name[-10:]), default=None)
            self._samples.append(((asked + time.time()) / 2, holder))

    def figures(self, sent: float, runs: list[Run]) -> Figures:
        """Return how the lock was used between the first send and the end of the last of these runs."""
        ended = max(run.ended for run in runs)
        runs = sorted(runs)
        starts = [run.began for run in runs]

        def is_at_work(moment: float) -> bool:
            index = bisect.bisect_right(starts, moment)
            return index > 0 and moment < runs[index - 1].ended

        idle, holders = 0.0, set()
        for (moment, holder), (following, _) in itertools.pairwise(self._samples):
            if holder is not None and sent <= moment <= ended:
                holders.add(holder)
                idle += 0.0 if is_at_work(moment) else following - moment
        if not holders:
            raise RuntimeError(f"The observer saw no holder in {QUEUE}. Correct the path.")
        return {IDLE: idle / (ended - sent), "grants / hot task": len(holders) / len(runs)}


def count_sent_back(tasks: Any) -> Callable[[int], float]:
    """Return a function that returns how many hot messages have come since now, but for those that were sent."""
    name = tasks.wait.name
    before = int(tasks.deliveries.get(name) or 0)
    return lambda sent: int(tasks.deliveries.get(name)) - before - sent


def full_pool(tasks: Any, hosts: str, _: float, hot: int = 25, unlocked: int = 40, alone: bool = False) -> Figures:
    """Send hot and unlocked tasks, shuffled, to a worker; with `alone`, compare with the unlocked ones alone."""
    sent = time.time()
    makespan_alone = max(run.ended for run in send_unlocked(tasks, unlocked)) - sent if alone else 0.0
    locked = [True] * hot + [False] * unlocked
    random.Random(1).shuffle(locked)  # noqa: S311
    sent_back = count_sent_back(tasks)
    with Observer(hosts) as observer:
        sent = time.time()
        results = [
            tasks.wait.delay(time.time(), HOT) if is_hot else tasks.other.delay(time.time(), UNLOCKED)
            for is_hot in locked
        ]
        others = runs_of(result for result, is_hot in zip(results, locked, strict=True) if not is_hot)
        runs = runs_of(result for result, is_hot in zip(results, locked, strict=True) if is_hot)
    done = max(run.ended for run in others)
    return {
        DONE: 100 * sum(run.ended <= done for run in runs) / hot,
        **({SLOWER: (done - sent) / makespan_alone} if alone else {}),
        "unlocked, makespan / ideal": (done - sent) / (unlocked * UNLOCKED / SLOTS),
        "unlocked, median wait (s)": statistics.median(run.waited for run in others),
        "hot, median wait (s)": statistics.median(run.waited for run in runs),
        "hot, longest wait (s)": max(run.waited for run in runs),
        **observer.figures(sent, runs),
        SENT_BACK: sent_back(hot),
    }


def send_unlocked(tasks: Any, count: int) -> list[Run]:
    """Send tasks without a lock, and wait for them."""
    return runs_of([tasks.other.delay(time.time(), UNLOCKED) for _ in range(count)])


def two_workers(tasks: Any, hosts: str, _: float, busy: int, hot: int = 60) -> Figures:
    """Send hot tasks to two workers when the first has worked on `busy` tasks of its own for a second."""
    own = [tasks.other.apply_async((time.time(), UNLOCKED), queue="busy") for _ in range(busy)]
    runs_of(own[:1])
    sent_back = count_sent_back(tasks)
    with Observer(hosts) as observer:
        sent = time.time()
        runs = runs_of([tasks.wait.delay(time.time(), HOT) for _ in range(hot)])
    runs_of(own)
    return {
        MAKESPAN: (max(run.ended for run in runs) - sent) / (hot * HOT),
        "hot, longest wait (s)": max(run.waited for run in runs),
        **observer.figures(sent, runs),
        SENT_BACK: sent_back(hot),
    }
