"""The coordinator gives leases that are true: none is over before the end that its client was told."""

import asyncio
import contextlib
import logging
import time

import pytest
import pytest_asyncio
from support import faults
from support.proxy import Proxy
from support.zoo import eventually

from django_zklock import inspection, zk_lock
from django_zklock.contrib.leases.access import ANYBODY
from django_zklock.contrib.leases.coordinator import Coordinator
from django_zklock.contrib.leases.lease import LeaseRequest
from django_zklock.contrib.leases.options import LeaseClient
from django_zklock.contrib.leases.refusal import Code, Refusal
from django_zklock.core import clock
from django_zklock.exceptions import LockLost

KEY = "invoices/2026"
LONG = 30_000  # milliseconds; no test waits for its end


@pytest_asyncio.fixture
async def coordinator(zoo):
    """A coordinator, whose leases all end with the test."""
    coordinator = Coordinator()
    yield coordinator
    await _end(coordinator)


async def acquire(coordinator, client=ANYBODY, **request):
    """Take a lease on `KEY`, unless something else is asked for."""
    wanted = {"resource_path": KEY, "client_id": "node-1", "session_timeout_ms": LONG, **request}
    return await asyncio.wait_for(coordinator.acquire(client, LeaseRequest(**wanted)), 60)


async def waiting(coordinator, zoo, **request):
    """Return a call that waits in the queue behind one other."""
    call = asyncio.ensure_future(acquire(coordinator, wait_limit_ms=20_000, **request))
    while not call.done() and len(await asyncio.to_thread(zoo.children, KEY)) < 2:
        await asyncio.sleep(0.02)
    return call


async def until(lease, timeout=20.0):
    await asyncio.wait_for(asyncio.shield(lease.task), timeout)


@contextlib.contextmanager
def refused(code, match="."):
    with pytest.raises(Refusal, match=match) as caught:
        yield
    assert caught.value.code is code


@pytest.mark.parametrize("term", [3000, LONG])
async def test_the_end_is_that_of_the_term_or_of_zookeepers_guarantee(coordinator, term):
    before = time.time()
    lease = await acquire(coordinator, session_timeout_ms=term)
    expires_at, duration = lease.tell()
    assert 0 < duration <= min(term, 8000)
    assert before * 1000 < expires_at <= time.time() * 1000 + min(term, 8000)


async def test_a_pause_at_a_clock_prolongs_no_lease(coordinator, monkeypatch):
    lease = await acquire(coordinator)
    clock = time.time

    def pause():
        time.sleep(0.3)
        return clock()

    monkeypatch.setattr(time, "time", pause)
    expires_at, _ = lease.tell()
    monkeypatch.undo()
    assert expires_at <= (time.time() + lease.remaining) * 1000 + 1


async def test_a_lease_that_is_not_renewed_ends_for_the_next_client(zoo, coordinator):
    lease = await acquire(coordinator, session_timeout_ms=500)
    lease.tell()
    call = await waiting(coordinator, zoo, client_id="node-2")
    next_one = await call
    assert asyncio.get_running_loop().time() >= lease.promised_until
    assert lease.end_reason == "it was not kept in time"
    assert next_one.hold is not None


async def test_a_lease_ends_in_time_though_its_timer_is_late(coordinator):
    lease = await acquire(coordinator, session_timeout_ms=200)
    time.sleep(0.5)  # the loop is held up
    with refused(Code.OVER, "not kept"):
        coordinator.keep(ANYBODY, lease.id)
    assert lease.tell()[1] == 0


async def test_a_lease_and_a_lock_of_django_share_the_key(coordinator):
    async with zk_lock("jobs/{name}", fields={"name": "a b%"}):
        for resource in ("jobs/a b%", "jobs/a%20b%25"):
            with refused(Code.BUSY, f"^The lock '{resource}' was not free in time.$"):  # no word of the holder
                await acquire(coordinator, resource_path=resource)


async def test_the_settings_of_a_lock_apply(zoo, coordinator):
    with zoo.configured(LOCKS={"printers": {"path": "printers/{floor}", "limit": 2}}):
        for _ in range(2):
            await acquire(coordinator, resource_path="printers/7")
        with refused(Code.BUSY):
            await acquire(coordinator, resource_path="printers/7")


