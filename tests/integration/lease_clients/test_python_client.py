"""The clients of the lock coordinator for Python."""

import asyncio
import math
import os
import signal
import subprocess
import sys
import threading

import pytest
from support.faults import BackgroundCall
from support.relay import Relay
from support.zoo import ROOM, TESTS, eventually

from zklock_client import (
    AsyncZkLockClient,
    ClientUnusable,
    CoordinatorUnavailable,
    Lease,
    LeaseRefused,
    LockLost,
    LockNotHeld,
    ZkLockClient,
)


@pytest.fixture
def zoo(coordinator):
    return coordinator.zoo


@pytest.fixture
def address(coordinator):
    return coordinator.address


@pytest.fixture
def client(address):
    with ZkLockClient(address) as client:
        yield client


def test_the_client_needs_nothing_of_django_zklock():
    code = "import sys, zklock_client; print({'django', 'django_zklock', 'kazoo'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], cwd=TESTS.parent, capture_output=True, text=True, check=False)
    assert done.stdout == "set()\n", done.stderr


def test_the_lock_is_held_in_the_block(zoo, client):
    with client.lock("invoices/2026-11", term=5) as lease:
        lease.check()
        assert zoo.client.get(lease.path)[1].czxid == lease.token
        assert (lease.valid, lease.lost, lease.signed_token) == (True, False, "")
        assert 0 < lease.remaining <= 5
        payload = zoo.payloads("invoices/2026-11")[0]
        assert str(os.getpid()) in payload.what
    assert (lease.valid, lease.lost) == (False, False)
    with pytest.raises(LockNotHeld):
        lease.check()


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        ({"timeout": 5}, TypeError, r"Known .*: .*wait"),  # as `zk_lock` calls the time to wait
        ({"kind": "mutex"}, ValueError, r"Known .*: .*semaphore"),
        ({"wait": math.nan}, ValueError, r"is nan\. Give a number"),  # such a wait had no end
        ({"term": math.nan}, ValueError, r"is nan\. Give a number"),
        ({"term": math.inf}, ValueError, r"is inf\. Give a number"),
        *(({"term": term}, LeaseRefused, "not from 100") for term in (0, 0.0001, -1)),  # 0 is not the default, 30 s
    ],
)
def test_a_wrong_option_of_a_lock_is_refused(client, wrong, error, said):
    with pytest.raises(error, match=said), client.lock("a", **wrong):
        pass


@pytest.mark.parametrize("wait", [math.inf, threading.TIMEOUT_MAX, 1e12])
def test_a_wait_that_is_too_long_for_grpc_has_no_limit(client, wait):
    with client.lock("a", wait=wait):
        pass
    with (
        ZkLockClient("127.0.0.1:1", reply_timeout=0.2) as nowhere,
        pytest.raises(CoordinatorUnavailable),
        nowhere.lock("a", wait=wait),
    ):
        pass


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        ({"tokens": ["secret"]}, TypeError, r"Known .*: .*token"),
        ({"reply_timeout": math.inf}, ValueError, "reply_timeout is inf"),
        ({"token": "secret\n"}, ValueError, "line break"),  # as a file that has it ends
        ({"token": "schlüssel"}, ValueError, "line break"),
    ],
)
def test_a_wrong_option_of_a_client_is_refused(wrong, error, said):
    with pytest.raises(error, match=said):
        ZkLockClient("127.0.0.1:1", **wrong)


def test_threads_of_one_client_exclude_each_other(client):
    inside, tokens = threading.Lock(), list[int]()

    def work():
        for _ in range(3):
            with client.lock("a") as lease:
                assert inside.acquire(blocking=False)
                tokens.append(lease.token)
                inside.release()

    for call in [BackgroundCall(work) for _ in range(6)]:
        call.result()
    assert len(tokens) == 18
    assert tokens == sorted(set(tokens))


async def test_a_cancelled_coroutine_leaves_the_queue(zoo, address):
    async with AsyncZkLockClient(address) as client:

        async def hold():
            async with client.lock("a") as lease:
                return lease.token

        with zoo.hold_elsewhere("a"):
            first = asyncio.create_task(hold())
            await asyncio.to_thread(zoo.wait_contenders, "a", 2)
            second = asyncio.create_task(hold())
            await asyncio.to_thread(zoo.wait_contenders, "a", 3)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            await asyncio.to_thread(zoo.wait_contenders, "a", 2)
        assert await second > 0


