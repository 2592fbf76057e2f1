"""Lock coordinators under faults: no two clients have a lock at a time, and no client that vanishes keeps one."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

import grpc
import pytest
from support.chaos.clocks import ClockShim
from support.chaos.lease_claims import Claim, violations
from support.chaos.report import Figures
from support.coordinators import HttpConnection, Response, stub_of
from support.proxy import Proxy
from support.relay import Relay
from support.serving import Serving
from support.zoo import Zoo

from django_zklock.contrib.leases.v1 import lock_coordinator_pb2 as pb

pytestmark = [pytest.mark.timeout(300)]

KEYS = ("orders", "stock", "mail", "prices", "reports", "users")
CLIENTS = 12
SECONDS = 60.0
HOUR = 3600.0


class Coordinator:
    """One coordinator with its networks: to ZooKeeper, and to its clients."""

    def __init__(self, number: int, serving: Serving, proxy: Proxy, grpc_link: Relay, http_link: Relay) -> None:
        self.number = number
        self.serving = serving
        self.proxy = proxy
        self.grpc_link = grpc_link
        self.http_link = http_link

    @property
    def links(self) -> tuple[Relay, Relay]:
        """The networks to its clients."""
        return self.grpc_link, self.http_link


class Kept(NamedTuple):
    """The answer of a coordinator about a lease that is held."""

    until: float
    """Its end, on `time.monotonic()`."""
    release_requested: bool


class Refused(Exception):
    """The coordinator refused a request by HTTP; the text is the status."""


class GrpcLeases:
    """The leases of one client at one coordinator, by gRPC."""

    def __init__(self, channel: grpc.aio.Channel, client_id: str) -> None:
        self._stub = stub_of(channel)
        self._client_id = client_id
        self._stream: Any = None

    async def acquire(self, key: str, term: int, *, wait: bool) -> tuple[str, int] | None:
        """Return the id of a lease and its token; None if the lock is busy."""
        wanted = pb.RecordLockRequest(
            resource_path=key, client_id=self._client_id, session_timeout_ms=term, wait_blocking=wait
        )
        lease = await self._stub.RecordLock(wanted, timeout=3)
        return (lease.lease_id, lease.fencing_token) if lease.acquired else None

    async def keep(self, lease_id: str) -> Kept | None:
        """Keep a lease; None if it is over."""
        self._stream = self._stream or self._stub.KeepAlive()
        request = pb.KeepAliveRequest(lease_id=lease_id, sent_at=time.monotonic_ns())
        await asyncio.wait_for(self._stream.write(request), 5)
        state = await asyncio.wait_for(self._stream.read(), 5)
        if state == grpc.aio.EOF or state.state != pb.LeaseState.STATE_HELD:
            return None
        return Kept(state.sent_at / 1e9 + state.lease_duration_ms / 1000, state.release_requested)

    async def release(self, lease_id: str) -> None:
        """Release a lease."""
        await self._stub.ReleaseLock(pb.ReleaseLockRequest(lease_id=lease_id), timeout=5)


class HttpLeases:
    """The leases of one client at one coordinator, by HTTP, on one connection."""

    def __init__(self, connection: HttpConnection, client_id: str) -> None:
        self._connection = connection
        self._client_id = client_id

    async def acquire(self, key: str, term: int, *, wait: bool) -> tuple[str, int] | None:
        """Return the id of a lease and its token; None if the lock is busy."""
        wanted = {
            "resource_path": key,
            "client_id": self._client_id,
            "session_timeout_ms": term,
            "wait_limit_ms": 3000 if wait else 0,
        }
        response = await self._request("POST", "", wanted)
        if response.status == 409:
            return None
        lease = content_of(response)
        return lease["lease_id"], int(lease["fencing_token"])

    async def keep(self, lease_id: str) -> Kept | None:
        """Keep a lease; None if it is over."""
        sent = time.monotonic()
        response = await self._request("PUT", lease_id)
        if response.status == 404:
            return None
        lease = content_of(response)
        return Kept(sent + lease["lease_duration_ms"] / 1000, lease["release_requested"] is not None)

    async def release(self, lease_id: str) -> None:
        """Release a lease."""
        response = await self._request("DELETE", lease_id)
        if response.status != 404:
            content_of(response)

    async def _request(self, method: str, lease_id: str, content: object = None) -> Response:
        return await asyncio.wait_for(self._connection.request(method, f"/locks/{lease_id}", content), 5)


def content_of(response: Response) -> Any:
    """Return the content of a response. Raises `Refused`."""
    if response.status >= 400:
        raise Refused(str(response.status))
    return response.content


Leases = GrpcLeases | HttpLeases


@contextlib.asynccontextmanager
async def by_grpc(coordinator: Coordinator, client_id: str) -> AsyncIterator[Leases]:
    """Connect to a coordinator by gRPC."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{coordinator.grpc_link.port}") as channel:
        yield GrpcLeases(channel, client_id)


