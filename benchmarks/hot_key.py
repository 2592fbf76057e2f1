"""
Measure how fast one key is handed on within a process and between processes: ours, kazoo's Lock and redis-py's lock.

Three real ZooKeeper servers sync every write to disk, and all clients use the same follower. Redis keeps everything in
memory. Each case has processes with owners: threads or asyncio tasks that acquire and release the key in a loop and do
nothing under it. Each owner uses one lock object again and again. The candidates of a case take turns of half a second,
in random order; a round gives the ratios of their grants.

`--check` fails unless all figures are within their budgets; `pairs.py` says how they are judged.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import pairs

KEY = "hot"
WARM_UP = 0.3  # seconds
TURN = 0.5  # seconds
ROUNDS = 4  # at least, with the same processes; the next ones have new processes


class Case(NamedTuple):
    """The owners that want the key, and our budgets."""

    processes: int
    owners: int  # of each process
    ours: str
    #: How many times the grants per second of the other one we must have, at least.
    others: dict[str, float]
    tasks: bool = False  # whether owners are asyncio tasks, and not threads
    longest: float | None = None  # seconds that a process waits for the key, at most


CASES = {
    "1 thread": Case(1, 1, "ours, linger=60", {"redis-py": 5.2}),
    # In strict order each grant goes to another thread; redis-py's threads take the lock again and again.
    "8 threads": Case(1, 8, "ours, linger=60", {"redis-py": 2.45}),
    "100 tasks": Case(1, 100, "ours, linger=60", {"redis-py": 4.1}, tasks=True),
    "4 processes x 4 threads": Case(
        4, 4, "ours, linger=0.02", {"redis-py": 1.85, "kazoo": 32.0}, longest=3 * 0.02 + 0.1
    ),
}

Candidate = Callable[[], Callable[[], Any]]  # called once by each owner; what it returns, once for each grant


def candidate(name: str, zookeeper: str, redis: int, *, tasks: bool) -> Candidate:
    """Connect, and return a candidate."""
    if name == "kazoo":
        from kazoo.client import KazooClient  # noqa: PLC0415

        client = KazooClient(zookeeper, timeout=20)
        client.start(timeout=20)
        return lambda: always(client.Lock(f"/kazoo/{KEY}"))
    if name == "redis-py":
        from redis import Redis  # noqa: PLC0415
        from redis.asyncio import Redis as AsyncRedis  # noqa: PLC0415

        server: Any = (AsyncRedis if tasks else Redis)(port=redis)
        return lambda: always(server.lock(KEY, timeout=30))

    import django  # noqa: PLC0415
    from django.conf import settings  # noqa: PLC0415, TID251 - a program of its own, not a part of the package

    settings.configure(INSTALLED_APPS=["django_zklock"], ZKLOCK={"URL": f"zk://{zookeeper}/ours"})
    django.setup()
    from django_zklock import zk_lock  # noqa: PLC0415 - not before Django is set up

    linger = float(name.partition("linger=")[2] or 0)
    return lambda: always(zk_lock(KEY, timeout=None, linger=linger))


def always(lock: Any) -> Callable[[], Any]:
    """Return a function that returns this lock."""
    return lambda: lock


class Grants:
    """The grants of one process, in one turn."""

    def __init__(self, seconds: float, slower: float) -> None:
        self._last = time.monotonic()
        self.until = self._last + seconds
        self._slower = slower  # the share of the time since the last grant that the next one takes longer
        self._longest = 0.0
        self._count = 0  # changed under the lock

    def add(self) -> None:
        """Note a grant; the owner has the lock."""
        now = time.monotonic()
        since = now - self._last
        self._longest = max(self._longest, since)
        self._count += now < self.until
        self._last = now
        while self._slower and time.monotonic() < now + since * self._slower:
            pass

    def figures(self) -> dict[str, float]:
        """Return how many grants there were, and the longest time without one, in seconds."""
        return {"grants": self._count, "longest": self._longest}


def run_threads(start: Candidate, owners: int, grants: Grants) -> None:
    """Have threads take the lock in turn."""

    def acquire() -> None:
        lock = start()
        while time.monotonic() < grants.until:
            with lock():
                grants.add()

    threads = [threading.Thread(target=acquire) for _ in range(owners)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def run_tasks(start: Candidate, owners: int, grants: Grants) -> None:
    """Have tasks take the lock in turn."""

    async def acquire() -> None:
        lock = start()
        while time.monotonic() < grants.until:
            async with lock():
                grants.add()
                await asyncio.sleep(0)  # the others want it, too

    await asyncio.gather(*(acquire() for _ in range(owners)))


async def run_process(case: Case, name: str, zookeeper: str, redis: int, slower: float) -> None:
    """Measure in this process, whenever the parent sends a line; report to the parent."""
    start = candidate(name, zookeeper, redis, tasks=case.tasks)
    share = slower / 100 / case.processes if name == case.ours else 0.0
    for seconds in itertools.chain([WARM_UP], itertools.repeat(TURN)):
        grants = Grants(seconds, share)
        if case.tasks:
            await run_tasks(start, case.owners, grants)
        else:
            run_threads(start, case.owners, grants)
        sys.stdout.write(json.dumps(grants.figures()) + "\n")
        sys.stdout.flush()
        if not sys.stdin.readline():
            return


@contextlib.contextmanager
def processes(case: str, name: str, *more: str) -> Iterator[Callable[[], list[dict[str, float]]]]:
    """Start the processes of a candidate; yield what measures them for a turn."""
    command = [sys.executable, __file__, "--run", case, name, *more]
    started: list[subprocess.Popen[str]] = []

    def answers() -> list[dict[str, float]]:
        lines = [process.stdout.readline() for process in started if process.stdout]
        if not all(lines):
            raise SystemExit(f"{case}, {name}: a process failed")
        return [json.loads(line) for line in lines]

    def turn() -> list[dict[str, float]]:
        for process in started:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        return answers()

    with ExitStack() as stack:
        for _ in range(CASES[case].processes):
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            started.append(stack.enter_context(process))
        answers()  # of the warm-up
        yield turn


def measure(name: str, seconds: float, *more: str) -> list[pairs.Figure]:
    """Measure a case; print the grants of each candidate, and return the figures."""
    case = CASES[name]
    ratios = {
        other: pairs.Figure(f"{name}: {case.ours} / {other}, grants", budget, least=True)
        for other, budget in case.others.items()
    }
    longest = pairs.Figure(f"{name}: {case.ours}, a process waits (s)", case.longest)
    rates: dict[str, list[float]] = {candidate: [] for candidate in (case.ours, *ratios)}

    def some_rounds() -> None:
        with ExitStack() as stack:
            turns = {candidate: stack.enter_context(processes(name, candidate, *more)) for candidate in rates}
            for _ in range(ROUNDS):
                for candidate in random.SystemRandom().sample([*turns], len(turns)):
                    seen = turns[candidate]()
                    rates[candidate].append(sum(figures["grants"] for figures in seen) / TURN)
                    if candidate == case.ours:
                        longest.values.append(max(figures["longest"] for figures in seen))
                for other, ratio in ratios.items():
                    ratio.values.append(rates[case.ours][-1] / max(1, rates[other][-1]))

    figures = [*ratios.values(), *([longest] if case.longest else [])]
    for _ in pairs.rounds(figures, seconds):
        some_rounds()
    for candidate, values in rates.items():
        sys.stdout.write(f"{name + ': ' + candidate:68}{statistics.median(values):9,.0f} grants/s\n")
    return figures


def main() -> int:
    """Run the benchmark."""
    parser = pairs.parser(__doc__, seconds=20)
    parser.add_argument("--case", choices=list(CASES), action="append", help="measure this case only")
    parser.add_argument("--run", nargs=2, help=pairs.HIDDEN)  # with the next two: measure in this process
    parser.add_argument("--zookeeper", help=pairs.HIDDEN)
    parser.add_argument("--redis", type=int, help=pairs.HIDDEN)
    options = parser.parse_args()
    if options.run:
        case, name = options.run
        asyncio.run(run_process(CASES[case], name, options.zookeeper, options.redis, options.slower))
        return 0

    from support.brokers import Redis  # noqa: PLC0415 - the processes that are measured need none of this
    from support.ensemble import Ensemble  # noqa: PLC0415

    figures = []
    with Ensemble(nodes=3, fsync=True, **pairs.ENSEMBLE) as ensemble, Redis() as redis:
        more = ["--zookeeper", ensemble.followers[0].address, "--redis", str(redis.port)]
        for name in options.case or CASES:
            figures += measure(name, options.seconds, *more, "--slower", str(options.slower))
    return pairs.finish(figures, check=options.check)


if __name__ == "__main__":
    sys.exit(main())
