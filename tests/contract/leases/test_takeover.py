"""A coordinator goes on with the session and the leases of the one before; here, both are in one process."""

import asyncio
import gc
import threading

import pytest
import pytest_asyncio
from support.proxy import GET_DATA, MULTI, SET_DATA, Proxy
from support.zoo import eventually

from django_zklock import conf, zk_lock
from django_zklock.apps import session_options
from django_zklock.contrib.leases.access import ANYBODY
from django_zklock.contrib.leases.coordinator import Coordinator
from django_zklock.contrib.leases.lease import LeaseRequest
from django_zklock.contrib.leases.refusal import Code, Refusal
from django_zklock.contrib.leases.state import StateFile
from django_zklock.contrib.leases.takeover import Takeover
from django_zklock.core.locks.held import held_locks
from django_zklock.core.zk import process
from django_zklock.locks.hold import held_of
from django_zklock.operations import request_release
from django_zklock.signals import lock_acquired

KEY = "invoices/2026"
GET_EPHEMERALS = 103


class Successors:
    """Coordinators with one state file, one after the other."""

    def __init__(self, path):
        self.path = path
        self.lines = []

    async def start(self):
        self.state = StateFile(self.path, conf.current().base, self.lines.append)
        self.coordinator = Coordinator(self.state)
        await Takeover(self.state, self.coordinator, self.lines.append).run()
        return self.coordinator

    async def end(self, *, drains=True):
        """End the coordinator as SIGTERM does, or at once."""
        if drains:
            await self.coordinator.drain()
        self.coordinator.pass_on()
        leases = [lease.task for lease in self.coordinator._leases]
        for task in leases:
            task.cancel()
        if leases:
            await asyncio.wait(leases)
        self.state.close()
        await asyncio.to_thread(process.reset)

    async def next(self):
        await self.end()
        return await self.start()


@pytest_asyncio.fixture
async def successors(zoo, tmp_path):
    successors = Successors(tmp_path / "state")
    await successors.start()
    yield successors
    for lease in list(successors.coordinator._leases):
        lease.end("the test is over")
    await asyncio.wait_for(asyncio.gather(*(lease.task for lease in successors.coordinator._leases)), 20)
    successors.state.close()
    process.configure(session_options)
    await asyncio.to_thread(process.reset)
    await asyncio.to_thread(eventually, no_hold_is_left)


def no_hold_is_left():
    """As of a process that has ended: its threads and its holds refer to one another."""
    gc.collect()
    return not held_locks.all()


async def acquire(coordinator, **request):
    wanted = {"resource_path": KEY, "client_id": "node-1", "session_timeout_ms": 30_000, **request}
    return await asyncio.wait_for(coordinator.acquire(ANYBODY, LeaseRequest(**wanted)), 60)


def tokens_of(coordinator, leases):
    """Return the tokens of these leases of an earlier process in this one."""
    return [coordinator.find(ANYBODY, lease.id).hold.token for lease in leases]


async def test_a_lease_keeps_its_id_its_token_and_its_znode(zoo, successors):
    lease = await acquire(successors.coordinator)
    again = (await successors.next()).find(ANYBODY, lease.id)
    assert again is not lease
    assert (again.hold.token, again.path, again.number) == (lease.hold.token, lease.path, lease.number)
    assert again.remaining > 0
    with pytest.raises(Refusal) as refused:
        await acquire(successors.coordinator)
    assert refused.value.code is Code.BUSY
    await successors.coordinator.release(ANYBODY, lease.id)
    assert zoo.children(KEY) == []


async def test_a_receiver_that_hangs_does_not_delay_the_next_process(successors):
    hangs, over = threading.Event(), threading.Event()

    def receiver(**kwargs):
        hangs.set()
        over.wait(60)

    lock_acquired.connect(receiver)
    try:
        lease = await acquire(successors.coordinator)
        assert await asyncio.to_thread(hangs.wait, 20)
        await asyncio.wait_for(asyncio.to_thread(process.current().keep_open, 60), 20)
    finally:
        over.set()
        lock_acquired.disconnect(receiver)
    assert (await successors.next()).find(ANYBODY, lease.id)


@pytest.mark.parametrize("term", [3.0, 30.0])
async def test_a_lease_lasts_as_long_as_its_client_may_have_been_told(successors, term):
    """And no longer than that, if the client does not come again."""
    lease = await acquire(successors.coordinator, session_timeout_ms=round(term * 1000))
    await asyncio.sleep(0.3)
    successors.coordinator.keep(ANYBODY, lease.id).tell()
    coordinator = await successors.next()
    until = coordinator.find(ANYBODY, lease.id)._kept_until
    assert until >= lease.promised_until
    assert until <= asyncio.get_running_loop().time() + min(term, 0.4 * process.current().timeout)


@pytest.mark.parametrize("name", ["a b", "über", "a%2Fb", "a%2fb", "100%", "a/b-0000000001", "x__lock__0000000000"])
async def test_a_request_that_is_sent_again_finds_its_lease(successors, name):
    lease = await acquire(successors.coordinator, resource_path=name, request_id="r1")
    again = await acquire(await successors.next(), resource_path=name, request_id="r1")
    assert (again.id, again.hold.token, again.lock.key) == (lease.id, lease.hold.token, lease.lock.key)


