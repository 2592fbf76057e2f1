"""A client whose link to its server fails, for a moment, for long or one way only, keeps its promises."""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import time
import uuid
from collections.abc import Callable, Iterator

import pytest
from support.chaos import firewall
from support.chaos.checker import ROOM
from support.chaos.worker_pool import LockWorker, WorkerPool
from support.proxy import CONNECT, CREATE, CREATE2, DELETE, MULTI, Proxy
from support.zoo import Zoo, eventually

from django_zklock.zk.lease import LEASE_SHARE

TICK = 0.5  # seconds, of the test's servers
LATER = 0.5  # seconds of room for a busy machine
LEFT_BEHIND = 2.0  # seconds that a contender may outlive its caller while ZooKeeper is reachable; promised

Figure = Callable[..., None]
Link = Callable[[Proxy], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def swallowed(proxy: Proxy) -> Iterator[None]:
    """Read and discard what both ends send; TCP reports no error."""
    proxy.drop_requests = proxy.drop_replies = True
    yield
    proxy.heal()


@contextlib.contextmanager
def dropped(proxy: Proxy) -> Iterator[None]:
    """Lose the packets themselves, those of new connections too; TCP sends again what it has when that is over."""
    with firewall.blackhole(proxy.port):
        yield


def hit(*faults: threading.Event) -> None:
    """Wait until one of these faults has happened: that it did not says nothing about the lock."""
    deadline = time.monotonic() + 10
    while not any(fault.is_set() for fault in faults):
        if time.monotonic() > deadline:
            raise RuntimeError("the fault met no request")
        time.sleep(0.005)


def lose_reply(proxy: Proxy, *opcodes: int) -> list[threading.Event]:
    """Have the reply to the next of these requests lost, with its connection."""
    return [proxy.kill_after_op(opcode) for opcode in opcodes]


def told_before_the_next(
    pool: WorkerPool, a: LockWorker, b: LockWorker, link: contextlib.AbstractContextManager[None]
) -> list[float]:
    """
    Cut off A, which holds and works, and have B take over; A has to know by then.

    Returns how long it took until A was told, and until B was granted.
    """
    working = a.work()
    call = b.acquire(timeout=20)
    pool.wait_contenders(2)
    began = pool.note("blackhole", target=a.name)
    with link:
        answer = call.result(30)
        assert answer["granted"]
        if not working.done():
            a.stop_work()
        told = working.result()
        assert told["lost"], "the holder was not told"
        assert told["t"] < answer["t"], "the holder was told after the next one was granted"
    return [told["t"] - began, answer["t"] - began]


# --- a link that carries nothing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("link", [swallowed, pytest.param(dropped, marks=firewall.needs_firewall)])
def test_an_idle_holder_behind_a_dead_link_is_told_before_the_next_one_is_granted(
    pool: WorkerPool, proxy: Proxy, figure: Figure, link: Link
) -> None:
    a = pool.start_one("A", hosts=proxy.address)
    b = pool.start_one("B")
    a.take(abort_on="lost")  # which is told last of all
    told, granted = told_before_the_next(pool, a, b, link(proxy))
    figure("told after", told, "s")
    figure("next holder after", granted, "s")
    assert told <= LEASE_SHARE * a.session_timeout + LATER
    pool.assert_kept()


@contextlib.contextmanager
def hung(proxy: Proxy) -> Iterator[None]:
    """Keep what both ends send, and pass it on when that is over."""
    proxy.hang = True
    yield
    proxy.heal()


@pytest.mark.parametrize(
    "link",
    [
        pytest.param(hung, marks=pytest.mark.convicts_kazoo),
        pytest.param(dropped, marks=firewall.needs_firewall),
    ],
)
def test_a_busy_holder_behind_a_dead_link_is_told_before_the_next_one_is_granted(
    pool: WorkerPool, proxy: Proxy, figure: Figure, link: Link
) -> None:
    """Where packets are dropped, not even the kernel learns that nothing arrives: it sends them again."""
    a = pool.start_one("A", hosts=proxy.address)
    b = pool.start_one("B")
    a.take(abort_on="lost")
    a.tell("chatter", every=0.3).result()
    told, granted = told_before_the_next(pool, a, b, link(proxy))
    figure("told after", told, "s")
    figure("next holder after", granted, "s")
    pool.assert_kept()


def test_writes_whose_replies_are_lost_extend_no_lease(pool: WorkerPool, proxy: Proxy, figure: Figure) -> None:
    """They keep the session alive as the server sees it, which the holder cannot know; so it stops in time."""
    a = pool.start_one("A", hosts=proxy.address)
    b = pool.start_one("B")
    a.take(abort_on="lost")
    working = a.work()
    call = b.acquire(timeout=30)
    pool.wait_contenders(2)
    began = pool.note("half-open", target="A")
    proxy.drop_replies = True
    time.sleep(2 * a.session_timeout)  # of fault
    if not working.done():
        a.stop_work()
    told = working.result()
    assert told["lost"], "the holder was not told"
    figure("told after", told["t"] - began, "s")
    assert told["t"] - began <= LEASE_SHARE * a.session_timeout + LATER
    proxy.heal()
    a.release().result()
    answer = call.result(40)
    assert answer["granted"]
    assert told["t"] < answer["t"]
    pool.assert_kept()


@pytest.mark.timeout(90)
def test_a_lease_goes_by_the_session_timeout_that_was_granted(pool: WorkerPool, proxy: Proxy, figure: Figure) -> None:
    """Of 60 seconds asked for, the server grants 20 of its ticks."""
    granted = 20 * TICK
    a = pool.start_one("A", hosts=proxy.address, session_timeout=60)
    b = pool.start_one("B")
    a.take(abort_on="lost")
    assert a.ask("session")["timeout"] == granted
    event = next(event for event in pool.history() if event["e"] == "granted")
    assert event["until"] - event["t"] <= LEASE_SHARE * granted
    told, next_one = told_before_the_next(pool, a, b, swallowed(proxy))
    figure("told after", told, "s")
    figure("next holder after", next_one, "s")
    assert next_one <= granted + 2 * TICK + LATER
    assert told <= LEASE_SHARE * granted + LATER
    pool.assert_kept()


# --- an outage --------------------------------------------------------------------------------------------------------


def answered_since(moment: float, opcode: int, *proxies: Proxy, timeout: float = 10) -> float:
    """Wait for the first reply to such a request that a client got after a moment; return when it did."""

    def replies() -> list[float]:
        frames = [frame for proxy in proxies for frame in proxy.frames if frame.opcode == opcode and not frame.request]
        return [frame.time for frame in frames if frame.time > moment]

    return min(eventually(replies, timeout, f"no reply to opcode {opcode} within {timeout:g} s"))


@contextlib.contextmanager
def outage(pool: WorkerPool, proxy: Proxy) -> Iterator[float]:
    """Cut the connection and refuse new ones, for the length of the block; yields when it began."""
    began = pool.note("outage", target="A")
    proxy.refuse = True
    proxy.cut_all()
    yield began
    pool.note("heal", target="A")
    proxy.heal()


@pytest.mark.parametrize("session_timeout", [6, 10])
def test_an_outage_shorter_than_the_lease_costs_neither_the_lock_nor_the_work(
    pool: WorkerPool, arena: Zoo, proxy: Proxy, figure: Figure, session_timeout: float
) -> None:
    a = pool.start_one("A", hosts=proxy.address, session_timeout=session_timeout)
    token = a.take(abort_on="lost")["token"]
    before = arena.children("k")
    working = a.work()
    answered_since(time.monotonic(), MULTI, proxy)  # so that all of the lease is left
    with outage(pool, proxy):
        time.sleep(0.3 * session_timeout)
    healed = time.monotonic()
    figure("vouched for after", answered_since(healed, MULTI, proxy) - healed, "s")
    time.sleep(LEASE_SHARE * session_timeout)  # all that there was of the lease at the cut is over
    assert not working.done(), "the work was stopped"
    a.stop_work()
    assert not working.result()["lost"]
    assert arena.children("k") == before
    assert arena.client.exists(f"{arena.base}/k/{before[0]}").czxid == token
    a.release().result()
    pool.assert_kept()


def test_a_hold_is_lost_during_a_long_outage_and_can_be_acquired_again_after_it(
    pool: WorkerPool, proxy: Proxy, figure: Figure
) -> None:
    a = pool.start_one("A", hosts=proxy.address, session_timeout=3)
    before = a.take(abort_on="lost", same_object=True)
    working = a.work()
    with outage(pool, proxy) as began:
        time.sleep(3 * a.session_timeout)
        assert working.done(), "the outage ended before the holder was told"
        told = working.result()
        assert told["lost"]
        figure("told after", told["t"] - began, "s")
        assert told["t"] - began <= LEASE_SHARE * a.session_timeout + LATER
    pool.wait_contenders(0)
    assert not a.check(), "the hold came back to life"
    a.release().result()
    after = a.take(timeout=5, same_object=True)
    assert after["token"] > before["token"]
    a.release().result()
    pool.assert_kept()


@pytest.mark.parametrize("lasting", [False, True], ids=["until healed", "past the session"])
def test_a_release_during_an_outage_returns_in_time_and_frees_the_lock(
    pool: WorkerPool, proxy: Proxy, figure: Figure, lasting: bool
) -> None:
    a = pool.start_one("A", hosts=proxy.address)
    b = pool.start_one("B")
    a.take()
    call = b.acquire(timeout=30)
    pool.wait_contenders(2)
    with outage(pool, proxy) as began:
        released = a.release().result(ROOM + LATER)
        figure("released after", released["t"] - began, "s")
        assert released["t"] - began <= ROOM
        if lasting:
            answer = call.result(30)
            assert answer["t"] - began <= a.session_timeout + 2 * TICK + LATER
        else:
            time.sleep(0.5)
    healed = time.monotonic()
    answer = call.result(30)
    assert answer["granted"]
    figure("next holder after", answer["t"] - (began if lasting else healed), "s")
    if not lasting:
        assert answer["t"] - healed <= LEFT_BEHIND
    pool.assert_kept()


@pytest.mark.timeout(120)
def test_after_a_long_outage_the_session_is_back_within_a_quarter_of_its_timeout(
    pool: WorkerPool, arena: Zoo, proxy: Proxy, figure: Figure
) -> None:
    """With sessions of 2 seconds, 20 seconds are what some minutes are with those of 20 or 30."""
    timeout = 2
    lasts = 10 * timeout
    a = pool.start_one("A", hosts=proxy.address, session_timeout=timeout)
    a.take()
    a.release().result()
    began = pool.note("outage", target="A")
    proxy.upstream = "127.0.0.1:1"  # accepts and resets, so that attempts are seen
    proxy.cut_all()
    attempts = list(connecting(proxy, began + lasts))
    proxy.upstream = arena.address
    healed = pool.note("heal", target="A")
    back = answered_since(healed, CONNECT, proxy, timeout=60)
    figure("attempts", len(attempts))
    figure("longest pause", max(after - before for before, after in itertools.pairwise(attempts)), "s")
    figure("back after", back - healed, "s")
    assert back - healed <= timeout / 4 + LATER, f"away for {back - healed:.2f} s after the heal"
    assert a.take(timeout=1)
    a.release().result()
    pool.assert_kept()


def connecting(proxy: Proxy, until: float) -> Iterator[float]:
    """Yield the times of new connections."""
    while True:
        seen = proxy.connected
        try:
            proxy.wait_for(functools.partial(lambda seen: proxy.connected > seen, seen), until - time.monotonic())
        except TimeoutError:
            return
        yield time.monotonic()


# --- a reply or a request that is lost --------------------------------------------------------------------------------


@pytest.mark.parametrize("busy", [False, True], ids=["free", "held"])
def test_a_create_whose_reply_is_lost_leaves_one_contender_that_is_granted_once(
    pool: WorkerPool, arena: Zoo, proxy: Proxy, figure: Figure, busy: bool
) -> None:
    arena.client.ensure_path(f"{arena.base}/k")  # or the first create is one without a parent
    a, b = pool.start_one("A"), pool.start_one("B", hosts=proxy.address)
    if busy:
        a.take()
    faults = lose_reply(proxy, CREATE, CREATE2)
    began = pool.note("lose the reply to a create", target="B")
    call = b.acquire(timeout=10)
    hit(*faults)
    if busy:
        eventually(lambda: proxy.connections == 1)
        pool.wait_contenders(2)
        a.release().result()
    answer = call.result(15)
    assert answer["granted"]
    figure("granted after", answer["t"] - began, "s")
    assert len(pool.wait_contenders(1)) == 1
    assert b.check()
    b.release().result()
    pool.wait_contenders(0, timeout=LEFT_BEHIND)
    pool.assert_kept()


@pytest.mark.convicts_kazoo
def test_who_gave_up_waiting_leaves_the_queue_though_its_delete_never_arrived(
    pool: WorkerPool, arena: Zoo, proxy: Proxy, figure: Figure
) -> None:
    a, b = pool.start_one("A"), pool.start_one("B", hosts=proxy.address)
    a.take()
    fault = proxy.kill_before_op(DELETE)
    answer = b.acquire(timeout=1).result()
    assert not answer["granted"]
    hit(fault)  # later, because ours makes no caller wait for it
    eventually(
        lambda: len(arena.children("k")) == 1, LEFT_BEHIND, "the contender of the one who gave up stays in the queue"
    )
    figure("gone after", time.monotonic() - answer["t"], "s")
    a.release().result()
    pool.assert_kept()


def test_a_release_whose_reply_is_lost_is_a_release(pool: WorkerPool, proxy: Proxy, figure: Figure) -> None:
    a, b = pool.start_one("A", hosts=proxy.address), pool.start_one("B")
    a.take()
    call = b.acquire(timeout=10)
    pool.wait_contenders(2)
    fault = proxy.kill_after_op(DELETE)
    began = pool.note("lose the reply to a delete", target="A")
    releasing = a.release()
    answer = call.result(15)
    hit(fault)
    assert answer["granted"]
    figure("next holder after", answer["t"] - began, "s")
    assert answer["t"] - began <= 1
    released = releasing.result()
    assert not released["error"]
    assert released["t"] - began <= ROOM
    b.release().result()
    pool.wait_contenders(0, timeout=LEFT_BEHIND)
    pool.assert_kept()


# --- those ahead ------------------------------------------------------------------------------------------------------


@pytest.mark.convicts_kazoo
def test_those_ahead_may_vanish_one_by_one_without_moving_a_waiters_deadline(
    pool: WorkerPool, arena: Zoo, figure: Figure
) -> None:
    b = pool.start_one("B")
    ahead = [
        arena.client.create(f"{arena.base}/k/{uuid.uuid4().hex}__lock__", ephemeral=True, sequence=True, makepath=True)
        for _ in range(7)  # as kazoo's lock names them, which ours respects
    ]
    call = b.acquire(timeout=1.5)
    pool.wait_contenders(8)
    began = next(event["t"] for event in pool.history() if event["e"] == "invoke")
    for place, gone in enumerate(reversed(ahead[1:]), start=1):
        time.sleep(max(0.0, began + place * 0.7 - time.monotonic()))  # a pace, from the nearest to the second
        pool.note("vanish", path=gone)
        arena.client.delete(gone)
    answer = call.result()
    took = answer["t"] - began
    figure("gave up after", took, "s")
    assert not answer["granted"]
    assert 1.5 <= took <= 1.5 + ROOM, f"waited for {took:.2f} s, not for 1.5 s"
    arena.client.delete(ahead[0])
    pool.assert_kept()


# --- a host that is dead ----------------------------------------------------------------------------------------------


@pytest.mark.timeout(90)
@firewall.needs_firewall
def test_a_dead_host_in_the_list_costs_no_session(pool: WorkerPool, arena: Zoo, proxy: Proxy, figure: Figure) -> None:
    """Its packets are dropped, so that each try to connect to it takes as long as it is given."""
    timeout = 8
    with firewall.dead_host("127.9.9.1") as dead, Proxy(arena.address) as other:
        a = pool.start_one("A", hosts=f"127.9.9.1:2181,{proxy.address},{other.address}", session_timeout=timeout)
        a.take(abort_on="lost")
        session = a.ask("session")["id"]
        before = arena.children("k")
        slowest = 0.0
        for _ in range(5):
            cut = pool.note("cut", target="A")
            proxy.cut_all()
            other.cut_all()
            back = answered_since(cut, CONNECT, proxy, other, timeout=3 * timeout)
            slowest = max(slowest, back - cut)
            assert back - cut <= timeout / 2, f"{back - cut:.2f} s without a connection"
            assert a.check()
            time.sleep(timeout / 4)  # for the lease to be whole again
        if not dead.hits:
            raise RuntimeError("no connection to the dead host was tried")
        figure("back after", slowest, "s")
        assert a.ask("session")["id"] == session
        assert arena.children("k") == before
        a.release().result()
        pool.assert_kept()
