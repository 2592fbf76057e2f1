"""Lock coordinators under faults: no two clients have a lock at a time, and no client that vanishes keeps one."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.chaos.checker import check_history
from support.chaos.history import Recorder, read
from support.coordinators import HttpConnection
from support.proxy import Proxy
from support.relay import Relay
from support.serving import Serving
from support.zoo import Zoo

from zklock_client import AsyncZkLockClient, ZkLockError

pytestmark = [pytest.mark.timeout(300)]

KEYS = ("orders", "stock", "mail", "prices", "reports", "users")
CLIENTS = 6  # of each protocol
SECONDS = 60.0
COORDINATORS = 3


class Coordinator(NamedTuple):
    serving: Serving
    proxy: Proxy
    grpc: Relay
    http: Relay


class Refused(Exception): ...


class LeaseClient:
    def __init__(self, name: str, coordinators: list[Coordinator], home: Path, chance: random.Random) -> None:
        self._lease = self._by_http if name.startswith("http") else self._by_grpc
        self._name = name
        self._coordinators = coordinators
        self._chance = chance
        self._recorder = Recorder(home, name)
        self._ops = itertools.count(1)
        self._about: dict[str, Any] = {}
        self.errors: Counter[str] = Counter()

    async def run(self, until: float) -> None:
        while time.monotonic() < until:
            key, term = self._chance.choice(KEYS), self._chance.choice([0.5, 1.0, 3.0])
            self._about = {"op": next(self._ops), "key": key}
            self._note("invoke", timeout=None)
            try:
                await self._lease(self._chance.choice(self._coordinators), key, term)
            except (Refused, ZkLockError, asyncio.TimeoutError, OSError, EOFError, asyncio.InvalidStateError) as error:
                self.errors[type(error).__name__] += 1
                await asyncio.sleep(0.1)
        self._recorder.close()

    def _note(self, kind: str, **about: Any) -> None:
        self._recorder.write(kind, **self._about, **about)

    async def _by_grpc(self, coordinator: Coordinator, key: str, term: float) -> None:
        wait = self._chance.choice([0, 3, 3, 3])
        address = f"127.0.0.1:{coordinator.grpc.port}"
        async with AsyncZkLockClient(address) as client, client.lock(key, term=term, wait=wait) as lease:
            before = time.monotonic()
            self._note("granted", token=lease.token, until=before + lease.remaining)
            stop = before + self._chance.choice([0.1, 0.5, 3.0])
            while before < stop and not lease.lost:
                await asyncio.sleep(0.02)
                before = time.monotonic()
                if lease.valid:
                    self._note("valid", t=before, until=before + lease.remaining)
            self._note("lost" if lease.lost else "release")

    async def _by_http(self, coordinator: Coordinator, key: str, term: float) -> None:
        async with HttpConnection(coordinator.http.port) as connection:

            async def request(method: str, lease_id: str = "", content: object = None) -> Any:
                response = await asyncio.wait_for(connection.request(method, f"/locks/{lease_id}", content), 5)
                if response.status >= 400:
                    raise Refused(response.status)
                return response.content

            wanted = {"resource_path": key, "client_id": self._name, "session_timeout_ms": round(term * 1000)}
            lease = await request("POST", content={**wanted, "wait_limit_ms": self._chance.choice([0, 3000, 3000])})
            stop, until = time.monotonic() + self._chance.choice([0.1, 0.5, 3.0]), 0.0
            while True:
                sent = time.monotonic()
                kept = await request("PUT", lease["lease_id"])
                is_first, is_over = not until, 0 < until <= time.monotonic()
                if is_over:
                    return
                until = max(until, sent + kept["lease_duration_ms"] / 1000)
                self._note("granted" if is_first else "valid", token=int(lease["fencing_token"]), until=until)
                if time.monotonic() > stop or kept["release_requested"] is not None:
                    break
                await asyncio.sleep((until - time.monotonic()) * self._chance.choice([0.2, 0.3, 0.9]))
            if self._chance.random() > 0.15:  # else it vanishes
                self._note("release")
                await request("DELETE", lease["lease_id"])


class Nemesis:
    def __init__(self, coordinators: list[Coordinator], chance: random.Random) -> None:
        self.done: Counter[str] = Counter()
        self._coordinators = coordinators
        self._chance = chance

    async def run(self, until: float) -> None:
        faults = [self.kill, self.pause, self.replace, self.cut, self.hang, self.reset, self.freeze]
        while time.monotonic() < until:
            for fault in self._chance.sample(faults, len(faults)):
                self.done[fault.__name__] += 1
                async with contextlib.asynccontextmanager(fault)(self._chance.choice(self._coordinators)):
                    await asyncio.sleep(self._chance.uniform(0.3, 6.0))
                await asyncio.sleep(self._chance.uniform(0.2, 1.5))

    async def kill(self, coordinator: Coordinator) -> AsyncIterator[None]:
        coordinator.serving.kill()
        yield
        await asyncio.to_thread(coordinator.serving.start)

    async def pause(self, coordinator: Coordinator) -> AsyncIterator[None]:
        with coordinator.serving.paused():
            yield

    async def replace(self, coordinator: Coordinator) -> AsyncIterator[None]:
        assert await asyncio.to_thread(coordinator.serving.drain) == 0
        await asyncio.to_thread(coordinator.serving.start)
        yield

    async def cut(self, coordinator: Coordinator) -> AsyncIterator[None]:
        coordinator.proxy.cut_all()
        yield

    async def hang(self, coordinator: Coordinator) -> AsyncIterator[None]:
        coordinator.proxy.hang = True
        yield
        coordinator.proxy.hang = False

    async def reset(self, coordinator: Coordinator) -> AsyncIterator[None]:
        coordinator.grpc.reset()
        coordinator.http.reset()
        yield

    async def freeze(self, coordinator: Coordinator) -> AsyncIterator[None]:
        links = (coordinator.grpc, coordinator.http)
        for link in links:
            link.freeze()
        yield
        for link in links:
            link.heal()


async def test_leases_exclude_each_other_under_faults(arena: Zoo, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    seed = pytestconfig.getoption("--soak-seed")
    with contextlib.ExitStack() as stack:
        coordinators = []
        for _ in range(COORDINATORS):
            proxy = stack.enter_context(Proxy(arena.address))
            serving = stack.enter_context(Serving(arena, hosts=proxy.address, http=True))
            links = [stack.enter_context(Relay(port)) for port in (serving.port, serving.http_port)]
            coordinators.append(Coordinator(serving, proxy, *links))
        names = [f"{protocol}-{number}" for protocol in ("grpc", "http") for number in range(CLIENTS)]
        clients = [LeaseClient(name, coordinators, tmp_path, random.Random(f"{seed}-{name}")) for name in names]
        nemesis = Nemesis(coordinators, random.Random(seed))
        until = time.monotonic() + SECONDS
        await asyncio.gather(nemesis.run(until), *(client.run(until) for client in clients))
        for coordinator in coordinators:
            assert await asyncio.to_thread(coordinator.serving.drain) == 0
    verdict = check_history(read(tmp_path.glob("*.jsonl")))
    assert verdict.ok, f"--soak-seed={seed}: {verdict.short()}"
    per_client = Counter(hold.process for holds in verdict.run.holds.values() for hold in holds)
    print(nemesis.done, per_client, sum((client.errors for client in clients), Counter()))
    assert min(per_client[name] for name in names) > 2, "hardly a lease was granted"
