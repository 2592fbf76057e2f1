"""
Measure the lock coordinator: what a lease costs, and what the coordinator does when many come at once.

Three real ZooKeeper servers sync every write to disk; the coordinator and the direct client use the same follower.

* In turns, a lock is acquired directly and by gRPC on loopback.
* One client acquires and releases, in turns alone and while another one floods the coordinator.
* Many leases (`--leases`) are kept every three seconds, for a while; none may be lost.
* As many calls come at once for one key. Each must get in, or be refused with a code.

`--check` fails unless all figures are within their budgets; `pairs.py` says how they are judged. With `--slower`, what
goes by the coordinator is slower.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import random
import signal
import statistics
import sys
import time
from collections import Counter, defaultdict
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import grpc

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import pairs
import psutil

SESSION = 40.0  # seconds: leases of up to 16 s
#: What goes by the coordinator, the other, and the ratio of their medians at most.
BUDGETS = [("gRPC", "direct", 1.9)]
FLOOD = 64  # calls at a time
CLIENTS: dict[str, dict[str, object]] = {"bench": {"MAX_RATE": 100_000}, "crowd": {}, "flood": {}}
BATCH = 40  # of each kind, in a round
FLOODED = 50  # acquisitions in a turn with the flood, and in one without
KEPT = 10.0  # seconds that the leases are kept


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
        """Acquire a lease, and block the event loop meanwhile."""
        return self.blocking_stub.RecordLock(self._request(resource), metadata=self.metadata)

    def _request(self, resource: str, **more: Any) -> Any:
        return self.pb.RecordLockRequest(resource_path=resource, client_id="bench", wait_blocking=True, **more)

    async def release(self, lease_id: str) -> None:
        """Release a lease."""
        await self.stub.ReleaseLock(self.pb.ReleaseLockRequest(lease_id=lease_id), metadata=self.metadata)

    def keep_alive(self) -> Any:
        """Return a stream that keeps leases."""
        return self.stub.KeepAlive(metadata=self.metadata)


class Compared:
    """Acquire directly and by gRPC; each method returns the seconds of what it did."""

    def __init__(self, grpc_client: GrpcClient, slower: float) -> None:
        self._grpc, self._slower = grpc_client, slower
        self._stream = grpc_client.keep_alive()

    async def direct(self, key: int) -> dict[str, float]:
        """Acquire a lock, without the coordinator."""
        from django_zklock import zk_lock  # noqa: PLC0415 - not before Django is set up

        began = time.perf_counter()
        async with zk_lock(f"direct/{key}"):
            took = time.perf_counter() - began
        return {"direct": took}

    async def grpc(self, key: int) -> dict[str, float]:
        """Acquire a lease, and keep it once."""
        leases: list[Any] = []
        took = pairs.slowed(lambda: leases.append(self._grpc.acquire_blocking(f"grpc/{key}")), self._slower)
        lease_id = leases[0].lease_id
        began = time.perf_counter()
        await self._stream.write(self._grpc.pb.KeepAliveRequest(lease_id=lease_id))
        await self._stream.read()
        kept = time.perf_counter() - began
        await self._grpc.release(lease_id)
        await self._stream.read()  # that it is over
        return {"gRPC": took, "gRPC keep": kept}

    async def round(self) -> dict[str, float]:
        """Return the median times of a round, in milliseconds."""
        times: dict[str, list[float]] = defaultdict(list)
        for key in range(BATCH):
            for acquire in random.SystemRandom().sample([self.direct, self.grpc], 2):
                for name, seconds in (await acquire(key)).items():
                    times[name].append(seconds)
        return {name: statistics.median(values) * 1000 for name, values in times.items()}


async def compare(address: str, options: Any) -> list[pairs.Figure]:
    """Compare an acquisition, direct and by the coordinator."""
    client = GrpcClient(address, "bench")
    compared = Compared(client, options.slower)
    shown = [pairs.Figure(name) for name in await compared.round()]  # which warms up, too
    ratios = [pairs.Figure(f"{ours} / {other}", budget) for ours, other, budget in BUDGETS]
    for _ in pairs.rounds(ratios, options.seconds):
        medians = await compared.round()
        for figure in shown:
            figure.values.append(medians[figure.what])
        for ratio, (ours, other, _) in zip(ratios, BUDGETS, strict=True):
            ratio.values.append(medians[ours] / medians[other])
    await client.channel.close()
    return [*shown, *ratios]


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


async def with_a_flood(address: str, options: Any) -> list[pairs.Figure]:
    """Compare a client that acquires and releases next to a flood with the same one alone, in turns."""
    client, context = GrpcClient(address, "bench"), multiprocessing.get_context("spawn")
    started = context.Event()
    process = context.Process(target=flood, args=(address, started), daemon=True)
    process.start()
    await asyncio.to_thread(started.wait)
    ratio = pairs.Figure("acquire and release next to a flood / alone", 2.8)

    async def measure_round() -> None:
        medians = {}
        for state in random.SystemRandom().sample([signal.SIGSTOP, signal.SIGCONT], 2):
            os.kill(process.pid or 0, state)
            await asyncio.sleep(0.5)  # until its last calls are answered, or it is at full speed
            times = []
            for number in range(FLOODED):
                began = time.perf_counter()
                await client.release((await client.acquire(f"quiet/{number}")).lease_id)
                times.append(time.perf_counter() - began)
            medians[state] = statistics.median(times)
        ratio.values.append(medians[signal.SIGCONT] / medians[signal.SIGSTOP])

    for _ in pairs.rounds([ratio], options.seconds):
        await measure_round()
    process.kill()
    await client.channel.close()
    return [ratio]


async def keep_many(address: str, process: psutil.Process, leases: int) -> list[pairs.Figure]:  # noqa: PLR0915
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
    await asyncio.gather(*(acquire(number) for number in range(leases)))
    acquired_after, kept = time.monotonic() - began, 0
    await asyncio.sleep(KEPT)
    keeper.cancel()
    reader.cancel()
    await asyncio.wait((keeper, reader))
    for reason, times in Counter(lost.values()).most_common(3):
        sys.stdout.write(f"{times} leases were lost: {reason}\n")
    grown = process.memory_info().rss - before
    cpu = sum(process.cpu_times()[:2]) - cpu
    return [
        exact("leases lost", len(lost), 0),
        exact("kB a lease", grown / 1000 / len(ids), 14),
        exact("leases acquired a second", leases / acquired_after),
        exact("leases kept a second", kept / KEPT),
        exact("share of a core", cpu / (time.monotonic() - began)),
        exact("threads", process.num_threads()),
    ]


async def burst(address: str, calls: int) -> list[pairs.Figure]:
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
    return [
        exact("burst: refused without a code", answers["refused without a code"], 0),
        exact("burst: refused", answers["refused"], 0),
        exact("burst: handed on a second", answers["granted"] / elapsed),
    ]


def exact(what: str, value: float, budget: float | None = None) -> pairs.Figure:
    """Return a figure that is measured once."""
    return pairs.Figure(what, budget, exact=True, values=[value])


async def measure(serving: Any, options: Any) -> list[pairs.Figure]:
    """Return all figures."""
    address = serving.address
    return [
        *await compare(address, options),
        *await with_a_flood(address, options),
        *await keep_many(address, psutil.Process(serving.process.pid), options.leases),
        *await burst(address, options.leases),
    ]


def main() -> int:
    """Run the benchmark."""
    parser = pairs.parser(__doc__, seconds=20)
    parser.add_argument("--leases", type=int, default=2000, help="leases, and calls (default: %(default)s)")
    options = parser.parse_args()

    from support.ensemble import Ensemble  # noqa: PLC0415
    from support.serving import Serving  # noqa: PLC0415
    from support.zoo import Zoo  # noqa: PLC0415

    with Ensemble(nodes=3, fsync=True, **pairs.ENSEMBLE) as ensemble:
        zoo = Zoo(ensemble.hosts, ensemble)
        follower = ensemble.followers[0].address
        os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
        os.environ["ZKLOCK_URL"] = zoo.url(follower, SESSION)
        import django  # noqa: PLC0415

        django.setup()
        from django_zklock.contrib.leases.access import hash_of  # noqa: PLC0415

        clients = {name: {"TOKENS": [hash_of(name)], **more} for name, more in CLIENTS.items()}
        with Serving(zoo, hosts=follower, session_timeout=SESSION, leases={"CLIENTS": clients}) as serving:
            figures = asyncio.run(measure(serving, options))
    return pairs.finish(figures, check=options.check)


if __name__ == "__main__":
    sys.exit(main())