def test_an_interrupted_thread_leaves_the_queue(zoo, client):
    class Interrupted(BaseException):
        pass

    def interrupt(*args):
        raise Interrupted

    former = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with zoo.hold_elsewhere("a"):

            def strike():
                zoo.wait_contenders("a", 2)
                os.kill(os.getpid(), signal.SIGUSR1)

            striking = BackgroundCall(strike)
            with pytest.raises(Interrupted), client.lock("a"):
                pass
            striking.result()
            zoo.wait_contenders("a", 1)
    finally:
        signal.signal(signal.SIGUSR1, former)


def test_the_client_calls_back_once_at_a_loss(zoo, client, caplog):
    lost_leases = list[Lease]()

    def on_lost(lease):
        lost_leases.append(lease)
        raise KeyError(lease.resource)

    with client.lock("b", term=4) as other, pytest.raises(LockLost, match="'a' was lost"):
        with client.lock("a", term=5, on_lost=on_lost) as lease:
            zoo.client.delete(lease.path)
            eventually(lambda: lost_leases and "on_lost of the lock 'a' has failed" in caplog.text)
            assert (lease.lost, lease.valid, lease.remaining) == (True, False, 0.0)
        left = other.remaining
        eventually(lambda: other.remaining > left)  # it is kept again
        other.check()
    assert lost_leases == [lease]


def test_close_releases_what_is_held_and_ends_what_waits(zoo, address):
    lost_leases, entered, closed = list[Lease](), threading.Event(), threading.Event()
    client = ZkLockClient(address)

    def hold():
        with client.lock("a", term=60, on_lost=lost_leases.append):
            entered.set()
            closed.wait(20)

    def wait():
        with client.lock("a"):
            pass

    holding = BackgroundCall(hold)
    assert entered.wait(20)  # its znode is there before the answer is: a lease whose answer crosses a cancel runs out
    waiting = BackgroundCall(wait)
    zoo.wait_contenders("a", 2)
    client.close()
    zoo.assert_empty()
    closed.set()
    with pytest.raises(LockLost, match="the client was closed"):
        holding.result()
    with pytest.raises(ClientUnusable):
        waiting.result()
    with pytest.raises(ClientUnusable):
        wait()
    assert len(lost_leases) == 1
    client.close()


def test_a_client_that_nobody_closes_ends_with_its_process(zoo, address):
    script = f"""
import threading
from zklock_client import ZkLockClient
client, held = ZkLockClient("{address}"), threading.Event()
def hold():
    with client.lock("a", term=60):
        held.set()
        threading.Event().wait()
threading.Thread(target=hold, daemon=True).start()
held.wait(10)
"""
    assert zoo.output(script) == []
    zoo.assert_empty()


def test_no_coordinator_at_all_is_an_error():
    with (
        ZkLockClient(["127.0.0.1:1", "127.0.0.1:2"], reply_timeout=0.5) as client,
        pytest.raises(CoordinatorUnavailable, match=r"coordinator 127\.0\.0\.1:[12]"),
        client.lock("a"),
    ):
        pass


async def test_a_lease_ends_by_the_clients_clock(zoo, address):
    """Nothing comes through, not even that the connection is broken."""
    lost = asyncio.Event()
    with Relay(port_of(address)) as link:
        async with AsyncZkLockClient(f"127.0.0.1:{link.port}", reply_timeout=1) as client:
            with pytest.raises(LockLost):
                async with client.lock("a", term=1, on_lost=lambda lease: lost.set()):
                    link.freeze()
                    await asyncio.wait_for(lost.wait(), 1 + ROOM)
            link.heal()
    await asyncio.to_thread(zoo.assert_empty)


async def test_a_closed_client_acquires_nothing(address):
    async with AsyncZkLockClient(address) as client:
        assert await _may_lock_async(client)
    with pytest.raises(ClientUnusable, match="closed"):
        await _may_lock_async(client)


async def _may_lock_async(client):
    async with client.lock("a") as lease:
        return lease.valid


async def test_a_loss_soon_after_the_grant_is_told_with_its_reason(zoo, address):
    lost = asyncio.Event()
    async with AsyncZkLockClient(address) as client:
        with pytest.raises(LockLost, match="its znode was deleted"):
            async with client.lock("a", term=30, on_lost=lambda lease: lost.set()) as lease:
                zoo.client.delete(lease.path)
                await asyncio.wait_for(lost.wait(), ROOM)  # a third of the lease is more


def port_of(address):
    return int(address.rpartition(":")[2])


async def kept(lease):
    before = lease._until
    await asyncio.to_thread(eventually, lambda: lease._until > before)