async def test_a_restart_does_not_prolong_max_hold(zoo, successors):
    await successors.end()
    with zoo.configured(LOCKS={"short": {"path": KEY, "max_hold": 60.0}}):
        lease = await acquire(await successors.start())
        await asyncio.to_thread(eventually, lambda: b'"waited"' in zoo.client.get(lease.path)[0])
        again = (await successors.next()).find(ANYBODY, lease.id)
        assert ends_at(again) == pytest.approx(ends_at(lease), abs=0.5)
        await successors.end()
    await successors.start()


def ends_at(lease):
    assert lease.hold is not None
    grant = held_of(lease.hold).grant
    assert grant.ends_at is not None
    return grant.ends_at


async def test_a_released_lease_is_over_in_the_next_process(successors):
    lease = await acquire(successors.coordinator)
    other = await acquire(successors.coordinator, resource_path="other")
    await successors.coordinator.release(ANYBODY, lease.id)
    coordinator = await successors.next()
    with pytest.raises(Refusal, match=r"no such lease|has ended"):
        coordinator.find(ANYBODY, lease.id)
    assert coordinator.find(ANYBODY, other.id)


async def test_the_next_process_hears_of_a_release_request(successors):
    lease = await acquire(successors.coordinator)
    await asyncio.to_thread(request_release, KEY, by="kim", reason="a deploy")
    lease = (await successors.next()).find(ANYBODY, lease.id)
    await asyncio.to_thread(eventually, lambda: "a deploy" in lease.release_requested)


async def test_the_next_process_hears_of_a_break(zoo, successors):
    lease = (await successors.next()) and await acquire(successors.coordinator)
    lease = (await successors.next()).find(ANYBODY, lease.id)
    zoo.client.delete(lease.path)
    await asyncio.wait_for(asyncio.shield(lease.task), 20)
    assert "deleted" in lease.end_reason


async def test_other_locks_of_the_process_are_free(successors):
    await successors.next()
    async with zk_lock("other", timeout=0):
        pass


async def test_a_waiter_of_the_former_process_gets_no_lease(zoo, successors):
    """A client that asks again enters the queue again."""
    lease = await acquire(successors.coordinator)
    call = asyncio.ensure_future(acquire(successors.coordinator, wait_limit_ms=20_000))
    await asyncio.to_thread(zoo.wait_contenders, KEY, 2)
    await successors.end(drains=False)
    coordinator = await successors.start()
    await asyncio.to_thread(zoo.wait_contenders, KEY, 1)
    assert coordinator.find(ANYBODY, lease.id).hold.token == lease.hold.token
    call.cancel()


# --- other settings in the next process -------------------------------------------------------------------------------


async def test_a_lock_whose_limit_is_in_the_settings_goes_on(zoo, successors):
    await successors.end()
    with zoo.configured(LOCKS={"printers": {"path": KEY, "limit": 2}}):
        coordinator = await successors.start()
        leases = [await acquire(coordinator, request_id=f"r{number}") for number in range(2)]
        coordinator = await successors.next()
        assert tokens_of(coordinator, leases) == [lease.hold.token for lease in leases]
        assert (await acquire(coordinator, request_id="r1")).hold.token == leases[1].hold.token
        await successors.end()
    await successors.start()


async def test_a_lease_that_the_settings_forbid_is_not_free_before_its_end(zoo, successors):
    lease = await acquire(successors.coordinator, kind="semaphore", limit=1, session_timeout_ms=4000)
    lease.tell()
    await successors.end()
    with zoo.configured(LOCKS={"strict": {"path": KEY, "compat": "kazoo"}}):
        for _ in range(2):
            coordinator = await successors.start()
            with pytest.raises(Refusal):
                coordinator.find(ANYBODY, lease.id)
            assert len(zoo.children(KEY)) == 1
            await successors.end()
        await successors.start()
        await asyncio.to_thread(zoo.wait_contenders, KEY, 0)
        assert asyncio.get_running_loop().time() > lease.promised_until
        await successors.end()
    await successors.start()


async def test_a_lease_whose_data_another_program_has_written_is_not_free_before_its_end(zoo, successors):
    lease = await acquire(successors.coordinator, session_timeout_ms=3000)
    lease.tell()
    zoo.client.set(lease.path, b"10.0.0.1")
    await successors.next()
    assert len(zoo.children(KEY)) == 1
    await asyncio.to_thread(zoo.wait_contenders, KEY, 0)
    assert asyncio.get_running_loop().time() > lease.promised_until


# --- faults meanwhile -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("request_of_the_claim", [SET_DATA, MULTI, GET_EPHEMERALS, GET_DATA])
async def test_a_broken_connection_during_the_claim_ends_no_lease(zoo, successors, request_of_the_claim):
    lease = await acquire(successors.coordinator)
    await successors.end()
    with Proxy(zoo.address) as proxy, zoo.configured(hosts=proxy.address, session_timeout=20):
        cut = proxy.kill_after_op(request_of_the_claim)
        coordinator = await successors.start()
        assert cut.is_set()
        assert coordinator.find(ANYBODY, lease.id).hold.token == lease.hold.token
        await successors.end()
    await successors.start()


async def test_a_session_keeps_its_timeout(zoo, successors, caplog):
    """No server is to blame for that."""
    timeout = process.current().timeout
    await successors.end()
    with zoo.configured(session_timeout=timeout + 5):
        await successors.start()
        assert process.current().timeout == timeout
        assert f"with its session timeout of {timeout:g} s" in successors.lines[-1]
        await successors.end()
    await successors.start()
    assert "asked the server" not in caplog.text
