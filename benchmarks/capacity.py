"""
Compute what a number of application servers and keys needs of ZooKeeper, from the measurements of `scale.py`.

One row for each share of application servers that hold a lock, and each session timeout. `--simulate` adds how long
acquisitions and heartbeats take: a simulation of one leader, compared with what was measured at a small size.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from leader import Leader, Simulation

from django_zklock.zk.session import BEAT_SHARE

VOTERS = 3
SPARE = 1  # server of each ensemble that may be down
REMOVALS = 10_000 / 60  # empty directories that a leader removes per second, by default
REMOVAL_CHECK = 60.0  # seconds between its looks for them, by default
OUTSTANDING = 512  # writes that `scale.py` has under way when it measures the most per second


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The measurements that count. The defaults come from two cores, which three servers and their clients shared."""

    heartbeats: float = 18_400.0  # the most writes per second, of this kind alone
    lock_writes: float = 25_500.0  # likewise creates and deletes
    alone: float = 0.00094  # seconds that one write takes when there are few
    idle_key: float = 520.0  # bytes of a server's heap, while the empty directory is there
    held_key: float = 1240.0
    session: float = 1340.0

    @classmethod
    def read(cls, file: Path) -> Measured:
        """Read what `scale.py` has written; what it did not measure has the default."""
        results = json.loads(file.read_text())
        found: dict[str, float] = {}
        if writes := results.get("writes"):
            found["heartbeats"] = writes["heartbeats of one znode"]["per second"]
            found["lock_writes"] = writes["creates and deletes"]["per second"]
            found["alone"] = writes["heartbeats at 2% of the most"]["p50 ms"] / 1000
        if idle := results.get("idle"):
            found["idle_key"] = idle["heap bytes per key"]
        if held := results.get("held"):
            found["held_key"] = held["heap bytes per key"]
        if sessions := results.get("sessions"):
            found["session"] = sessions["heap bytes per session, of all servers"] / VOTERS
        return cls(**found)

    def leader(self) -> Leader:
        """
        Return a leader that is as fast as the measured one.

        It commits writes in batches. A batch takes a fixed time, and a time for each write in it. So one write alone
        takes both, and under full load a batch has all writes that are under way.
        """
        batch = (self.alone - 1 / self.heartbeats) / (1 - 1 / OUTSTANDING)
        return Leader(
            batch=batch,
            heartbeat=1 / self.heartbeats - batch / OUTSTANDING,
            lock_write=1 / self.lock_writes - batch / OUTSTANDING,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What the application servers do."""

    servers: int  # processes with a session
    paths: int
    share: float  # of the servers that hold a lock all the time
    grants: float  # per second
    timeout: float  # of the sessions, in seconds
    held: float  # seconds for which a lock is held

    @property
    def heartbeats(self) -> float:
        """Heartbeat writes per second."""
        return self.servers * self.share / (self.timeout * BEAT_SHARE)

    @property
    def fresh_grants(self) -> float:
        """
        Grants per second of keys whose directory does not exist, because it was removed since the last use.

        A key that is used at random moments is idle for longer than the leader waits with this probability. But the
        leader removes no more than its pace allows.
        """
        return min(REMOVALS, self.grants * math.exp(-self.grants / self.paths * REMOVAL_CHECK))

    @property
    def lock_writes(self) -> float:
        """
        Writes of locks per second.

        A grant needs a create and a delete. A fresh one also a create that fails (the leader orders the failure like a
        write), the directory, and its removal.
        """
        return 2 * self.grants + 3 * self.fresh_grants

    @property
    def holders(self) -> float:
        """Locks that are held at the same time."""
        return max(self.servers * self.share, self.grants * self.held)

    def part(self, ensembles: int) -> Demand:
        """Return what one of several ensembles gets, if each server uses one of them."""
        return replace(
            self,
            servers=math.ceil(self.servers / ensembles),
            paths=math.ceil(self.paths / ensembles),
            grants=self.grants / ensembles,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a demand needs of ZooKeeper."""

    load: float  # of one leader that did all: 1 is as much as it can
    ensembles: int
    observers: int  # of each ensemble, besides its voters
    sessions: int  # of each server
    memory: float  # bytes of each server's heap
    bottleneck: str


def need(demand: Demand, measured: Measured, *, utilisation: float, sessions: int, heap: float) -> Need:
    """
    Compute the need.

    Args:
        demand: of all application servers.
        measured: of one ensemble.
        utilisation: of a leader, at most.
        sessions: of a server, at most.
        heap: of a server, in bytes, at most.

    """
    ensembles = 1
    while True:
        part = demand.part(ensembles)
        if load(part, measured) <= utilisation and memory(part, measured) <= heap:
            break
        ensembles += 1
    servers = max(VOTERS, math.ceil(part.servers / sessions) + SPARE)
    shares = {
        "heartbeats": demand.heartbeats / measured.heartbeats / utilisation,
        "locks": demand.lock_writes / measured.lock_writes / utilisation,
        "memory": memory(demand, measured) / heap,
    }
    return Need(
        load=load(demand, measured),
        ensembles=ensembles,
        observers=servers - VOTERS,
        sessions=math.ceil(part.servers / servers),
        memory=memory(part, measured),
        bottleneck="none" if ensembles == 1 else max(shares, key=lambda name: shares[name]),
    )


def load(demand: Demand, measured: Measured) -> float:
    """Return the load of one leader that does all: 1 is as much as it can."""
    return demand.heartbeats / measured.heartbeats + demand.lock_writes / measured.lock_writes


def memory(demand: Demand, measured: Measured) -> float:
    """Return the bytes of heap that sessions and locks need on a server. Each key may have a directory."""
    return demand.servers * measured.session + demand.paths * measured.idle_key + demand.holders * measured.held_key


# --- output -----------------------------------------------------------------------------------------------------------


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as text with columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)


