"""
Measure the lock coordinator: what a lease costs, and what the coordinator does when many come at once.

Three real ZooKeeper servers sync every write to disk; the coordinator and the direct client use the same follower.

* In turns, a lock is acquired directly, by gRPC and by HTTP on loopback, and a lease is kept by each of them.
* Thousands of calls come at once for one key. Each must get in, or be refused with a code.
* One client acquires and releases, in turns alone and while another one floods the coordinator.
* Thousands of leases are kept every three seconds, for a while; none may be lost.

`--check` fails if a figure is over its budget.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import itertools
import json
import multiprocessing
import os
import platform
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import grpc
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

SESSION = 40.0  # seconds: leases of up to 16 s
BUDGETS = {
    "gRPC to direct": 1.4,
    "HTTP to direct": 1.7,
    "HTTP keep to gRPC keep": 2.0,
    "burst: refused without a code": 0.0,
    "burst: refused": 0.0,
    "flood: median to that alone": 2.0,
    "leases lost": 0.0,
    "kB a lease": 13.0,
}
FLOOD = 64  # calls at a time
CLIENTS: dict[str, dict[str, object]] = {"bench": {"MAX_RATE": 100_000}, "crowd": {}, "flood": {}}
TURNS = 5  # with the flood, and as many without


class GrpcClient:
    """A client by gRPC, with the token that is its name."""

    def __init__(self, address: str, name: str) -> None:
        from zklock_client.v1 import lock_coordinator_pb2, lock_coordinator_pb2_grpc  # noqa: PLC0415

        self.pb: Any = lock_coordinator_pb2
        self.metadata = (("authorization", f"Bearer {name}"),)
        self.channel = grpc.aio.insecure_channel(address)
        stub: Any = lock_coordinator_pb2_grpc.LockCoordinatorStub
        self.stub = stub(self.channel)
        self.blocking_stub = stub(grpc.insecure_channel(address))

    async def acquire(self, resource: str, **more: Any) -> Any:
        """Acquire a lease."""
        return await self.stub.RecordLock(self._request(resource, **more), metadata=self.metadata)

    def acquire_blocking(self, resource: str) -> Any:
        """Acquire a lease, and block the event loop meanwhile, as `HttpClient` does."""
        return self.blocking_stub.RecordLock(self._request(resource), metadata=self.metadata)

    def _request(self, resource: str, **more: Any) -> Any:
        return self.pb.RecordLockRequest(resource_path=resource, client_id="bench", wait_blocking=True, **more)

    async def release(self, lease_id: str) -> None:
        """Release a lease."""
        await self.stub.ReleaseLock(self.pb.ReleaseLockRequest(lease_id=lease_id), metadata=self.metadata)

    def keep_alive(self) -> Any:
        """Return a stream that keeps leases."""
        return self.stub.KeepAlive(metadata=self.metadata)


class HttpClient:
    """A client by HTTP, on one connection, with the token that is its name."""

    def __init__(self, port: int, name: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port)
        self._headers = {"Authorization": f"Bearer {name}", "Content-Type": "application/json"}

    def request(self, method: str, path: str, **fields: Any) -> Any:
        """Send a request; return its answer."""
        self._connection.request(method, f"/locks/{path}", json.dumps(fields) if fields else None, self._headers)
        with self._connection.getresponse() as response:
            body = response.read()
            assert response.status < 300, body
            return json.loads(body) if body else None


async def compare(address: str, http_port: int, rounds: int) -> dict[str, float]:
    """Compare an acquisition, direct and by the coordinator, and a keep by gRPC and HTTP; medians in milliseconds."""
    from django_zklock import zk_lock  # noqa: PLC0415 - not before Django is set up

    client, web = GrpcClient(address, "bench"), HttpClient(http_port, "bench")
    stream, times = client.keep_alive(), {name: list[float]() for name in ("direct", "gRPC", "HTTP", "keep", "PUT")}

    def measured(name: str, began: float) -> None:
        times[name].append((time.perf_counter() - began) * 1000)

    for number in range(-20, rounds):
        key = number % 50
        began = time.perf_counter()
        async with zk_lock(f"direct/{key}"):
            measured("direct", began)
        began = time.perf_counter()
        lease = client.acquire_blocking(f"grpc/{key}")
        measured("gRPC", began)
        began = time.perf_counter()
        await stream.write(client.pb.KeepAliveRequest(lease_id=lease.lease_id))
        await stream.read()
        measured("keep", began)
        await client.release(lease.lease_id)
        await stream.read()  # that it is over
        began = time.perf_counter()
        granted = web.request("POST", "", resource_path=f"http/{key}", client_id="bench", wait_limit_ms=30_000)
        lease_id = granted["lease_id"]
        measured("HTTP", began)
        began = time.perf_counter()
        web.request("PUT", lease_id)
        measured("PUT", began)
        web.request("DELETE", lease_id)
    stream.cancel()
    await client.channel.close()
    median = {name: statistics.median(values[20:]) for name, values in times.items()}
    return {
        **{f"{name} ms": value for name, value in median.items()},
        "gRPC to direct": median["gRPC"] / median["direct"],
        "HTTP to direct": median["HTTP"] / median["direct"],
        "HTTP keep to gRPC keep": median["PUT"] / median["keep"],
    }


async def burst(address: str, calls: int) -> dict[str, float]:
    """Send so many calls at once for one key; each that has the lock passes it on."""
    client = GrpcClient(address, "crowd")
    answers: Counter[str] = Counter()

    async def call() -> None:
        try:
            lease = await client.acquire("burst")
        except grpc.aio.AioRpcError as error:
            has_code = any(key == "zklock-code" for key, _ in error.trailing_metadata() or ())
            answers["refused" if has_code else "refused without a code"] += 1
            return
        answers["granted"] += 1
        await client.release(lease.lease_id)

    began = time.monotonic()
    await asyncio.gather(*(call() for _ in range(calls)))
    elapsed = time.monotonic() - began
    await client.channel.close()
    return {
        "burst: refused without a code": answers["refused without a code"],
        "burst: refused": answers["refused"],
        "burst: handed on a second": answers["granted"] / elapsed,
    }


def flood(address: str, started: Event) -> None:
    """Acquire and release leases as fast as possible, until killed."""
    asyncio.run(_flood(address, started))


async def _flood(address: str, started: Event) -> None:
    client, numbers = GrpcClient(address, "flood"), itertools.count()

    async def acquire_and_release() -> None:
        while True:
            number = next(numbers)
            lease = await client.acquire(f"flood/{number % 1000}")
            await client.release(lease.lease_id)
            if number > FLOOD:
                started.set()

    await asyncio.gather(*(acquire_and_release() for _ in range(FLOOD)))


async def with_a_flood(address: str, rounds: int) -> dict[str, float]:
    """Measure a client that acquires and releases: in turns alone, and next to a flood."""
    client, context = GrpcClient(address, "bench"), multiprocessing.get_context("spawn")
    started = context.Event()
    process = context.Process(target=flood, args=(address, started), daemon=True)
    process.start()
    await asyncio.to_thread(started.wait)
    times: dict[signal.Signals, list[float]] = {signal.SIGSTOP: [], signal.SIGCONT: []}
    for state in (*times,) * TURNS:
        os.kill(process.pid or 0, state)
        await asyncio.sleep(1)  # until its last calls are answered, or it is at full speed
        for number in range(rounds // TURNS):
            began = time.perf_counter()
            await client.release((await client.acquire(f"quiet/{number % 50}")).lease_id)
            times[state].append((time.perf_counter() - began) * 1000)
    process.kill()
    await client.channel.close()
    alone, flooded = (statistics.median(values) for values in times.values())
    return {"alone ms": alone, "flood ms": flooded, "flood: median to that alone": flooded / alone}


async def keep_many(address: str, process: psutil.Process, count: int, seconds: float) -> dict[str, float]:  # noqa: PLR0915
    """Acquire leases and keep them for some seconds."""
    client = GrpcClient(address, "bench")
    ids: list[str] = []
    together = asyncio.Semaphore(100)
    stream = client.keep_alive()
    ends: dict[str, float] = {}
    lost: dict[str, str] = {}  # by lease id: why
    kept = 0
    before, began, cpu = process.memory_info().rss, time.monotonic(), sum(process.cpu_times()[:2])

    async def acquire(number: int) -> None:
        async with together:
            sent = time.monotonic()
            lease = await client.acquire(f"many/{number}", session_timeout_ms=300_000)
            ends[lease.lease_id] = sent + lease.lease_duration_ms / 1000
            ids.append(lease.lease_id)

    async def read() -> None:
        nonlocal kept
        async for state in stream:
            kept += 1
            now = time.monotonic()
            if state.state != client.pb.LeaseState.STATE_HELD:
                lost[state.lease_id] = state.detail
            elif now > ends[state.lease_id]:
                lost.setdefault(state.lease_id, "the answer came after the end of the lease")
            ends[state.lease_id] = state.sent_at / 1e9 + state.lease_duration_ms / 1000

    async def keep() -> None:
        while True:
            began = time.monotonic()
            for lease_id in ids.copy():
                await stream.write(client.pb.KeepAliveRequest(lease_id=lease_id, sent_at=time.monotonic_ns()))
            await asyncio.sleep(max(0.0, began + 3 - time.monotonic()))

    reader, keeper = asyncio.ensure_future(read()), asyncio.ensure_future(keep())
    await asyncio.gather(*(acquire(number) for number in range(count)))
    acquired_after, kept = time.monotonic() - began, 0
    await asyncio.sleep(seconds)
    keeper.cancel()
    reader.cancel()
    await asyncio.wait((keeper, reader))
    for reason, times in Counter(lost.values()).most_common(3):
        sys.stdout.write(f"{times} leases were lost: {reason}\n")
    return {
        "leases": len(ids),
        "leases lost": len(lost),
        "acquired a second": count / acquired_after,
        "kept a second": kept / seconds,
        "kB a lease": (process.memory_info().rss - before) / 1000 / max(1, len(ids)),
        "CPU share": (sum(process.cpu_times()[:2]) - cpu) / (time.monotonic() - began),
        "threads": process.num_threads(),
    }


async def measure(serving: Any, options: argparse.Namespace) -> dict[str, float]:
    """Return all figures."""
    process, address = psutil.Process(serving.process.pid), serving.address
    parts: dict[str, Callable[[], Any]] = {
        "compare": lambda: compare(address, serving.http_port, options.rounds),
        "flood": lambda: with_a_flood(address, options.rounds),
        "many": lambda: keep_many(address, process, options.leases, options.seconds),
        "burst": lambda: burst(address, options.burst),
    }
    figures: dict[str, float] = {}
    for name in options.only or parts:
        figures |= await parts[name]()
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300, help="acquisitions of each kind (default: %(default)s)")
    parser.add_argument("--burst", type=int, default=5000, help="calls at once (default: %(default)s)")
    parser.add_argument("--leases", type=int, default=10_000, help="to keep alive (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="to keep them (default: %(default)s)")
    parser.add_argument("--only", action="append", choices=("compare", "flood", "many", "burst"), help="this part")
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
        from django_zklock.contrib.leases.access import hash_of  # noqa: PLC0415

        clients = {name: {"TOKENS": [hash_of(name)], **more} for name, more in CLIENTS.items()}
        with Serving(zoo, hosts=follower, session_timeout=SESSION, leases={"CLIENTS": clients}, http=True) as serving:
            figures = asyncio.run(measure(serving, options))
    about = {"python": platform.python_version(), "cpus": os.cpu_count(), "load": os.getloadavg()}
    options.json.write_text(json.dumps({"about": about, **figures}, indent=2) + "\n")
    over = [name for name, most in BUDGETS.items() if figures.get(name, 0.0) > most]
    for name, value in figures.items():
        budget = f"   at most {BUDGETS[name]:g}: {'OVER BUDGET' if name in over else 'ok'}" if name in BUDGETS else ""
        sys.stdout.write(f"{name:32}{value:12,.2f}{budget}\n")
    return 1 if options.check and over else 0


if __name__ == "__main__":
    sys.exit(main())
