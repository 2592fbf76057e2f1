"""
How long an uncontended acquire and release take on the dev server and on ZooKeeper; how many clients it can serve.

All servers run at once and take turns, so that what the machine does meanwhile hits all. The dev server runs in this
process, as under pytest, and in one of its own; the real one with and without a sync to disk for each write.
After that a thousand clients connect to the dev server, and two hundred threads wait for one lock on it.

`--check` fails if the dev server is slower than the real one without syncs, or something goes wrong in the crowd.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import django
from django.conf import settings  # noqa: TID251 - a program of its own, not a part of the package
from django.test import override_settings
from support.ensemble import Ensemble
from support.jute import EPHEMERAL, create
from support.wire import Wire

from django_zklock import zk_lock
from django_zklock.core.protocol.local_queue import MAX_WAITING
from django_zklock.testing.server import DevServer

OWN, APART, REAL, SYNCED = "dev server", "dev server, own process", "ZooKeeper, no fsync", "ZooKeeper"
BATCH = 100  # acquisitions in a row on one server
CLIENTS, WAITERS = 1000, 200
FIRST = 0.1  # seconds from the start of a dev server to the first lock


@contextmanager
def apart() -> Iterator[str]:
    """Run a dev server in a new process; yield its hosts."""
    script = (
        "from django_zklock.testing.server import DevServer; s = DevServer(); s.start(); print(s.hosts, flush=True)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", f"{script}; input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parent.parent,
    )
    assert process.stdout is not None
    yield process.stdout.readline().strip()
    process.communicate("\n")


def first_lock() -> float:
    """Return the seconds from the start of a new dev server to a lock on it."""
    began = time.perf_counter()
    with DevServer() as server, override_settings(ZKLOCK={"URL": server.url()}), zk_lock("first"):
        return time.perf_counter() - began


def round_trips(hosts: dict[str, str], rounds: int) -> dict[str, list[float]]:
    """Time acquire and release on each server, in milliseconds."""
    times: dict[str, list[float]] = {name: [] for name in hosts}
    for _ in range(rounds):
        for name, address in hosts.items():
            with override_settings(ZKLOCK={"URL": f"zk://{address}/bench"}):
                lock = zk_lock("one")
                for warm in range(BATCH + 10):
                    began = time.perf_counter()
                    lock.acquire()
                    lock.release()
                    if warm >= 10:
                        times[name].append((time.perf_counter() - began) * 1000)
    return times


def crowd(server: DevServer) -> str:
    """Connect a thousand clients and let two hundred threads wait for one lock; return the results."""
    wires = []
    began = time.perf_counter()
    for number in range(CLIENTS):
        wire = Wire(server.port)
        assert wire.connect(), "refused"
        assert wire.ask(create(f"/client-{number}", b"", EPHEMERAL)) == 0
        wires.append(wire)
    connected = time.perf_counter() - began
    served: list[int] = []

    def wait(number: int) -> None:
        with zk_lock("crowd", timeout=60):
            served.append(number)

    with override_settings(ZKLOCK={"URL": server.url("bench")}):
        threads = [threading.Thread(target=wait, args=(number,)) for number in range(WAITERS)]
        with zk_lock("crowd"):
            for thread in threads:
                thread.start()
            while sum("/crowd/" in path for path in server.paths()) < MAX_WAITING + 1:  # the others wait behind these
                time.sleep(0.01)
            began = time.perf_counter()
        for thread in threads:
            thread.join()
        passed = time.perf_counter() - began
    for wire in wires:
        wire.fence()
    alive = sum(session.connected for session in server.sessions())
    for wire in wires:
        wire.end()
    assert len(served) == WAITERS, f"{len(served)} of {WAITERS} were served"
    assert alive >= CLIENTS, f"{alive} of {CLIENTS} sessions live"
    return (
        f"{CLIENTS} clients connected in {connected:.2f} s, {WAITERS} waiters served in {passed:.2f} s, no errors, "
        f"{len(server.sessions())} sessions left"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help=f"rounds of {BATCH} on each server (default: 5)")
    parser.add_argument("--check", action="store_true", help="fail if the dev server is the slower one")
    options = parser.parse_args(arguments)
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)

    settings.configure(INSTALLED_APPS=["django_zklock"], ZKLOCK={"URL": "zk://127.0.0.1:1"})
    django.setup()
    first = statistics.median(first_lock() for _ in range(5))
    with ExitStack() as stack:
        dev = stack.enter_context(DevServer(tick=2.0, container_check=60.0))
        hosts = {OWN: dev.hosts, APART: stack.enter_context(apart())}
        for name, fsync in ((REAL, False), (SYNCED, True)):
            ensemble = Ensemble(tick=2.0, container_check=60.0, fsync=fsync)
            hosts[name] = stack.enter_context(ensemble).hosts
        medians = {name: statistics.median(times) for name, times in round_trips(hosts, options.rounds).items()}
        report = crowd(dev)
    sys.stdout.write(f"{'start to first lock, dev server':40}{first * 1000:9.1f} ms\n")
    for name, median in medians.items():
        sys.stdout.write(f"{'acquire + release, ' + name:45}{median:6.2f} ms\n")
    sys.stdout.write(f"{report}\n")
    good = first < FIRST and max(medians[OWN], medians[APART]) < medians[REAL]
    return 1 if options.check and not good else 0


if __name__ == "__main__":
    sys.exit(main())
