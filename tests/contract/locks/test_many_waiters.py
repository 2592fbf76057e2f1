"""Hundreds of waiters in one process: few nodes, few requests, no harm to other locks, and all are granted."""

import asyncio
import contextlib
import time

import pytest
from support.faults import (
    BackgroundCall,
    acquire_once,
    acquired_by_many,
    connected,
    cut,
    expire,
    session,
    warmed,
    within,
)
from support.proxy import CREATE2, CREATE_CONTAINER, GET_CHILDREN, GET_DATA, MULTI, SYNC
from support.zoo import eventually

from django_zklock import zk_lock, zk_locks
from django_zklock.contrib.metrics.prometheus import waiting_now
from django_zklock.core.locks import acquisition
from django_zklock.core.protocol.contender import Contender
from django_zklock.core.protocol.local_queue import MAX_WAITING
from django_zklock.core.protocol.registry import Registry
from django_zklock.core.zk import heartbeat
from django_zklock.core.zk.client import MAX_IN_FLIGHT
from django_zklock.exceptions import LockBusy, LockTimeout, ZooKeeperUnavailable

KEY = "crowd"
MANY = 3 * MAX_WAITING


def begin(count, order, **options):
    """Have so many coroutines wait for the lock, one behind the other; each notes when its turn comes."""

    async def acquire(number):
        async with zk_lock(KEY, **{"timeout": None, **options}) as hold:
            hold.check()
            order.append(number)

    return [asyncio.create_task(acquire(number)) for number in range(count)]


async def acquire(done=None, **options):
    """Take the lock, and release it when `done` is set; for a task of its own, which is another owner."""
    async with zk_lock(KEY, **options):
        if done is not None:
            await done.wait()


async def until(condition):
    await asyncio.to_thread(eventually, condition, 20)


def waiting_for_listings():
    return sum(
        len(listing.callbacks) + len(listing.next) for listing in session().attached(Registry)._listings.values()
    )


async def in_local_queue(count):
    await until(lambda: sum(queue.length for queue in session().attached(Registry)._local_queues.values()) == count)


@pytest.fixture
def warm(zoo):
    with warmed(zoo, KEY) as proxy:
        yield proxy


@pytest.fixture
async def cleared():
    tasks = []
    yield tasks
    await cancel(tasks)


async def cancel(tasks):
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_many_local_waiters_have_few_znodes_and_keep_their_order(zoo):
    order = []
    async with zk_lock(KEY):
        tasks = begin(MANY, order)
        await in_local_queue(MANY - MAX_WAITING)
        await asyncio.to_thread(zoo.wait_contenders, KEY, MAX_WAITING + 1)
    await asyncio.wait_for(asyncio.gather(*tasks), 30)
    assert order == list(range(MANY))
    assert not session().attached(Registry)._local_queues


@pytest.mark.parametrize("options", [{"limit": MANY}, {"kind": "read", "max_waiters": 0}], ids=["permits", "readers"])
def test_the_local_queue_does_not_limit_grants(zoo, options):
    with acquired_by_many(KEY, MANY, MANY, **options):
        pass


async def test_a_waiter_that_leaves_the_local_queue_writes_nothing(zoo, cleared):
    order = []
    async with zk_lock(KEY):
        cleared += begin(MAX_WAITING, order)
        await asyncio.to_thread(zoo.wait_contenders, KEY, MAX_WAITING + 1)
        with within(5), pytest.raises(LockTimeout, match="many other callers of this process") as caught:
            await asyncio.create_task(acquire(timeout=0.2))
        assert caught.value.ahead is None  # it has not listed the queue
        given_up = begin(5, [], timeout=30)
        last = asyncio.create_task(acquire(timeout=30))
        await in_local_queue(6)
        for task in given_up:
            task.cancel()
        await in_local_queue(1)
        assert len(zoo.children(KEY)) == MAX_WAITING + 1
    await asyncio.wait_for(last, 20)
    assert order == list(range(MAX_WAITING))


async def test_a_waiter_with_too_little_time_lets_others_go_first(zoo, cleared):
    """If the last grant took longer than it has left, it would only come and go."""
    async with zk_lock(KEY):
        done = asyncio.Event()
        cleared.append(asyncio.create_task(acquire(done, timeout=None)))
        cleared += begin(MAX_WAITING - 1, [])
        await asyncio.to_thread(zoo.wait_contenders, KEY, MAX_WAITING + 1)
        late = asyncio.create_task(acquire(timeout=20, what="late"))
        cleared += [late, asyncio.create_task(acquire(timeout=None, what="patient"))]
        await in_local_queue(2)
        (queue,) = session().attached(Registry)._local_queues.values()
        for contender in queue._admitted:
            queue._admitted[contender] -= 60  # as if they had waited for a minute
    await until(lambda: any(payload and payload.what == "patient" for payload in zoo.payloads(KEY)))
    assert not any(payload and payload.what == "late" for payload in zoo.payloads(KEY))
    done.set()


