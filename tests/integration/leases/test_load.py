"""Many requests at once: each is answered, none costs a thread, and nothing waits for a slow socket."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.coordinators import KEY, HttpConnection, stub_of
from support.serving import Serving
from support.zoo import Zoo

from django_zklock import zk_lock
from django_zklock.contrib.leases.access import hash_of
from django_zklock.contrib.leases.v1 import lock_coordinator_pb2 as pb

pytestmark = pytest.mark.zookeeper

WANTED = {"resource_path": KEY, "client_id": "curl"}
TOKEN = {"authorization": "Bearer secret"}


@pytest.mark.chaos
async def test_calls_that_come_all_at_once_are_all_answered(zoo: Zoo) -> None:
    """They come so after a restart of a coordinator. gRPC cancels calls at random beyond a limit of its own."""
    with Serving(zoo, session_timeout=10) as serving:
        async with zk_lock(KEY), grpc.aio.insecure_channel(serving.address) as channel:
            request = pb.RecordLockRequest(resource_path=KEY, client_id="x", wait_blocking=True, wait_limit_ms=5000)
            record_lock = stub_of(channel).RecordLock
            answers = Counter(await asyncio.gather(*(_answer(record_lock(request)) for _ in range(3000))))
        assert answers == {"not acquired": 3000}
        assert await asyncio.to_thread(serving.drain) == 0


async def _answer(call: Any) -> str:
    try:
        return "acquired" if (await call).acquired else "not acquired"
    except grpc.aio.AioRpcError as error:
        return str(dict(error.trailing_metadata()).get("zklock-code", error.code()))


async def test_a_request_by_http_that_waits_costs_no_thread(zoo: Zoo) -> None:
    client = {"TOKENS": [hash_of("secret")], "MAX_WAITING": 100}
    with Serving(zoo, session_timeout=10, http=True, leases={"CLIENTS": {"crowd": client}}) as serving:
        async with zk_lock(KEY), AsyncExitStack() as stack:
            connections = [await stack.enter_async_context(HttpConnection(serving.http_port)) for _ in range(101)]
            first = connections.pop()
            assert (await first.request("POST", "/locks/", WANTED, **TOKEN)).status == 409
            before = _threads(serving)
            # The last one may get the lock before its end is seen. Then its lease runs out, which the drain waits for.
            waiting = {**WANTED, "wait_limit_ms": 25_000, "session_timeout_ms": 1000}
            for connection in connections:
                connection.send("POST", "/locks/", waiting, **TOKEN)
            while (await first.request("POST", "/locks/", WANTED, **TOKEN)).status != 429:
                pass  # not all of them wait
            assert _threads(serving) <= before + 5
        assert await asyncio.to_thread(serving.drain) == 0


def _threads(serving: Serving) -> int:
    status = Path(f"/proc/{serving.process.pid}/status").read_text()
    return int(status.partition("Threads:")[2].split()[0])