async def test_the_end_is_not_later_than_that_of_max_hold(zoo, coordinator):
    with zoo.configured(LOCKS={"short": {"path": KEY, "max_hold": 1.0}}):
        lease = await acquire(coordinator)
        assert 0 < lease.tell()[1] <= 1000
        while lease.is_held:
            coordinator.keep(ANYBODY, lease.id)
            lease.tell()
            await asyncio.sleep(0.05)
    await until(lease)
    assert asyncio.get_running_loop().time() >= lease.promised_until
    assert "max_hold" in lease.end_reason


async def test_a_lock_that_lingers_has_a_new_token_for_each_lease(zoo, coordinator):
    """Or the late writes of a client that has lost its lease would look like those of the next one."""
    with zoo.configured(LOCKS={"hot": {"path": KEY, "linger": 5.0}}):
        tokens = []
        for kind in ("lock", "lock", "read"):
            lease = await acquire(coordinator, kind=kind)
            assert lease.hold is not None
            tokens.append(lease.hold.token)
            await coordinator.release(ANYBODY, lease.id)
        assert tokens == sorted(set(tokens))


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"resource_path": ""}, "resource_path: a lock name is a text, not empty"),
        ({"resource_path": "a//b"}, "empty"),
        ({"resource_path": "../etc"}, "relative path"),
        ({"resource_path": "x" * 2000}, "1000"),
        ({"resource_path": "a\x00b"}, "character"),
        ({"client_id": " "}, "client_id"),
        ({"session_timeout_ms": 2**62}, "from 100 to 300000"),
        ({"session_timeout_ms": -1}, "from 100 to 300000"),
        ({"wait_limit_ms": -1}, "below 0"),
        ({"kind": "semaphore", "limit": -1}, "below 0"),
        ({"kind": "mutex"}, "kind"),
        ({"limit": 2}, "limit"),
        ({"kind": "semaphore"}, "limit"),
    ],
)
async def test_an_invalid_request_is_refused(coordinator, wrong, match):
    with refused(Code.INVALID, match):
        await acquire(coordinator, **wrong)


async def test_the_settings_of_a_client_limit_its_keys_and_actions(zoo, coordinator):
    client = LeaseClient(name="billing", prefixes=("invoices",), kinds=("lock",), max_leases=2, max_waiting=1)
    with refused(Code.FORBIDDEN, "'orders/1'"):
        await acquire(coordinator, client, resource_path="orders/1")
    with refused(Code.FORBIDDEN, "invoices-old"):
        await acquire(coordinator, client, resource_path="invoices-old")
    with refused(Code.FORBIDDEN, "'write'"):
        await acquire(coordinator, client, kind="write")
    await acquire(coordinator)
    call = asyncio.ensure_future(acquire(coordinator, client, wait_limit_ms=20_000))
    await asyncio.to_thread(zoo.wait_contenders, KEY, 2)
    with refused(Code.TOO_MANY, "calls"):
        await acquire(coordinator, client, resource_path="invoices/2")
    call.cancel()
    await asyncio.wait([call])
    for number in range(2):
        await acquire(coordinator, client, resource_path=f"invoices/{number}")
    with refused(Code.TOO_MANY, "leases"):
        await acquire(coordinator, client, resource_path="invoices/2")


async def test_a_lease_that_was_lost_is_not_released(coordinator):
    """The client must learn of it, also if it asks before the lock is given back."""
    lease = await acquire(coordinator)
    lease.end("it was lost")
    with refused(Code.OVER, "it was lost"):
        await coordinator.release(ANYBODY, lease.id)


async def test_a_lease_belongs_to_its_client(coordinator):
    lease = await acquire(coordinator)
    other = LeaseClient(name="other")
    with refused(Code.OVER):
        coordinator.keep(other, lease.id)
    with refused(Code.OVER):
        await coordinator.release(other, lease.id)
    with refused(Code.ELSEWHERE, coordinator.id):
        coordinator.keep(ANYBODY, f"deadbeef{lease.id[8:]}")
    with refused(Code.ELSEWHERE, r"the lease is from \\x1b\[2J(?!.*x{60})"):
        coordinator.keep(ANYBODY, f"\x1b[2J{'x' * 9000}.1.2")
    assert lease.is_held


@pytest.mark.parametrize("proxy", [4], indirect=True)
async def test_without_a_connection_a_lease_ends_at_its_announced_end(proxy, coordinator):
    """Keeping it moves its end no further, as no quorum has confirmed the session."""
    lease = await acquire(coordinator)
    proxy.hang = True
    await asyncio.to_thread(eventually, lambda: faults.session().suspect)  # no reply is on its way any more
    end = faults.session().leased_until
    with faults.within(2), contextlib.suppress(Refusal):  # it is over, if the loop was late
        while lease.is_held:
            coordinator.keep(ANYBODY, lease.id)
            assert max(0, end - clock.now()) >= lease.remaining  # the clock first
            await asyncio.sleep(0.05)
    assert clock.now() >= end
    proxy.hang = False


