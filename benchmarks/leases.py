"""
Measure the lock coordinator: what a lease costs compared with a lock, and how many leases one process keeps alive.

Three real ZooKeeper servers sync every write to disk; the coordinator and the direct client use the same follower. In
each round a lock is acquired directly, and a lease through gRPC on loopback, in turns. Then so many leases are taken,
and each is kept every quarter of its duration, for a while; none may be lost.

`--check` fails if a figure is over its budget.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

BUDGET = 1.5  # acquisition through gRPC, to a direct one
SESSION = 40.0  # seconds: leases of up to 16 s


async def compare(stub: Any, rounds: int) -> dict[str, float]:
    """Return the medians of an acquisition in milliseconds: direct, and through the coordinator."""
    from django_zklock import zk_lock  # noqa: PLC0415 - not before Django is set up
    from django_zklock.contrib.leases.v1 import lock_coordinator_pb2 as pb  # noqa: PLC0415

    direct, leased = [], []
    for number in range(rounds):
        began = time.perf_counter()
        async with zk_lock(f"direct/{number % 50}"):
            direct.append(time.perf_counter() - began)
        request = pb.RecordLockRequest(
            resource_path=f"leased/{number % 50}", client_id="bench", wait_blocking=True
        )  # as the other one, which would wait
        began = time.perf_counter()
        lease = await stub.RecordLock(request)
        leased.append(time.perf_counter() - began)
        await stub.ReleaseLock(pb.ReleaseLockRequest(lease_id=lease.lease_id))
    return {"direct ms": statistics.median(direct) * 1000, "leased ms": statistics.median(leased) * 1000}


async def keep_many(stub: Any, count: int, seconds: float) -> tuple[list[str], int, int]:  # noqa: PLR0915
    """Take leases and keep them for some seconds; return their ids, how often they were kept, and the losses."""
    from django_zklock.contrib.leases.v1 import lock_coordinator_pb2 as pb  # noqa: PLC0415

    ids: list[str] = []
    together = asyncio.Semaphore(100)
    stream = stub.KeepAlive()
    ends: dict[str, float] = {}
    lost: set[str] = set()
    kept = 0

    async def acquire(number: int) -> None:
        async with together:
            request = pb.RecordLockRequest(
                resource_path=f"many/{number}",
                client_id="bench",
                session_timeout_ms=300_000,
                wait_blocking=True,
            )
            lease = await stub.RecordLock(request)
            ends[lease.lease_id] = time.monotonic() + lease.lease_duration_ms / 1000
            ids.append(lease.lease_id)

    async def read() -> None:
        nonlocal kept
        async for state in stream:
            kept += 1
            now = time.monotonic()
            if state.state != pb.LeaseState.STATE_HELD or now > ends[state.lease_id]:
                lost.add(state.lease_id)
            ends[state.lease_id] = state.sent_at / 1e9 + state.lease_duration_ms / 1000

    async def keep(until: float) -> None:
        while time.monotonic() < until:
            began = time.monotonic()
            for lease_id in ids:
                await stream.write(pb.KeepAliveRequest(lease_id=lease_id, sent_at=time.monotonic_ns()))
            await asyncio.sleep(max(0.0, began + 3 - time.monotonic()))

    reader = asyncio.ensure_future(read())
    acquiring = asyncio.gather(*(acquire(number) for number in range(count)))
    keeper = asyncio.ensure_future(keep(float("inf")))
    await acquiring
    kept = 0
    await asyncio.sleep(seconds)
    keeper.cancel()
    reader.cancel()
    return ids, kept, len(lost)


async def measure(address: str, process: Any, options: argparse.Namespace) -> dict[str, float]:
    """Return all figures."""
    import grpc  # noqa: PLC0415
    import psutil  # noqa: PLC0415

    from django_zklock.contrib.leases.v1 import lock_coordinator_pb2_grpc as pb_grpc  # noqa: PLC0415

    coordinator = psutil.Process(process.pid)
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = pb_grpc.LockCoordinatorStub(channel)  # type: ignore[no-untyped-call]
        await compare(stub, 20)
        figures = await compare(stub, options.rounds)
        figures["ratio"] = figures["leased ms"] / figures["direct ms"]
        before, began, cpu = coordinator.memory_info().rss, time.monotonic(), sum(coordinator.cpu_times()[:2])
        ids, kept, lost = await keep_many(stub, options.leases, options.seconds)
        elapsed = time.monotonic() - began
        figures["leases"] = float(len(ids))
        figures["lost"] = float(lost)
        figures["kept a second"] = kept / options.seconds
        figures["KB a lease"] = (coordinator.memory_info().rss - before) / 1024 / max(1, len(ids))
        figures["CPU share"] = (sum(coordinator.cpu_times()[:2]) - cpu) / elapsed
        figures["threads"] = float(coordinator.num_threads())
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300, help="acquisitions of each kind (default: %(default)s)")
    parser.add_argument("--leases", type=int, default=10_000, help="to keep alive (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=30.0, help="to keep them (default: %(default)s)")
    parser.add_argument("--json", type=Path, default=Path("bench-leases.json"), metavar="FILE")
    parser.add_argument("--check", action="store_true", help="fail if something is over its budget")
    options = parser.parse_args(arguments)

    from support.ensemble import Ensemble  # noqa: PLC0415
    from support.serving import Serving  # noqa: PLC0415
    from support.zoo import Zoo  # noqa: PLC0415

    with Ensemble(nodes=3, tick=2.0, fsync=True, container_check=60.0, max_session_timeout=60) as ensemble:
        zoo = Zoo(ensemble.hosts, ensemble)
        follower = ensemble.followers[0].address
        os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
        os.environ["ZKLOCK_URL"] = zoo.url(follower, SESSION)
        import django  # noqa: PLC0415

        django.setup()
        with Serving(zoo, hosts=follower, session_timeout=SESSION) as serving:
            figures = asyncio.run(measure(serving.address, serving.process, options))
    about = {"python": platform.python_version(), "cpus": os.cpu_count(), "load": os.getloadavg()}
    options.json.write_text(json.dumps({"about": about, **figures}, indent=2) + "\n")
    for name, value in figures.items():
        sys.stdout.write(f"{name:20}{value:12,.2f}\n")
    ok = figures["ratio"] <= BUDGET and not figures["lost"]
    sys.stdout.write(f"acquisition through gRPC / direct, at most {BUDGET}: {'ok' if ok else 'OVER BUDGET'}\n")
    return 1 if options.check and not ok else 0


if __name__ == "__main__":
    sys.exit(main())