def needs(demands: Sequence[Demand], measured: Measured, options: argparse.Namespace) -> Iterator[list[str]]:
    """Return the rows of the table of needs."""
    columns = "hold,timeout,heartbeats/s,lock writes/s,leader's load,ensembles,observers each,sessions/server"
    yield [*columns.split(","), "heap/server", "bottleneck"]
    for demand in demands:
        found = needed(demand, measured, options)
        yield [
            f"{demand.share:.0%}",
            f"{demand.timeout:g} s",
            f"{demand.heartbeats:,.0f}",
            f"{demand.lock_writes:,.0f}",
            f"{found.load:.0%}",
            str(found.ensembles),
            str(found.observers),
            f"{found.sessions:,}",
            f"{found.memory / 1e6:,.0f} MB",
            found.bottleneck,
        ]


def needed(demand: Demand, measured: Measured, options: argparse.Namespace) -> Need:
    """Compute the need with the limits of the command line."""
    return need(
        demand,
        measured,
        utilisation=options.utilisation,
        sessions=options.sessions_per_server,
        heap=options.heap * 1e9,
    )


def simulated(demands: Sequence[Demand], measured: Measured, options: argparse.Namespace) -> Iterator[list[str]]:
    """Return the rows of the simulations: each demand on one ensemble, and on as many as it needs."""
    columns = "hold,timeout,ensembles,leader's load,acquire p50,p99,heartbeat p50,p99,max,suspect,lease lost"
    yield columns.split(",")
    for demand in demands:
        found = needed(demand, measured, options)
        for ensembles in sorted({1, found.ensembles}):
            part = demand.part(ensembles)
            simulation = simulate(part, measured, options)
            yield [
                f"{demand.share:.0%}",
                f"{demand.timeout:g} s",
                str(ensembles),
                f"{load(part, measured):.0%}",
                *(milliseconds(simulation.acquisitions, place) for place in (0.5, 0.99)),
                *(milliseconds(simulation.heartbeats, place) for place in (0.5, 0.99, 1.0)),
                f"{simulation.suspect_share:.2%}",
                f"{simulation.lost_share:.2%}",
            ]


