"""
Measure an uncontended acquire and release against kazoo's Lock, Apache Curator's mutex, and a plain create and delete.

There are three real ZooKeeper servers, which sync every write to disk. All candidates use the same follower. They run
in one process and alternate in random order, so that the load of the machine affects all of them alike. Curator's runs
in a Java process that takes its turn like the others and tells its own time. There are two runs: directly over
loopback, and through a proxy that adds 2 ms each way, like a network. The proxy also counts the requests and the round
trips. These numbers do not depend on the machine.

`--check` fails if a ratio of medians or a count is over its budget.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from kazoo.client import KazooClient
from support.ensemble import Ensemble, four_letter
from support.neighbours.curator import curator
from support.proxy import UPKEEP, Proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Candidate = Callable[[int], float | None]  # returns the seconds it took, if it runs in another process

ROUTES = {"loopback": 0.0, "proxy": 0.002}  # seconds added each way; 0 is no proxy at all
BATCH = 3  # turns in a row of one contestant
WARM_UP = 20
JVM_WARM_UP = 500
COUNTED = 15  # acquisitions that are counted; the most frequent result counts, as a heartbeat may slip into one

PROCESSOR = "processor time"  # of all threads of the process, on loopback

#: Ours, the other, the route (or the processor time), and the ratio of their medians at most.
BUDGETS = [
    ("ours", "kazoo fresh", "loopback", 0.80),
    ("ours", "kazoo fresh", "proxy", 0.55),
    ("ours", "kazoo reused", "proxy", 0.70),
    ("ours", "curator", "loopback", 1.10),
    ("ours", "bare", "loopback", 1.20),
    ("ours", "bare", "proxy", 1.20),
    ("ours fresh", "kazoo fresh", PROCESSOR, 0.70),
]
ROUND_TRIPS = 2  # of one acquire and release

LABELS = {
    "ours": "zk_lock",
    "ours fresh": "zk_lock, a new object each time",
    "ours, 11 locks": "zk_locks, 11 locks",
    "ours, new key": "zk_lock, a new key each time",
    "kazoo fresh": "kazoo Lock, a new object each time",
    "kazoo fresh, new key": "kazoo Lock, a new key each time",
    "kazoo reused": "kazoo Lock, one object",
    "curator": "Curator InterProcessMutex, one object",
    "bare": "kazoo create + delete, no lock",
}


def contestants(address: str, stack: ExitStack, *, ours: bool) -> dict[str, Candidate]:
    """Return the candidates by name. Each is called with a number, from which it can make a new key."""
    client = KazooClient(address, timeout=20)
    client.start(timeout=20)
    stack.callback(client.close)
    stack.callback(client.stop)
    client.ensure_path("/bench/bare")
    kazoo_lock = client.Lock("/bench/reused")
    java = stack.enter_context(curator(address, session_timeout=20))

    def fresh(path: str) -> None:
        lock = client.Lock(path)
        lock.acquire()
        lock.release()

    def reused(_: int) -> None:
        kazoo_lock.acquire()
        kazoo_lock.release()

    def mutex(_: int) -> float:
        return int(java.ask("bench", "time", "mutex", "/bench/curator")) / 1e9

    def bare(_: int) -> None:
        client.delete(client.create("/bench/bare/n-", b"", ephemeral=True, sequence=True))

    for turn in range(JVM_WARM_UP):
        mutex(turn)
    candidates: dict[str, Candidate] = {
        "kazoo fresh": lambda _: fresh("/bench/fresh"),
        "kazoo fresh, new key": lambda turn: fresh(f"/bench/new/{turn}"),
        "kazoo reused": reused,
        "curator": mutex,
        "bare": bare,
    }
    return {**our_contestants(address), **candidates} if ours else candidates


def our_contestants(address: str) -> dict[str, Candidate]:
    """Set up Django with only this package, and return our candidates."""
    import django  # noqa: PLC0415 - neither needed nor set up to measure kazoo alone
    from django.conf import settings  # noqa: PLC0415, TID251 - a program of its own, not a part of the package

    settings.configure(INSTALLED_APPS=["django_zklock"], ZKLOCK={"URL": f"zk://{address}/bench"})
    django.setup()
    from django_zklock import zk_lock, zk_locks  # noqa: PLC0415 - not before Django is set up

    first = zk_lock("bench/one")
    eleven = zk_locks(*(f"bench/several-{number}" for number in range(11)))

    def same_key(_: int) -> None:
        first.acquire()
        first.release()

    def fresh(_: int) -> None:
        lock = zk_lock("bench/one")
        lock.acquire()
        lock.release()

    def new_key(turn: int) -> None:
        lock = zk_lock(f"bench/new-{turn}")
        lock.acquire()
        lock.release()

    def several(_: int) -> None:
        eleven.acquire()
        eleven.release()

    return {"ours": same_key, "ours, 11 locks": several, "ours fresh": fresh, "ours, new key": new_key}


def measure(runners: dict[str, Candidate], rounds: int) -> dict[str, dict[str, float]]:
    """Time the candidates; return milliseconds."""
    timed = [name for name in runners if "new key" not in name]
    times: dict[str, list[float]] = {name: [] for name in timed}
    shuffled = random.SystemRandom()
    for name in timed:
        for turn in range(WARM_UP):
            runners[name](turn)
    gc.collect()
    gc.disable()
    for _ in range(rounds):
        for name in shuffled.sample(timed, len(timed)):
            run, collected = runners[name], times[name]
            for turn in range(BATCH):
                started = time.perf_counter()
                took = run(turn)
                collected.append((took or time.perf_counter() - started) * 1000)
    gc.enable()
    return {
        name: {
            "median_ms": round(statistics.median(values), 4),
            "p95_ms": round(statistics.quantiles(values, n=20)[18], 4),
            "best_ms": round(min(values), 4),
            "samples": len(values),
        }
        for name, values in times.items()
    }


def processor_times(runners: dict[str, Candidate], rounds: int) -> dict[str, dict[str, float]]:
    """Return the processor time of all threads of this process for one acquire and release, in milliseconds."""
    times: dict[str, list[float]] = {name: [] for name in ("ours fresh", "kazoo fresh") if name in runners}
    for _ in range(rounds):
        for name, collected in times.items():
            began = time.process_time()
            for turn in range(BATCH):
                runners[name](turn)
            collected.append((time.process_time() - began) * 1000 / BATCH)
    return {name: {"median_ms": round(statistics.median(values), 4)} for name, values in times.items()}


def count(runners: dict[str, Candidate], proxy: Proxy) -> dict[str, dict[str, Any]]:
    """Count the round trips and requests of one acquire and release."""
    result: dict[str, dict[str, Any]] = {}
    for name, run in runners.items():
        run(-1)
        seen = []
        for turn in range(COUNTED):
            proxy.reset()
            run(turn)
            opcodes = tuple(sorted((op, times) for op, times in proxy.counts.items() if op not in UPKEEP))
            seen.append((proxy.round_trips(), proxy.requests, opcodes))
        ((trips, requests, opcodes), _), *_ = Counter(seen).most_common()
        result[name] = {
            "round_trips": trips,
            "requests": requests,
            "opcodes": {str(op): times for op, times in opcodes},
        }
    return result


def run_route(route: str, address: str, rounds: int, *, ours: bool) -> dict[str, Any]:
    """Measure one route, in this process."""
    proxy = None
    if ROUTES[route]:
        proxy = Proxy(address, delay=ROUTES[route])
        proxy.start()  # and never stopped: the locks' own connection goes through it until this process ends
    with ExitStack() as stack:
        runners = contestants(proxy.address if proxy else address, stack, ours=ours)
        return {
            "times": measure(runners, rounds),
            "counts": count(runners, proxy) if proxy else {},
            "processor": {} if proxy else processor_times(runners, rounds),
        }


def run_route_apart(route: str, address: str, rounds: int, *, ours: bool) -> dict[str, Any]:
    """Measure one route in a new process, because the locks keep one connection in each process."""
    command = [sys.executable, __file__, "--route", route, "--address", address, "--rounds", str(rounds)]
    done = subprocess.run([*command, *([] if ours else ["--no-ours"])], stdout=subprocess.PIPE, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def judge(routes: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Compare ratios and counts with their budgets."""
    verdicts = []
    for ours, other, route, budget in BUDGETS:
        times = routes["loopback"]["processor"] if route == PROCESSOR else routes[route]["times"]
        if ours in times:
            value = round(times[ours]["median_ms"] / times[other]["median_ms"], 3)
            what = f"{LABELS[ours]} / {LABELS[other]}, {route}"
            verdicts.append({"what": what, "value": value, "budget": budget, "ok": value <= budget})
    counted = routes["proxy"]["counts"].get("ours")
    if counted:
        trips = counted["round_trips"]
        what = f"{LABELS['ours']}: round trips"
        verdicts.append({"what": what, "value": trips, "budget": ROUND_TRIPS, "ok": trips == ROUND_TRIPS})
    return verdicts


