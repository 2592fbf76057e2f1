"""Lock coordinators under faults: no two clients have a lock at a time, and no client that vanishes keeps one."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import grpc
import pytest
from support.chaos.clocks import ClockShim
from support.chaos.lease_claims import Claim, violations
from support.chaos.report import Figures
from support.proxy import Proxy
from support.relay import Relay
from support.serving import Serving
from support.zoo import Zoo

from django_zklock.contrib.leases.v1 import lock_coordinator_pb2 as pb
from django_zklock.contrib.leases.v1 import lock_coordinator_pb2_grpc as pb_grpc

pytestmark = [pytest.mark.timeout(300)]

KEYS = ("orders", "stock", "mail", "prices", "reports", "users")
CLIENTS = 12
SECONDS = 60.0
HOUR = 3600.0


class Coordinator:
    """One coordinator with its networks: to ZooKeeper, and to its clients."""

    def __init__(self, number: int, serving: Serving, proxy: Proxy, link: Relay, web_link: Relay) -> None:
        self.number = number
        self.serving = serving
        self.proxy = proxy
        self.link = link
        self.web_link = web_link  # HTTP
        self.faulty = False


class LeaseClient:
    """A program that takes leases from any coordinator, keeps them for a while, and releases them, or vanishes."""

    def __init__(
        self, name: str, coordinators: list[Coordinator], claims: list[Claim], done: Counter[str], seed: int
    ) -> None:
        self._name = name
        self._coordinators = coordinators
        self._claims = claims
        self._done = done
        self._chance = random.Random(f"{seed}-{name}")

    async def run(self, until: float) -> None:
        while time.monotonic() < until:
            coordinator = self._chance.choice(self._coordinators)
            async with grpc.aio.insecure_channel(f"127.0.0.1:{coordinator.link.port}") as channel:
                try:
                    await self._acquire(pb_grpc.LockCoordinatorStub(channel), coordinator)  # type: ignore[no-untyped-call]
                except (grpc.aio.AioRpcError, asyncio.TimeoutError, asyncio.InvalidStateError) as error:
                    self._done[f"error {error.code().name if isinstance(error, grpc.aio.AioRpcError) else ''}"] += 1
                    await asyncio.sleep(0.1)

    async def _acquire(self, stub: Any, coordinator: Coordinator) -> None:
        key, term = self._chance.choice(KEYS), self._chance.choice([500, 1000, 3000])
        wanted = pb.RecordLockRequest(
            resource_path=key,
            client_id=self._name,
            session_timeout_ms=term,
            wait_blocking=self._chance.random() < 0.8,
        )
        lease = await stub.RecordLock(wanted, timeout=3)
        if not lease.acquired:
            self._done["busy"] += 1
            return
        stream = stub.KeepAlive()
        claim: Claim | None = None
        stop = time.monotonic() + self._chance.choice([0.1, 0.5, 3.0])
        while True:
            request = pb.KeepAliveRequest(lease_id=lease.lease_id, sent_at=time.monotonic_ns())
            await asyncio.wait_for(stream.write(request), 5)
            state = await asyncio.wait_for(stream.read(), 5)
            now = time.monotonic()
            if state == grpc.aio.EOF or state.state != pb.LeaseState.STATE_HELD or (claim and now >= claim.until):
                self._done["lost"] += 1
                return
            if claim is None:
                claim = Claim(key, self._name, coordinator.number, lease.fencing_token, now, now)
                self._claims.append(claim)
            claim.until = max(claim.until, state.sent_at / 1e9 + state.lease_duration_ms / 1000)
            if now > stop or state.release_requested:
                break
            await asyncio.sleep((claim.until - now) * self._chance.choice([0.2, 0.3, 0.9]))
        if self._chance.random() < 0.15:
            self._done["vanished"] += 1
            stream.cancel()
            return
        claim.until = min(claim.until, time.monotonic())
        await stub.ReleaseLock(pb.ReleaseLockRequest(lease_id=lease.lease_id), timeout=5)
        self._done["released"] += 1


class WebClient(LeaseClient):
    """A client like the others; it speaks HTTP, in a thread."""

    async def run(self, until: float) -> None:
        while time.monotonic() < until:
            try:
                await asyncio.to_thread(self._hold_one, self._chance.choice(self._coordinators))
            except (OSError, http.client.HTTPException) as error:
                self._done[f"error {type(error).__name__}"] += 1
                await asyncio.sleep(0.1)

    def _hold_one(self, coordinator: Coordinator) -> None:
        key, term = self._chance.choice(KEYS), self._chance.choice([500, 1000, 3000])
        connection = http.client.HTTPConnection("127.0.0.1", coordinator.web_link.port, timeout=5)

        def request(method: str, lease_id: str = "", **fields: object) -> tuple[int, Any]:
            body = json.dumps(fields) if fields else None
            connection.request(method, f"/locks/{lease_id}", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read()
            return response.status, json.loads(text) if text else None

        with contextlib.closing(connection):
            wanted: dict[str, Any] = {"resource_path": key, "client_id": self._name, "session_timeout_ms": term}
            status, lease = request("POST", **wanted, wait_limit_ms=3000)
            if status != 201:
                self._done[f"HTTP {status}"] += 1
                return
            claim: Claim | None = None
            stop = time.monotonic() + self._chance.choice([0.1, 0.5, 3.0])
            while claim is None or time.monotonic() < stop:
                sent = time.monotonic()
                status, state = request("PUT", lease["lease_id"])
                now = time.monotonic()
                if status != 200 or (claim and now >= claim.until):
                    self._done["lost by HTTP"] += 1
                    return
                if claim is None:
                    claim = Claim(key, self._name, coordinator.number, int(lease["fencing_token"]), now, now)
                    self._claims.append(claim)
                claim.until = max(claim.until, sent + state["lease_duration_ms"] / 1000)
                if state["release_requested"]:
                    break
                time.sleep(max(0.0, claim.until - now) * self._chance.choice([0.2, 0.3, 0.9]))
            claim.until = min(claim.until, time.monotonic())
            request("DELETE", lease["lease_id"])
            self._done["released by HTTP"] += 1


class Nemesis:
    """The faults."""

    def __init__(self, coordinators: list[Coordinator], done: Counter[str], seed: int) -> None:
        self._coordinators = coordinators
        self._done = done
        self._chance = random.Random(seed)
        self._deck: list[str] = []
        self._faults: dict[str, Callable[[Coordinator], AbstractAsyncContextManager[None]]] = {
            "kill a coordinator": self._kill,
            "stop a coordinator": self._pause,
            "replace a coordinator": self._replace,
            "cut it from ZooKeeper": self._cut,
            "no answers from ZooKeeper": self._hang,
            "cut its clients": self._reset,
            "no answers to its clients": self._freeze,
        }

    async def run(self, until: float) -> None:
        while time.monotonic() < until:
            self._deck = self._deck or self._chance.sample(sorted(self._faults), len(self._faults))
            name, coordinator = self._deck.pop(), self._chance.choice(self._coordinators)
            self._done[name] += 1
            async with self._faults[name](coordinator):
                await asyncio.sleep(self._chance.uniform(0.3, 6.0))
            await asyncio.sleep(self._chance.uniform(0.2, 1.5))

    @contextlib.asynccontextmanager
    async def _kill(self, coordinator: Coordinator) -> AsyncIterator[None]:
        coordinator.serving.kill()
        yield
        await asyncio.to_thread(coordinator.serving.start)

    @contextlib.asynccontextmanager
    async def _pause(self, coordinator: Coordinator) -> AsyncIterator[None]:
        with coordinator.serving.paused():
            yield

    @contextlib.asynccontextmanager
    async def _replace(self, coordinator: Coordinator) -> AsyncIterator[None]:
        assert await asyncio.to_thread(coordinator.serving.drain) == 0
        await asyncio.to_thread(coordinator.serving.start)
        yield

    @contextlib.asynccontextmanager
    async def _cut(self, coordinator: Coordinator) -> AsyncIterator[None]:
        coordinator.proxy.cut_all()
        yield

    @contextlib.asynccontextmanager
    async def _hang(self, coordinator: Coordinator) -> AsyncIterator[None]:
        coordinator.proxy.hang = True
        yield
        coordinator.proxy.hang = False

    @contextlib.asynccontextmanager
    async def _reset(self, coordinator: Coordinator) -> AsyncIterator[None]:
        coordinator.link.reset()
        coordinator.web_link.reset()
        yield

    @contextlib.asynccontextmanager
    async def _freeze(self, coordinator: Coordinator) -> AsyncIterator[None]:
        coordinator.link.freeze()
        coordinator.web_link.freeze()
        yield
        coordinator.link.heal()
        coordinator.web_link.heal()


@contextlib.asynccontextmanager
async def running_coordinators(zoo: Zoo, clocks: ClockShim) -> AsyncIterator[list[Coordinator]]:
    """Three coordinators; the wall clock of the last one is an hour fast."""
    async with contextlib.AsyncExitStack() as stack:
        coordinators = []
        for number in range(3):
            proxy = stack.enter_context(Proxy(zoo.address))
            env = clocks.env if number == 2 else {}
            serving = stack.enter_context(Serving(zoo, hosts=proxy.address, env=env, http=True))
            links = [stack.enter_context(Relay(port)) for port in (serving.port, serving.http_port)]
            coordinators.append(Coordinator(number, serving, proxy, *links))
        clocks.jump(realtime=HOUR)
        yield coordinators


async def test_leases_exclude_each_other_under_faults(arena: Zoo, pytestconfig: pytest.Config, figure: Figures) -> None:
    """Killed, stopped and replaced coordinators; cuts on both sides; clients that vanish; a clock an hour off."""
    seed = pytestconfig.getoption("--soak-seed") or random.randrange(10**6)
    claims: list[Claim] = []
    done: Counter[str] = Counter()
    with ClockShim() as clocks:
        async with running_coordinators(arena, clocks) as coordinators:
            until = time.monotonic() + SECONDS
            clients = [
                (WebClient if number % 3 == 0 else LeaseClient)(f"client-{number}", coordinators, claims, done, seed)
                for number in range(CLIENTS)
            ]
            await asyncio.gather(
                Nemesis(coordinators, done, seed).run(until), *(client.run(until) for client in clients)
            )
            for coordinator in coordinators:
                coordinator.link.heal()
                coordinator.web_link.heal()
                assert await asyncio.to_thread(coordinator.serving.drain) == 0
    figure("leases", len(claims))
    print(f"seed {seed}: {len(claims)} leases; {dict(sorted(done.items()))}")
    assert violations(claims) == [], f"--soak-seed={seed}"
    per_coordinator = Counter((claim.key, claim.coordinator) for claim in claims)
    assert len(per_coordinator) > len(KEYS) * 2, per_coordinator
    assert len(claims) > 5 * SECONDS / 10
    assert done["released by HTTP"]