async def test_a_drain_waits_for_the_leases(zoo, coordinator):
    lease = await acquire(coordinator, session_timeout_ms=3000)
    call = await waiting(coordinator, zoo)
    coordinator.keep(ANYBODY, lease.id)
    drain = asyncio.ensure_future(coordinator.drain())
    with refused(Code.UNAVAILABLE):
        await call
    with refused(Code.UNAVAILABLE):
        await acquire(coordinator, resource_path="other")
    assert lease.release_requested
    with faults.within(10), refused(Code.OVER):
        for _ in range(1000):
            coordinator.keep(ANYBODY, lease.id)
            await asyncio.sleep(0.05)
    await asyncio.wait_for(drain, 20)
    assert zoo.children(KEY) == []


async def test_a_client_that_asks_for_many_locks_at_once_does_not_delay_others(coordinator):
    await acquire(coordinator, resource_path="connects")
    greedy, modest = LeaseClient(name="greedy"), LeaseClient(name="modest")
    flood = [asyncio.ensure_future(acquire(coordinator, greedy, resource_path=f"g/{number}")) for number in range(200)]
    await asyncio.sleep(0)  # they have begun
    lease = await acquire(coordinator, modest)
    assert lease.is_held
    leases = await asyncio.gather(*flood)
    assert all(other.is_held for other in leases)
    tokens = [other.hold.token for other in (lease, *leases) if other.hold]  # in the order in which ZooKeeper saw them
    assert sum(token < tokens[0] for token in tokens) < 100  # behind them all, it would be 200


async def test_a_client_whose_calls_all_wait_asks_for_more_locks(coordinator):
    """A call that waits in a queue is no longer on its way to ZooKeeper."""
    async with zk_lock(KEY):
        calls = [asyncio.ensure_future(acquire(coordinator, wait_limit_ms=20_000)) for _ in range(50)]
        assert (await acquire(coordinator, resource_path="other")).is_held
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
    assert (await acquire(coordinator, wait_limit_ms=20_000)).is_held


async def test_a_call_ends_in_time_behind_others_of_its_client(zoo, proxy):
    coordinator = Coordinator()
    await acquire(coordinator, resource_path="connects")
    proxy.hang = True
    calls = [acquire(coordinator, resource_path=f"g/{number}", wait_limit_ms=1000) for number in range(20)]
    with faults.within(10):
        refusals = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(refusal) for refusal in refusals} == {Refusal}
    proxy.hang = False
    await asyncio.wait_for(coordinator.stop(), 20)


async def test_leases_that_are_lost_together_are_one_line_of_the_log(zoo, coordinator, caplog):
    leases = [await acquire(coordinator, resource_path=f"many/{number}") for number in range(20)]
    await asyncio.to_thread(faults.expire, zoo)
    for lease in leases:
        await until(lease)
        assert isinstance(lease.error, LockLost)
    while not any("were lost" in message for message in caplog.messages):
        await asyncio.sleep(0.05)
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    about_leases = [record.getMessage() for record in warnings if "many/" in record.getMessage()]
    assert len(about_leases) == 1, about_leases
    assert about_leases[0].startswith("20 leases were lost. The first one: ")


async def test_threads_of_two_lease_clients_are_no_deadlock(zoo, coordinator):
    """They share a `client_id` by default. Those that hold a lease wait for nothing."""
    other = "invoices/2027"
    leases = [await acquire(coordinator), await acquire(coordinator, resource_path=other, client_id="node-2")]
    calls = [
        asyncio.ensure_future(acquire(coordinator, resource_path=other, wait_limit_ms=20_000)),
        asyncio.ensure_future(acquire(coordinator, client_id="node-2", wait_limit_ms=20_000)),
    ]
    for key in (KEY, other):
        while len(await asyncio.to_thread(zoo.children, key)) < 2:
            await asyncio.sleep(0.02)
    snapshot = await asyncio.to_thread(inspection.snapshot, max_age=0, reply_timeout=30)
    assert (snapshot.waits, snapshot.cycles) == ((), ())
    for lease in leases:
        lease.end("the client has released it")
    await asyncio.wait_for(asyncio.gather(*calls), 20)