@contextlib.asynccontextmanager
async def by_http(coordinator: Coordinator, client_id: str) -> AsyncIterator[Leases]:
    """Connect to a coordinator by HTTP."""
    async with HttpConnection(coordinator.http_link.port) as connection:
        yield HttpLeases(connection, client_id)


class LeaseClient:
    """A program that takes leases from any coordinator, keeps them for a while, and releases them, or vanishes."""

    def __init__(
        self,
        name: str,
        connect: Callable[[Coordinator, str], AbstractAsyncContextManager[Leases]],
        coordinators: list[Coordinator],
        claims: list[Claim],
        done: Counter[str],
        seed: int,
    ) -> None:
        self._name = name
        self._connect = connect
        self._coordinators = coordinators
        self._claims = claims
        self._done = done
        self._chance = random.Random(f"{seed}-{name}")

    async def run(self, until: float) -> None:
        while time.monotonic() < until:
            coordinator = self._chance.choice(self._coordinators)
            try:
                async with self._connect(coordinator, self._name) as leases:
                    await self._acquire(leases, coordinator.number)
                continue
            except grpc.aio.AioRpcError as error:
                self._done[f"error {error.code().name}"] += 1
            except Refused as error:
                self._done[f"error {error}"] += 1
            except (asyncio.TimeoutError, OSError, EOFError, asyncio.InvalidStateError) as error:
                self._done[f"error {type(error).__name__}"] += 1
            await asyncio.sleep(0.1)

    async def _acquire(self, leases: Leases, coordinator: int) -> None:
        key, term = self._chance.choice(KEYS), self._chance.choice([500, 1000, 3000])
        lease = await leases.acquire(key, term, wait=self._chance.random() < 0.8)
        if lease is None:
            self._done["busy"] += 1
            return
        lease_id, token = lease
        claim: Claim | None = None
        stop = time.monotonic() + self._chance.choice([0.1, 0.5, 3.0])
        while True:
            kept = await leases.keep(lease_id)
            now = time.monotonic()
            if kept is None or (claim and now >= claim.until):
                self._done["lost"] += 1
                return
            if claim is None:
                claim = Claim(key, self._name, coordinator, token, now, now)
                self._claims.append(claim)
            claim.until = max(claim.until, kept.until)
            if now > stop or kept.release_requested:
                break
            await asyncio.sleep((claim.until - now) * self._chance.choice([0.2, 0.3, 0.9]))
        if self._chance.random() < 0.15:
            self._done["vanished"] += 1
            return
        claim.until = min(claim.until, time.monotonic())
        await leases.release(lease_id)
        self._done["released"] += 1


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
        for link in coordinator.links:
            link.reset()
        yield

    @contextlib.asynccontextmanager
    async def _freeze(self, coordinator: Coordinator) -> AsyncIterator[None]:
        for link in coordinator.links:
            link.freeze()
        yield
        for link in coordinator.links:
            link.heal()


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
    """
    Killed, stopped and replaced coordinators; cuts on both sides; clients that vanish; a clock an hour off.

    Half of the clients speak gRPC, and half HTTP.
    """
    seed = pytestconfig.getoption("--soak-seed") or random.randrange(10**6)
    claims: list[Claim] = []
    done: Counter[str] = Counter()
    with ClockShim() as clocks:
        async with running_coordinators(arena, clocks) as coordinators:
            until = time.monotonic() + SECONDS
            clients = [
                LeaseClient(f"{name}-{number}", connect, coordinators, claims, done, seed)
                for name, connect in (("grpc", by_grpc), ("http", by_http))
                for number in range(CLIENTS // 2)
            ]
            await asyncio.gather(
                Nemesis(coordinators, done, seed).run(until), *(client.run(until) for client in clients)
            )
            for coordinator in coordinators:
                for link in coordinator.links:
                    link.heal()
                assert await asyncio.to_thread(coordinator.serving.drain) == 0
    figure("leases", len(claims))
    print(f"seed {seed}: {len(claims)} leases; {dict(sorted(done.items()))}")
    assert violations(claims) == [], f"--soak-seed={seed}"
    per_coordinator = Counter((claim.key, claim.coordinator) for claim in claims)
    assert len(per_coordinator) > len(KEYS) * 2, per_coordinator
    per_protocol = Counter(claim.client.partition("-")[0] for claim in claims)
    assert min(per_protocol["grpc"], per_protocol["http"]) > 2 * SECONDS / 10, per_protocol