def report(routes: dict[str, dict[str, Any]], verdicts: list[dict[str, Any]]) -> str:
    """Return the results as text."""
    loopback, proxied = routes["loopback"]["times"], routes["proxy"]["times"]
    counts = routes["proxy"]["counts"]

    def cells(times: dict[str, Any]) -> str:
        return f"{times['median_ms']:9.2f}{times['p95_ms']:8.2f}" if times else f"{'':17}"

    lines = [
        f"{'acquire + release, in milliseconds':38}{'loopback':>17}{'2 ms each way':>17}",
        f"{'':38}{'median':>9}{'p95':>8}{'median':>9}{'p95':>8}{'round trips':>14}{'requests':>10}",
    ]
    for name, label in LABELS.items():
        if name in counts:
            seen = counts[name]
            figures = f"{seen['round_trips']:14}{seen['requests']:10}"
            lines.append(f"{label:38}{cells(loopback.get(name, {}))}{cells(proxied.get(name, {}))}{figures}")
    lines.append("")
    for verdict in verdicts:
        state = "ok" if verdict["ok"] else "OVER BUDGET"
        lines.append(f"{verdict['what']:70}{verdict['value']:8.2f}  of {verdict['budget']:4.2f}  {state}")
    return "\n".join(lines).rstrip() + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=150, help=f"rounds of {BATCH} turns for each (default: 150)")
    parser.add_argument("--json", type=Path, default=Path("bench.json"), metavar="FILE", help="default: bench.json")
    parser.add_argument("--check", action="store_true", help="fail if something is over its budget")
    parser.add_argument("--no-ours", dest="ours", action="store_false", help="measure the others only")
    parser.add_argument("--no-fsync", dest="fsync", action="store_false", help="servers that do not sync to disk")
    parser.add_argument("--route", choices=list(ROUTES), help=argparse.SUPPRESS)  # with --address: one part of a run
    parser.add_argument("--address", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.check and not options.ours:
        parser.error("--check needs ours")

    if options.route:
        json.dump(run_route(options.route, options.address, options.rounds, ours=options.ours), sys.stdout)
        return 0

    # Empty containers are swept once a minute, as ZooKeeper does by itself: each second would take our key away.
    with Ensemble(nodes=3, tick=2.0, fsync=options.fsync, container_check=60.0, max_session_timeout=60) as ensemble:
        follower = ensemble.followers[0]
        version = four_letter("127.0.0.1", follower.port, "srvr").partition("\n")[0]
        routes = {
            route: run_route_apart(route, follower.address, options.rounds, ours=options.ours) for route in ROUTES
        }
    verdicts = judge(routes)
    about = {"python": platform.python_version(), "cpus": os.cpu_count(), "fsync": options.fsync, "server": version}
    options.json.write_text(json.dumps({"about": about, "routes": routes, "verdicts": verdicts}, indent=2) + "\n")
    sys.stdout.write(report(routes, verdicts))
    return 1 if options.check and not all(verdict["ok"] for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