@pytest.mark.parametrize("options", [{"timeout": 0}, {"timeout": 30, "max_waiters": 1}])
@pytest.mark.parametrize("kind", [{"kind": "read"}, {"limit": 2 * MANY}])
async def test_a_local_queue_of_contenders_granted_at_once_refuses_no_caller(zoo, warm, kind, options, cleared):
    done = asyncio.Event()
    warm.hang = True
    cleared += [asyncio.create_task(acquire(done, timeout=30, **kind)) for _ in range(MANY)]
    await in_local_queue(MANY - MAX_WAITING)
    first = asyncio.create_task(acquire(**kind, **options))
    await until(
        lambda: sum(isinstance(observer, Contender) for observer in session().observers) == MANY + 1 or first.done()
    )
    warm.hang = False
    await first
    done.set()


async def test_tries_at_the_same_time_share_their_listings(zoo, warm):
    """A hundred that begin together take two: the one under way may have been sent too early for the others."""
    with zoo.hold_elsewhere(KEY):
        warm.hang = True
        warm.reset()
        tries = asyncio.gather(*(acquire(timeout=0) for _ in range(100)), return_exceptions=True)
        await until(lambda: waiting_for_listings() == 100)
        assert not list(waiting_now())  # none of them may wait
        warm.hang = False
        assert {type(outcome) for outcome in await tries} == {LockBusy}
        assert warm.counts[GET_CHILDREN] == 2


def test_a_later_caller_does_not_take_the_sync_from_a_listing(zoo, warm, caplog):
    """It waits for the listing under way. Those that come later take the same one, and one that fails harms none."""
    replies = []
    registry = session().attached(Registry)

    def ask():
        calls = [(replies.append, False), (lambda reply: 1 / 0, True), (replies.append, True), (replies.append, False)]
        for callback, after_sync in calls:
            registry.list_names(f"{zoo.base}/{KEY}", callback, after_sync=after_sync)

    warm.reset()
    session().post(ask)
    eventually(lambda: len(replies) == 3)
    assert (warm.counts[GET_CHILDREN], warm.counts[SYNC]) == (2, 1)
    assert "failed on a listing" in caplog.text


@pytest.mark.parametrize("busy", [False, True])
async def test_an_outcome_that_comes_just_before_the_caller_gives_up_counts(zoo, warm, monkeypatch, busy):
    """Its time is over, and the reply comes before the event loop goes on with it."""
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(acquisition, "REPLY_TIMEOUT", 1.0)

    def reply():
        (contender,) = (observer for observer in session().observers if isinstance(observer, Contender))
        warm.hang = False
        eventually(lambda: contender.wait.on_outcome is None, 10)

    with zoo.hold_elsewhere(KEY) if busy else contextlib.nullcontext():
        warm.hang = True
        attempt = asyncio.create_task(acquire(timeout=0))
        await asyncio.sleep(0)
        loop.call_later(0.2, time.sleep, 1.2)  # so that the loop runs two timers in one go: the caller's, and the next
        loop.call_later(1.1, reply)
        with pytest.raises(LockBusy) if busy else contextlib.nullcontext():
            await attempt


@pytest.mark.parametrize("comes", [True, False])
async def test_a_try_waits_a_little_for_the_proof_of_its_grant(zoo, warm, comes):
    """Its place in the queue is known before its event loop goes on with it."""

    def be_busy():
        warm.wait_for(lambda: warm.counts[MULTI])
        patched.undo()

    warm.reset()
    warm.delay_op(MULTI, 0.1 if comes else 60)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(heartbeat, "BEAT_SHARE", 0.0)  # so that a grant needs a proof
        patched.setattr(acquisition, "REPLY_TIMEOUT", 30 if comes else 1)
        asyncio.get_running_loop().call_soon(be_busy)
        with contextlib.nullcontext() if comes else pytest.raises(ZooKeeperUnavailable):
            await acquire(timeout=0)


async def test_one_listing_after_a_reconnect_serves_all_waiters(zoo, warm, cleared):
    """Each waiter needs to know its place when the connection is back, and one answer tells them all."""
    async with zk_lock(KEY, abort_on="lost"):
        cleared += begin(MAX_WAITING, [])
        await asyncio.to_thread(zoo.wait_contenders, KEY, MAX_WAITING + 1)
        await until(lambda: warm.counts[GET_DATA] == 2 * MAX_WAITING)  # its own znode and the one ahead
        warm.reset()
        await asyncio.to_thread(cut, warm)
        await until(lambda: warm.counts[GET_DATA] >= MAX_WAITING)
        assert warm.counts[GET_CHILDREN] == 1
        assert warm.counts[SYNC] == 1
        await cancel(cleared)