async def test_a_request_that_is_sent_again_gets_the_same_lease(zoo, coordinator):
    semaphore = {"kind": "semaphore", "limit": 3, "request_id": "r1"}
    lease = await acquire(coordinator, **semaphore)
    assert await acquire(coordinator, **semaphore, wait_limit_ms=500) is lease
    others = [
        await acquire(coordinator, **{**semaphore, "request_id": "r2"}),
        await acquire(coordinator, LeaseClient(name="other"), **semaphore),
    ]
    assert len({lease.id, *(other.id for other in others)}) == 3
    assert len(zoo.children(KEY)) == 3


async def test_requests_without_an_id_are_different_ones(coordinator):
    semaphore = {"kind": "semaphore", "limit": 2}
    assert await acquire(coordinator, **semaphore) is not await acquire(coordinator, **semaphore)


async def test_a_request_that_is_sent_at_once_a_second_time_takes_one_place(zoo, coordinator):
    both = await asyncio.gather(*(acquire(coordinator, request_id="r1") for _ in range(2)))
    assert both[0] is both[1]
    assert len(zoo.children(KEY)) == 1


async def test_a_request_that_is_sent_again_keeps_its_place_in_the_queue(zoo, coordinator):
    async with zk_lock(KEY):
        held = set(zoo.children(KEY))
        first = await waiting(coordinator, zoo, request_id="r1")
        (node,) = set(zoo.children(KEY)) - held
        again = asyncio.ensure_future(acquire(coordinator, request_id="r1", wait_limit_ms=20_000))
        await _calls(coordinator, 2)
        first.cancel()
        await asyncio.wait([first])
        assert node in zoo.children(KEY)
    assert (await again).path.endswith(node)


async def test_a_place_in_the_queue_ends_with_the_last_call_that_waits_for_it(zoo, coordinator):
    async with zk_lock(KEY):
        calls = [await waiting(coordinator, zoo, request_id="r1") for _ in range(2)]
        await _calls(coordinator, 2)
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        await asyncio.to_thread(zoo.wait_contenders, KEY, 1)


async def test_a_call_that_leaves_takes_no_lease_from_another_that_has_it(coordinator):
    lease = await acquire(coordinator, request_id="r1")
    again = asyncio.ensure_future(coordinator.acquire(ANYBODY, lease.request))
    await asyncio.sleep(0)  # it has begun
    again.cancel()
    await asyncio.wait([again])
    coordinator.keep(ANYBODY, lease.id)


@pytest.mark.parametrize("changed", [{"resource_path": "other"}, {"kind": "read"}, {"session_timeout_ms": 5000}])
async def test_a_request_id_is_of_one_request(coordinator, changed):
    await acquire(coordinator, request_id="r1")
    with refused(Code.INVALID, "request_id"):
        await acquire(coordinator, request_id="r1", **changed)


async def test_after_the_end_of_its_lease_a_request_gets_a_new_one(coordinator):
    lease = await acquire(coordinator, request_id="r1")
    await coordinator.release(ANYBODY, lease.id)
    assert await acquire(coordinator, request_id="r1") is not lease


async def test_a_client_is_told_later_why_its_lease_has_ended(zoo, coordinator):
    lease = await acquire(coordinator)
    zoo.client.delete(lease.path)
    await until(lease)
    with refused(Code.OVER, "its znode was deleted"):
        coordinator.keep(ANYBODY, lease.id)
    with refused(Code.OVER, "no such lease"):
        coordinator.keep(LeaseClient(name="other"), lease.id)


async def test_a_refusal_does_not_say_where_zookeeper_is(zoo):
    with Proxy(zoo.address) as proxy, zoo.configured(proxy.address):
        proxy.refuse = True
        coordinator = Coordinator()
        with pytest.raises(Refusal) as caught:
            await acquire(coordinator)
        assert caught.value.code is Code.UNAVAILABLE
        assert "ZooKeeper" in str(caught.value)
        for secret in (proxy.address, proxy.address.rpartition(":")[2], "devserver", "127.0.0.1"):
            assert secret not in str(caught.value)
        await asyncio.wait_for(coordinator.stop(), 20)


async def _calls(coordinator, number):
    while max((lease.calls for lease in coordinator._leases), default=0) < number:
        await asyncio.sleep(0.01)


async def _end(coordinator):
    for lease in list(coordinator._leases):
        lease.end("the test is over")
    await asyncio.wait_for(coordinator.drain(), 20)
