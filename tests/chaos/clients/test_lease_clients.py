"""The clients of the lock coordinator in all languages, while a coordinator is frozen or flooded."""

import asyncio
import contextlib
import socket
import time

import pytest
from support import lease_clients
from support.balancer import Balancer
from support.faults import within
from support.lease_clients import Holder
from support.serving import Serving
from support.zoo import eventually

from django_zklock.core.clock import now
from zklock_client import AsyncZkLockClient, LockLost

pytestmark = [pytest.mark.timeout(600)]  # the first test of a language compiles its client

TERM = 4.0
REPLY_TIMEOUT = 5.0
"""Seconds for which the clients wait for an answer, by default."""
BURST = 2500


@pytest.fixture(params=["python", "node", "go", "java"])
def language(request):
    lease_clients.holder(request.param)
    return str(request.param)


def test_the_block_ends_before_its_lease_does(arena, language):
    """And so does the program, although the coordinator that it has the lock from does not answer."""
    with Serving(arena, session_timeout=10) as coordinator, Holder(language, coordinator.address, term=TERM) as holder:
        holder.token()
        with coordinator.paused():
            frozen = now()
            line = holder.line()
            assert now() < frozen + TERM
            assert "was not kept in time" in line
            assert holder.process.wait(10) == 0


def test_a_release_does_not_wait_for_a_frozen_coordinator(arena, language):
    with Serving(arena, session_timeout=10) as coordinator, Holder(language, coordinator.address, term=TERM) as holder:
        holder.token()
        with coordinator.paused():
            frozen = now()
            holder.say("")
            assert holder.line() == "released"
            assert now() < frozen + TERM


def test_a_frozen_coordinator_is_left_for_another(arena, language):
    with (
        Serving(arena, session_timeout=10) as frozen,
        Serving(arena, session_timeout=10) as other,
        frozen.paused(),
        Holder(language, f"{frozen.address},{other.address}", wait=300) as holder,
    ):
        with within(60):
            holder.token()
        holder.release()


def test_a_silent_coordinator_is_left_for_another(arena, language):
    """Its port accepts connections, and nothing else. It costs a part of the wait only."""
    with (
        Serving(arena, session_timeout=10) as other,
        socket.create_server(("127.0.0.1", 0)) as silent,
        Holder(language, f"127.0.0.1:{silent.getsockname()[1]},{other.address}", wait=20) as holder,
    ):
        with within(REPLY_TIMEOUT + 4):
            holder.token()
        holder.release()


def test_a_program_that_was_paused_for_longer_than_its_lease_has_lost_it(arena, language):
    """Also if its work ends in the moment in which it goes on."""
    keys = ("a", "b", "c", "d")
    with Serving(arena, session_timeout=10) as coordinator, contextlib.ExitStack() as stack:
        holders = [stack.enter_context(Holder(language, coordinator.address, key=key)) for key in keys]
        for holder in holders:
            holder.token()
        with contextlib.ExitStack() as pauses:
            for holder in holders:
                pauses.enter_context(holder.paused())
                holder.say("")
            for key in keys:
                arena.wait_contenders(key, 0)
        lines = [holder.line().partition(": ")[0] for holder in holders]
    assert lines == ["LockLost"] * len(keys)


def test_a_wait_without_limit_survives_upgrades(arena, language):
    """One of the coordinators can be asked at each moment, and failures that are long past do not count."""
    with (
        Serving(arena, session_timeout=10) as first,
        Serving(arena, session_timeout=10) as second,
        contextlib.ExitStack() as stack,
    ):
        with arena.hold_elsewhere("a"):
            holder = stack.enter_context(Holder(language, f"{first.address},{second.address}", wait=None))
            for upgraded in (first, second, first):
                arena.wait_contenders("a", 2)
                time.sleep(REPLY_TIMEOUT)  # what is tried
                assert upgraded.drain() == 0
                upgraded.start()
            arena.wait_contenders("a", 2)
        holder.token()
        holder.release()


@pytest.mark.parametrize("waits", [True, False], ids=["in the queue", "for its lease"])
def test_an_interrupted_thread_in_java_leaves_no_lease(arena, waits):
    with contextlib.ExitStack() as stack:
        coordinator = stack.enter_context(Serving(arena, session_timeout=20))
        balancer = stack.enter_context(Balancer(coordinator.address, silent=True))
        if waits:
            stack.enter_context(arena.hold_elsewhere("a"))
        holder = stack.enter_context(Holder("java", balancer.address, term=8))
        arena.wait_contenders("a", 2 if waits else 1)
        eventually(lambda: waits or balancer.calls["KeepAlive"])
        holder.say("interrupt")
        assert holder.line() == "interrupted"
        arena.wait_contenders("a", 1 if waits else 0, timeout=2)  # a lease that is not released lasts for 4 s


async def test_a_burst_of_calls_is_served(arena):
    """None of them fails, although gRPC cancels some of so many at random."""
    with Serving(arena, session_timeout=20) as coordinator:
        async with AsyncZkLockClient(coordinator.address) as client:

            async def read():
                with contextlib.suppress(LockLost):  # a busy machine may not keep so many leases
                    async with client.lock("a", kind="read", term=60, wait=60):
                        pass
                return True

            assert all(await asyncio.gather(*(read() for _ in range(BURST))))