async def test_local_waiters_keep_their_order_in_the_next_session(zoo):
    order = []
    with zoo.hold_elsewhere(KEY):
        tasks = begin(MANY, order)
        await in_local_queue(MANY - MAX_WAITING)
        await asyncio.to_thread(zoo.wait_contenders, KEY, MAX_WAITING + 1)
        before = connected().session_id
        await asyncio.to_thread(expire, zoo)
        await until(lambda: session().session_id not in (None, before))
        await asyncio.to_thread(zoo.wait_contenders, KEY, MAX_WAITING + 1)
    await asyncio.wait_for(asyncio.gather(*tasks), 30)
    assert order == list(range(MANY))


def test_one_of_several_locks_waits_in_the_local_queue_after_a_late_reply(zoo, warm):
    """In the next session it looks again whether its lock is free, and is let in before it has the reply."""
    connected().attached(Registry).most_waiting = 1
    with zoo.hold_elsewhere(KEY):
        waiter = BackgroundCall(lambda: acquire_once(KEY, timeout=30))
        zoo.wait_contenders(KEY, 2)
        killed, warm.refuse = warm.kill_before_op(CREATE_CONTAINER), True
        several = BackgroundCall(lambda: acquire_once(zk_locks("a", "b", KEY, timeout=30)))
        assert killed.wait(30)
        expire(zoo)
        zoo.client.ensure_path(f"{zoo.base}/a")
        warm.refuse = False
        zoo.wait_contenders("b", 1)
        assert len(zoo.children(KEY)) == 2
    waiter.result()
    several.result()


@pytest.mark.parametrize("most", [0, 1, 5])
async def test_one_more_than_max_waiters_is_refused(zoo, most, cleared):
    with zoo.hold_elsewhere(KEY):
        cleared += begin(most, [], max_waiters=most)
        await asyncio.to_thread(zoo.wait_contenders, KEY, most + 1)
        with within(10), pytest.raises(LockBusy, match=rf"{most} callers? waits? .*max_waiters is {most}"):
            async with zk_lock(KEY, timeout=60, max_waiters=most):
                pass
        await asyncio.to_thread(zoo.wait_contenders, KEY, most + 1)
        await cancel(cleared)
        with zoo.hold_elsewhere(KEY):  # a waiter of another process
            if most == 1:
                with pytest.raises(LockBusy):
                    async with zk_lock(KEY, max_waiters=most):
                        pass


async def test_a_waiter_whose_session_ends_on_its_way_in_does_not_count_itself(zoo, warm):
    """It was let in before, so it enters again on the next session."""
    with zoo.hold_elsewhere(KEY):
        before = connected().session_id
        killed = warm.kill_before_op(CREATE2)
        first = asyncio.create_task(acquire(timeout=60, max_waiters=1))
        await until(killed.is_set)
        warm.refuse = True
        await asyncio.to_thread(expire, zoo)
        warm.refuse = False
        await until(lambda: session().session_id not in (None, before))
        await asyncio.to_thread(zoo.wait_contenders, KEY, 2)
    await first


@pytest.mark.parametrize("options", [{}, {"kind": "write"}, {"limit": 1}, {"limit": 10}, {"linger": 0.5}])
async def test_max_waiters_counts_those_that_come_at_the_same_moment(zoo, options):
    refused = []
    inside = []
    done = asyncio.Event()

    async def acquire(number):
        try:
            async with zk_lock(KEY, timeout=30, max_waiters=5, **options):
                inside.append(number)
                await done.wait()
        except LockBusy:
            refused.append(number)

    permits = options.get("limit", 1)
    tasks = [asyncio.create_task(acquire(number)) for number in range(50)]
    await until(lambda: len(refused) >= 45 - permits)
    done.set()
    await asyncio.wait_for(asyncio.gather(*tasks), 30)
    assert (len(inside), len(refused)) == (5 + permits, 45 - permits)


def test_a_heartbeat_does_not_queue_behind_a_flood_of_requests(zoo):
    """A bounded number of requests is in flight. A heartbeat is sent before the requests that wait."""
    with warmed(zoo, "a") as proxy, zk_lock("a", abort_on="never"):
        answers = []
        proxy.hang = True
        proxy.reset()
        for number in range(5 * MAX_IN_FLIGHT):
            session().post(session().gateway.read, f"{session().options.base}/nothing-{number}", answers.append)
        session().post(session().attached(Registry).heartbeat.beat)
        proxy.wait_for(lambda: sum(frame.request for frame in proxy.frames) > MAX_IN_FLIGHT)
        asked = [frame.opcode for frame in proxy.frames if frame.request]
        proxy.hang = False
        assert asked == [GET_DATA] * MAX_IN_FLIGHT + [MULTI]
        eventually(lambda: len(answers) == 5 * MAX_IN_FLIGHT)