def simulate(demand: Demand, measured: Measured, options: argparse.Namespace) -> Simulation:
    """Run one simulation."""
    simulation = Simulation(measured.leader(), timeout=demand.timeout, held=demand.held, seed=options.seed)
    holders = round(demand.servers * demand.share)
    fresh = demand.fresh_grants / demand.grants if demand.grants else 0.0
    simulation.run(holders=holders, paths=demand.paths, grants=demand.grants, fresh=fresh, seconds=demand.timeout)
    return simulation


def compared(file: Path, measured: Measured, options: argparse.Namespace) -> Iterator[list[str]]:
    """Return the rows that compare the simulation with heartbeats that `scale.py` has measured."""
    yield ["heartbeats/s", "measured p50", "simulated p50", "measured p99", "simulated p99"]
    results: dict[str, Any] = json.loads(file.read_text())
    rows = [each for name, each in results.get("writes", {}).items() if name.startswith("heartbeats at")]
    rows += [
        {"per second": each["heartbeats per second"], **each["heartbeat"]}
        for each in results.get("sessions", {}).values()
        if isinstance(each, dict) and "heartbeat" in each
    ]
    timeout = 20.0
    for row in rows:
        servers = round(row["per second"] * timeout * BEAT_SHARE)
        demand = Demand(servers=servers, paths=1, share=1.0, grants=0.0, timeout=timeout, held=0.0)
        simulation = simulate(demand, measured, options)
        yield [
            f"{row['per second']:,.0f}",
            f"{row['p50 ms']:.1f} ms",
            milliseconds(simulation.heartbeats, 0.5),
            f"{row['p99 ms']:.1f} ms",
            milliseconds(simulation.heartbeats, 0.99),
        ]


def milliseconds(seconds: Sequence[float], place: float) -> str:
    """Return a percentile as text."""
    if not seconds:
        return "-"
    value = 1000 * sorted(seconds)[min(len(seconds) - 1, int(place * len(seconds)))]
    return f"{value:.1f} ms" if value < 100 else f"{value:,.0f} ms"


def main(arguments: Sequence[str] | None = None) -> int:
    """Compute."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", type=Path, metavar="FILE", help="bench-scale.json (default: a run on two cores)")
    parser.add_argument("--servers", type=int, default=100_000, help="application processes, each with a session")
    parser.add_argument("--paths", type=int, default=1_000_000, help="keys")
    parser.add_argument("--share", type=float, nargs="+", default=[0.01, 0.1, 0.5, 1.0], help="that hold a lock")
    parser.add_argument("--timeout", type=float, nargs="+", default=[20.0, 60.0], help="of sessions, in seconds")
    parser.add_argument("--grants", type=float, default=1000.0, help="per second, of all locks")
    parser.add_argument("--held", type=float, default=0.1, help="seconds for which a lock is held")
    parser.add_argument("--utilisation", type=float, default=0.5, help="of a leader at most")
    parser.add_argument("--sessions-per-server", type=int, default=10_000)
    parser.add_argument("--heap", type=float, default=8.0, help="of a server, in GB")
    parser.add_argument("--simulate", action="store_true", help="simulate a session timeout")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    measured = Measured.read(options.measured) if options.measured else Measured()
    demands = [
        Demand(
            servers=options.servers,
            paths=options.paths,
            share=share,
            grants=options.grants,
            timeout=timeout,
            held=options.held,
        )
        for timeout, share in itertools.product(options.timeout, options.share)
    ]
    write = sys.stdout.write
    write(f"Computed: {options.servers:,} servers, {options.paths:,} paths, {options.grants:,g} grants/s\n")
    write(table(list(needs(demands, measured, options))) + "\n")
    if options.simulate:
        leader = measured.leader()
        write(f"\nSimulated: one session timeout, from an empty queue, seed {options.seed}. A batch of writes takes ")
        write(f"{leader.batch * 1e3:.2f} ms, each heartbeat in it {leader.heartbeat * 1e6:.0f} us, each other write ")
        write(f"{leader.lock_write * 1e6:.0f} us.\n")
        write(table(list(simulated(demands, measured, options))) + "\n")
        if options.measured:
            write("\nThe simulation and the measurement, heartbeats only\n")
            write(table(list(compared(options.measured, measured, options))) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
