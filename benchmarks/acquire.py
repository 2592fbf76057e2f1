"""
Measure an uncontended acquire and release against kazoo's Lock, Apache Curator's mutex, and a plain create and delete.

There are three real ZooKeeper servers, which sync every write to disk. All candidates use the same follower. They run
in one process and alternate in random order. Curator's runs in a Java process that takes its turn like the others and
tells its own time. A few rounds have two new processes: one directly on loopback, and one through a proxy that adds
2 ms each way, like a network. A round gives a ratio of the medians of each pair. The proxy also counts the requests and
the round trips. These numbers do not depend on the machine.

`--check` fails unless all figures are within their budgets; `pairs.py` says how they are judged.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import pairs
from kazoo.client import KazooClient
from support.ensemble import Ensemble
from support.neighbours.curator import curator
from support.proxy import UPKEEP, Proxy

if TYPE_CHECKING:
    from collections.abc import Callable

    Candidate = Callable[[int], float | None]  # returns the seconds it took, if it runs in another process

ROUTES = {"loopback": 0.0, "2 ms": 0.002}  # seconds added each way; 0 is no proxy at all
ROUNDS = 4  # with the same processes; the next ones have new processes
TURNS = {"loopback": 120, "2 ms": 30}  # of each candidate, in a round
BATCH = 3  # turns in a row of one candidate
WARM_UP = 20
JVM_WARM_UP = 500
CPU_TURNS = 60  # batches of each candidate, in a round
COUNTED = 15  # acquisitions that are counted together, as the end of a block does not wait for its release

PROCESSOR = "processor time"  # of all threads of the process, on loopback

#: Ours, the other, the route (or the processor time), and the ratio of their medians at most.
BUDGETS = [
    ("ours", "bare", "loopback", 0.94),
    ("ours", "bare", "2 ms", 0.60),
    ("ours", "curator", "loopback", 0.94),
    ("ours", "kazoo fresh", "loopback", 0.64),
    ("ours", "kazoo fresh", "2 ms", 0.33),
    ("ours async", "ours", "loopback", 1.15),
    ("ours fresh", "kazoo fresh", PROCESSOR, 0.74),
]
ROUND_TRIPS = 1  # of one acquire and release

LABELS = {
    "ours": "zk_lock",
    "ours async": "zk_lock, async with",
    "ours confirmed": "zk_lock, acquire() and release()",
    "ours fresh": "zk_lock, a new object each time",
    "ours, new key": "zk_lock, a new key each time",
    "kazoo fresh": "kazoo Lock, a new object each time",
    "kazoo fresh, new key": "kazoo Lock, a new key each time",
    "kazoo reused": "kazoo Lock, one object",
    "curator": "Curator InterProcessMutex, one object",
    "bare": "kazoo create + delete, no lock",
}


def contestants(address: str, stack: ExitStack, *, java: bool) -> dict[str, Candidate]:
    """Return the candidates by name. Each is called with a number, from which it can make a new key."""
    client = KazooClient(address, timeout=20)
    client.start(timeout=20)
    stack.callback(client.close)
    stack.callback(client.stop)
    client.ensure_path("/bench/bare")
    kazoo_lock = client.Lock("/bench/reused")

    def fresh(path: str) -> None:
        lock = client.Lock(path)
        lock.acquire()
        lock.release()

    def reused(_: int) -> None:
        kazoo_lock.acquire()
        kazoo_lock.release()

    def bare(_: int) -> None:
        client.delete(client.create("/bench/bare/n-", b"", ephemeral=True, sequence=True))

    candidates: dict[str, Candidate] = {
        **our_contestants(address),
        "kazoo fresh": lambda _: fresh("/bench/fresh"),
        "kazoo fresh, new key": lambda turn: fresh(f"/bench/new/{turn}"),
        "kazoo reused": reused,
        "bare": bare,
    }
    if java:
        process = stack.enter_context(curator(address, session_timeout=20))
        candidates["curator"] = lambda _: int(process.ask("bench", "time", "mutex", "/bench/curator")) / 1e9
    return candidates


def our_contestants(address: str) -> dict[str, Candidate]:
    """Set up Django with only this package, and return our candidates."""
    import django  # noqa: PLC0415 - the processes that measure are others
    from django.conf import settings  # noqa: PLC0415, TID251 - a program of its own, not a part of the package

    settings.configure(INSTALLED_APPS=["django_zklock"], ZKLOCK={"URL": f"zk://{address}/bench"})
    django.setup()
    from django_zklock import zk_lock  # noqa: PLC0415 - not before Django is set up

    first = zk_lock("bench/one")

    loop = asyncio.new_event_loop()

    def same_key(_: int) -> None:
        with first:
            pass

    async def in_coroutine() -> float:
        began = time.perf_counter()
        async with first:
            pass
        return time.perf_counter() - began

    def confirmed(_: int) -> None:
        first.acquire()
        first.release()

    def fresh(_: int) -> None:
        with zk_lock("bench/one"):
            pass

    def new_key(turn: int) -> None:
        with zk_lock(f"bench/new-{turn}"):
            pass

    return {
        "ours": same_key,
        "ours async": lambda _: loop.run_until_complete(in_coroutine()),
        "ours confirmed": confirmed,
        "ours fresh": fresh,
        "ours, new key": new_key,
    }


def warm_up(runners: dict[str, Candidate], route: str) -> list[str]:
    """Warm up the candidates that have a budget for this route; return their names."""
    timed = sorted({name for budget in BUDGETS if budget[2] == route for name in budget[:2]})
    for name in timed:
        for turn in range(JVM_WARM_UP if name == "curator" else WARM_UP):
            runners[name](turn)
    return timed


def measure(runners: dict[str, Candidate], route: str, timed: list[str], slower: float) -> dict[str, float]:
    """Time these candidates; return medians in milliseconds."""
    times: dict[str, list[float]] = {name: [] for name in timed}
    shuffled = random.SystemRandom()
    gc.collect()
    gc.disable()
    for _ in range(TURNS[route] // BATCH):
        for name in shuffled.sample(timed, len(timed)):
            run, percent = runners[name], slower if name.startswith("ours") else 0.0
            for turn in range(BATCH):
                by_java: list[float | None] = []
                took = pairs.slowed(lambda: by_java.append(run(turn)), percent)  # noqa: B023 - called at once
                times[name].append((by_java[0] or took) * 1000)
    gc.enable()
    return {name: statistics.median(values) for name, values in times.items()}


def processor_times(runners: dict[str, Candidate], slower: float) -> dict[str, float]:
    """Return the processor time of all threads of this process for one acquire and release, in milliseconds."""
    times: dict[str, list[float]] = {"ours fresh": [], "kazoo fresh": []}
    shuffled = random.SystemRandom()
    for _ in range(CPU_TURNS):
        for name in shuffled.sample([*times], len(times)):

            def batch(run: Candidate = runners[name]) -> None:
                for turn in range(BATCH):
                    run(turn)

            percent = slower if name.startswith("ours") else 0.0
            times[name].append(pairs.slowed(batch, percent, time.process_time) * 1000 / BATCH)
    return {name: statistics.median(values) for name, values in times.items()}


def count(runners: dict[str, Candidate], proxy: Proxy) -> dict[str, tuple[int, int]]:
    """Count the round trips and requests of one acquire and release: a part of those of many in a row."""
    result = {}
    for name, run in runners.items():
        run(-1)
        time.sleep(0.5)  # until the last release is confirmed
        proxy.reset()
        for turn in range(COUNTED):
            run(turn)
        requests = sum(times for op, times in proxy.counts.items() if op not in UPKEEP)
        result[name] = round(proxy.round_trips() / COUNTED), round(requests / COUNTED)
    return result


def run_route(route: str, address: str, slower: float, *, counted: bool) -> dict[str, Any]:
    """Measure some rounds of one route, in this process."""
    proxy = None
    if ROUTES[route]:
        proxy = Proxy(address, delay=ROUTES[route])
        proxy.start()  # and never stopped: the locks' own connection goes through it until this process ends
    with ExitStack() as stack:
        runners = contestants(proxy.address if proxy else address, stack, java=counted or not proxy)
        if proxy and counted:
            return {"counts": count(runners, proxy)}
        timed, result = warm_up(runners, route), defaultdict(list)
        for _ in range(ROUNDS):
            result[route].append(measure(runners, route, timed, slower))
            if not proxy:
                result[PROCESSOR].append(processor_times(runners, slower))
        return result


def run_route_apart(route: str, address: str, *more: str) -> dict[str, Any]:
    """Measure one route in a new process, because the locks keep one connection in each process."""
    command = [sys.executable, __file__, "--route", route, "--address", address, *more]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def table(seen: dict[str, list[dict[str, float]]], counts: dict[str, tuple[int, int]]) -> str:
    """Return the medians and counts of all candidates as text."""
    lines = [f"{'acquire + release':38}{'loopback':>13}{'2 ms each way':>16}{'round trips':>14}{'requests':>10}"]
    for name, label in LABELS.items():
        cells = ""
        for route in ROUTES:
            values = [medians[name] for medians in seen[route] if name in medians]
            cells += f"{statistics.median(values):10.2f} ms" if values else f"{'':13}"
        lines.append(f"{label:38}{cells:29}{counts[name][0]:14}{counts[name][1]:10}")
    return "\n".join(lines)


def main() -> int:
    """Run the benchmark."""
    parser = pairs.parser(__doc__, seconds=45)
    parser.add_argument("--no-fsync", dest="fsync", action="store_false", help="servers that do not sync to disk")
    parser.add_argument("--route", choices=list(ROUTES), help=pairs.HIDDEN)  # with --address: one part of a run
    parser.add_argument("--address", help=pairs.HIDDEN)
    parser.add_argument("--count", action="store_true", help=pairs.HIDDEN)
    options = parser.parse_args()
    if options.route:
        json.dump(run_route(options.route, options.address, options.slower, counted=options.count), sys.stdout)
        return 0

    figures = {
        (ours, other, route): pairs.Figure(f"{LABELS[ours]} / {LABELS[other]}, {route}", budget)
        for ours, other, route, budget in BUDGETS
    }
    seen: dict[str, list[dict[str, float]]] = defaultdict(list)
    with Ensemble(nodes=3, fsync=options.fsync, **pairs.ENSEMBLE) as ensemble:
        address = ensemble.followers[0].address
        counts = run_route_apart("2 ms", address, "--count")["counts"]
        for _ in pairs.rounds([*figures.values()], options.seconds):
            times: dict[str, list[dict[str, float]]] = {}
            for route in ROUTES:
                times |= run_route_apart(route, address, "--slower", str(options.slower))
            for route, medians in times.items():
                seen[route] += medians
            for (ours, other, route), figure in figures.items():
                figure.values += [medians[ours] / medians[other] for medians in times[route]]
    sys.stdout.write(f"{table(seen, counts)}\n\n")
    trips = pairs.Figure(f"{LABELS['ours']}: round trips", ROUND_TRIPS, exact=True, values=[counts["ours"][0]])
    return pairs.finish([*figures.values(), trips], check=options.check)


if __name__ == "__main__":
    sys.exit(main())
