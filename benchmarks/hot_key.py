"""
Measure how fast one key is handed on within a process and between processes: ours, kazoo's Lock and redis-py's lock.

Three real ZooKeeper servers sync every write to disk, and all clients use the same follower. Redis keeps everything in
memory. Each case has processes with owners: threads or asyncio tasks that acquire and release the key in a loop and do
nothing under it. Each owner uses one lock object again and again. The candidates of a case alternate in random order.
Each run starts new processes, and each figure is the median of the rounds.

`--check` fails if a figure is over its budget.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

KEY = "hot"
WARM_UP = 0.3  # seconds


class Case(NamedTuple):
    """The owners that want the key."""

    processes: int
    owners: int  # of each process
    candidates: Sequence[str]
    tasks: bool = False  # whether owners are asyncio tasks, and not threads


CASES = {
    "1 thread": Case(1, 1, ["ours, linger=60", "redis-py", "kazoo"]),
    "8 threads": Case(1, 8, ["ours, linger=60", "ours", "redis-py", "kazoo"]),
    "100 tasks": Case(1, 100, ["ours, linger=60", "redis-py"], tasks=True),
    "4 processes": Case(4, 1, ["ours", "redis-py", "kazoo"]),
    "4 processes x 4 threads": Case(4, 4, ["ours, linger=0.02", "redis-py", "kazoo"]),
}

#: Figure, and how to show it. Waits are in seconds: the longest of an owner, and of a process for any of its owners.
#: Shares are those of processes, or of owners if there is one process only.
FIGURES = {
    "grants/s": ",.0f",
    "owner waits": ".3f",
    "process waits": ".3f",
    "least share": ".1%",
    "most share": ".1%",
}

#: Case, candidate, other, and at least how many times its grants per second the candidate must have.
RATIOS = [
    ("1 thread", "ours, linger=60", "redis-py", 5.0),
    ("1 thread", "ours, linger=60", "kazoo", 50.0),
    # In strict order each grant goes to another thread; redis-py's threads take the lock again and again.
    ("8 threads", "ours, linger=60", "redis-py", 1.4),
    ("100 tasks", "ours, linger=60", "redis-py", 5.0),
    ("4 processes x 4 threads", "ours, linger=0.02", "kazoo", 10.0),
]
#: Case, candidate, figure, and its budget.
LONGEST = [("4 processes x 4 threads", "ours, linger=0.02", "process waits", 3 * 0.02 + 0.1)]

Candidate = Callable[[], Callable[[], Any]]  # called once by each owner; what it returns, once for each grant
Results = dict[str, dict[str, dict[str, float]]]  # by case, candidate and figure


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
    """The grants of one process, in one run."""

    def __init__(self, owners: int, seconds: float) -> None:
        self._began = time.monotonic()
        self.until = self._began + seconds
        self._granted: list[float] = []  # appended to under the lock
        self._counts = [0] * owners
        self._longest = 0.0

    def add(self, owner: int, wanted: float) -> None:
        """Note a grant to an owner that has wanted the lock since then; the owner has the lock."""
        now = time.monotonic()
        self._granted.append(now)
        self._longest = max(self._longest, now - wanted)
        self._counts[owner] += now < self.until

    def figures(self) -> dict[str, Any]:
        """Return the counts of the owners, and the longest waits in seconds."""
        gaps = (later - earlier for earlier, later in itertools.pairwise([self._began, *self._granted]))
        return {"counts": self._counts, "owner": self._longest, "process": max(gaps)}


def run_threads(start: Candidate, owners: int, seconds: float) -> dict[str, Any]:
    """Have threads take the lock in turn."""
    grants = Grants(owners, seconds)

    def acquire(owner: int) -> None:
        lock = start()
        while (wanted := time.monotonic()) < grants.until:
            with lock():
                grants.add(owner, wanted)

    threads = [threading.Thread(target=acquire, args=(owner,)) for owner in range(owners)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return grants.figures()


async def run_tasks(start: Candidate, owners: int, seconds: float) -> dict[str, Any]:
    """Have tasks take the lock in turn."""
    grants = Grants(owners, seconds)

    async def acquire(owner: int) -> None:
        lock = start()
        while (wanted := time.monotonic()) < grants.until:
            async with lock():
                grants.add(owner, wanted)
                await asyncio.sleep(0)  # the others want it, too

    await asyncio.gather(*(acquire(owner) for owner in range(owners)))
    return grants.figures()


async def run_process(case: Case, name: str, seconds: float, zookeeper: str, redis: int) -> None:
    """Measure in this process, as soon as the parent says so; report to the parent."""
    start = candidate(name, zookeeper, redis, tasks=case.tasks)

    async def run(seconds: float) -> dict[str, Any]:
        if case.tasks:
            return await run_tasks(start, case.owners, seconds)
        return run_threads(start, case.owners, seconds)

    await run(WARM_UP)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    json.dump(await run(seconds), sys.stdout)


def run_apart(case: str, name: str, seconds: float, zookeeper: str, redis: int) -> dict[str, float]:
    """Measure one candidate of a case in new processes, and return the figures."""
    command = [sys.executable, __file__, "--run", case, name, "--seconds", str(seconds)]
    command += ["--zookeeper", zookeeper, "--redis", str(redis)]
    pipe = subprocess.PIPE
    done: list[dict[str, Any]] = []
    with ExitStack() as stack:
        processes = [
            stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
            for _ in range(CASES[case].processes)
        ]
        try:
            for process in processes:
                assert process.stdout is not None
                if process.stdout.readline() != "ready\n":
                    raise SystemExit(f"{case}, {name}: a process failed")
            for process in processes:
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
            done.extend(json.loads(process.communicate(timeout=seconds + 60)[0]) for process in processes)
        finally:
            for process in processes:
                process.kill()
    counts = [sum(figures["counts"]) for figures in done] if len(done) > 1 else done[0]["counts"]
    total = max(1, sum(counts))
    return {
        "grants/s": sum(counts) / seconds,
        "owner waits": max(figures["owner"] for figures in done),
        "process waits": max(figures["process"] for figures in done),
        "least share": min(counts) / total,
        "most share": max(counts) / total,
    }


def measure(cases: Sequence[str], rounds: int, seconds: float, zookeeper: str, redis: int) -> Results:
    """Return the figures of each case and candidate: medians of the rounds."""
    shuffled = random.SystemRandom()
    results: Results = {}
    for case in cases:
        names = CASES[case].candidates
        seen: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for _ in range(rounds):
            for name in shuffled.sample(names, len(names)):
                seen[name].append(run_apart(case, name, seconds, zookeeper, redis))
        results[case] = {
            name: {figure: round(statistics.median(run[figure] for run in runs), 4) for figure in FIGURES}
            for name, runs in seen.items()
        }
    return results


def judge(results: Results) -> list[dict[str, Any]]:
    """Compare the figures with their budgets."""
    verdicts = []
    for case, ours, other, budget in RATIOS:
        if case in results:
            value = round(results[case][ours]["grants/s"] / results[case][other]["grants/s"], 2)
            what = f"{case}: {ours} / {other}, at least"
            verdicts.append({"what": what, "value": value, "budget": budget, "ok": value >= budget})
    for case, ours, figure, budget in LONGEST:
        if case in results:
            value = results[case][ours][figure]
            what = f"{case}: {ours}, {figure}, at most"
            verdicts.append({"what": what, "value": value, "budget": budget, "ok": value <= budget})
    return verdicts


def report(results: Results, verdicts: list[dict[str, Any]]) -> str:
    """Return the results as text."""
    lines = []
    for case, candidates in results.items():
        lines.append(f"{case:32}" + "".join(f"{figure:>16}" for figure in FIGURES))
        for name, figures in candidates.items():
            lines.append(f"  {name:30}" + "".join(f"{figures[figure]:16{form}}" for figure, form in FIGURES.items()))
    lines.append("")
    for verdict in verdicts:
        state = "ok" if verdict["ok"] else "OVER BUDGET"
        lines.append(f"{verdict['what']:70}{verdict['value']:8.2f}  of {verdict['budget']:5.2f}  {state}")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each candidate (default: 3)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run (default: 2)")
    parser.add_argument("--case", choices=list(CASES), action="append", help="measure this case only")
    parser.add_argument("--json", type=Path, default=Path("bench-hot-key.json"), metavar="FILE")
    parser.add_argument("--check", action="store_true", help="fail if something is over its budget")
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)  # with the next two: measure in this process
    parser.add_argument("--zookeeper", help=argparse.SUPPRESS)
    parser.add_argument("--redis", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.run:
        case, name = options.run
        asyncio.run(run_process(CASES[case], name, options.seconds, options.zookeeper, options.redis))
        return 0

    from support.brokers import Redis  # noqa: PLC0415 - the processes that are measured need none of this
    from support.ensemble import Ensemble, four_letter  # noqa: PLC0415

    servers = Ensemble(nodes=3, tick=2.0, fsync=True, container_check=60.0, max_session_timeout=60)
    with servers as ensemble, Redis() as redis:
        follower = ensemble.followers[0]
        version = four_letter("127.0.0.1", follower.port, "srvr").partition("\n")[0]
        results = measure(options.case or list(CASES), options.rounds, options.seconds, follower.address, redis.port)
    verdicts = judge(results)
    about = {"python": platform.python_version(), "cpus": os.cpu_count(), "server": version, "load": os.getloadavg()}
    options.json.write_text(json.dumps({"about": about, "cases": results, "verdicts": verdicts}, indent=2) + "\n")
    sys.stdout.write(report(results, verdicts))
    return 1 if options.check and not all(verdict["ok"] for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
