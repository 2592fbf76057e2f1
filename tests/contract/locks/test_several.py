"""Several locks taken as one: all or none, in one order, under one deadline, however they are taken and struck."""

import asyncio
import contextlib
import threading
import time

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from support.faults import BackgroundCall, acquire_once, expire, results, session, within
from support.primitives import KEY, queued
from support.proxy import CREATE2, CREATE_CONTAINER, DELETE, GET_DATA
from support.work import acquired, assert_refused, in_each_thread
from support.zoo import eventually

from django_zklock import Lock, current_hold, zk_lock, zk_locks
from django_zklock.core.locks import acquisition
from django_zklock.core.protocol.contender import Contender
from django_zklock.exceptions import (
    InvalidLockName,
    LockBusy,
    LockLost,
    LockNotHeld,
    LockTimeout,
    LockUpgradeRefused,
    ZooKeeperUnavailable,
)
from django_zklock.locks.multi import MultiHold
from django_zklock.operations import request_release


def test_several_locks_are_acquired_in_the_order_of_their_keys(zoo):
    for key in ("a", "b/1", "c"):
        zoo.client.ensure_path(f"{zoo.base}/{key}")
    with zk_locks("c", "a", "b/{x}", "a", fields={"x": 1}) as hold:
        assert hold.keys == tuple(single.key for single in hold) == ("a", "b/1", "c")
        tokens = [single.token for single in hold]
        assert tokens == sorted(tokens)
        assert all(len(zoo.children(key)) == 1 for key in hold.keys)
        assert 0 < hold.lease_remaining <= min(single.lease_remaining for single in hold) + 1
    zoo.assert_empty(0)


def test_each_hold_of_several_is_found_by_its_name_or_key(zoo):
    with zk_locks("c", "b/{x}", fields={"x": 1}) as hold:
        assert hold["b/1"] == hold["b/{x}"] == current_hold("b/1")
        assert current_hold() == hold["c"]
        assert "c" in hold
        assert "d" not in hold


def test_a_hold_of_several_tells_its_state(zoo):
    with zk_locks("c", "a") as hold:
        hold.check()
        assert not hold.lost
        assert repr(hold) == "<MultiHold of 'a', 'c', held>"
    with pytest.raises(LockNotHeld):
        hold.check()
    assert repr(hold).endswith(" released>")


def test_several_locks_are_released_if_one_is_busy(zoo):
    with zoo.hold_elsewhere("b"):
        busy = assert_refused(zk_locks("c", "b", "a", timeout=0), LockBusy, "'b'")
        assert busy.lock == "b"
        with zk_lock("a", timeout=0), zk_lock("c", timeout=0):
            pass
    with queued(zoo, Lock("c", what="the other work"), key="c") as (other,):
        other.wait_granted()
        message = r"'a', 'c'.*'c' was not free.*the other work"
        with pytest.raises(LockTimeout, match=message) as late, within(2), zk_locks("c", "a", timeout=1.5):
            pass
        assert late.value.lock == "c"
        assert late.value.ahead is not None
        assert late.value.ahead.what == "the other work"
        acquire_once("a", timeout=0)


def test_several_locks_share_one_deadline(zoo):
    def deadlines():
        return {observer.deadline or 0 for observer in session().observers if isinstance(observer, Contender)}

    with zoo.hold_elsewhere("b"):
        with zoo.hold_elsewhere("a"):
            waiter = BackgroundCall(lambda: acquire_once(zk_locks("a", "b", timeout=30)))
            zoo.wait_contenders("a", 2)
            (deadline,) = deadlines()
            time.sleep(1.2)
        zoo.wait_contenders("b", 2)
        assert max(deadlines()) < deadline + 1
    waiter.result()


def test_acquire_and_release_of_several_locks_are_all_or_nothing(zoo):
    lock = zk_locks("b", "a")
    with zoo.hold_elsewhere("b"):
        assert lock.acquire(blocking=False) is None
        assert lock.acquire(timeout=0.2) is None
        assert not zk_lock("a").locked()
        assert lock.locked()
        with pytest.raises(LockNotHeld):
            lock.release()
    hold = lock.acquire()
    assert isinstance(hold, MultiHold)
    assert lock.acquire()
    zk_lock("a").release()
    zk_lock("a").acquire()
    lock.release()
    hold.check()
    lock.release()
    zoo.assert_empty(0)
    assert not lock.locked()
    with pytest.raises(ValueError, match="non-blocking"):
        lock.acquire(False, 1)
    assert lock.acquire()
    zk_lock("b").release()
    with pytest.raises(LockNotHeld):
        lock.release()
    zk_lock("a").release()


def test_blocks_of_one_and_of_several_locks_nest(zoo):
    both = zk_locks("a", "b")
    with zk_lock("b") as outer, both as hold, zk_lock("a"), both:
        assert hold["b"].token == outer.token
    zoo.assert_empty(0)
    with zk_lock("b"), pytest.raises(LockBusy, match="not reentrant"), zk_locks("a", "b", reentrant=False):
        pass
    zoo.assert_empty(0)


def test_a_release_request_to_one_of_several_locks_is_seen(zoo):
    with zk_locks("a", "b") as hold:
        assert hold.release_requested is None
        request_release("b", "deploy 42", by="anna")
        request = eventually(lambda: hold.release_requested)
        assert request is not None
        assert (request.by, request.reason) == ("anna", "deploy 42")


def test_coroutines_acquire_several_locks(zoo):
    async def main():
        async with zk_locks("b", "a") as hold, zk_locks("a"):
            assert hold.keys == ("a", "b")
            hold.check()
        lock = zk_locks("a", "b")
        assert await lock.aacquire(timeout=20)
        assert await lock.alocked()
        await lock.arelease()
        assert not await lock.alocked()
        assert_refused(lock, SynchronousOnlyOperation)
        with pytest.raises(SynchronousOnlyOperation):
            lock.acquire()
        with pytest.raises(SynchronousOnlyOperation):
            async with zk_locks("a", atomic=True):
                pass

        async def wait():
            async with zk_locks("a", "b", timeout=None):
                pass

        with zoo.hold_elsewhere("b"):
            with pytest.raises(LockBusy):
                async with zk_locks("a", "b", timeout=0):
                    pass
            assert await lock.aacquire(blocking=False) is None
            task = asyncio.create_task(wait())
            while len(zoo.children("b")) != 2:
                await asyncio.sleep(0.01)
            assert zoo.children("a")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            zoo.wait_contenders("b", 1, timeout=2)
            zoo.wait_contenders("a", 0, timeout=2)

    asyncio.run(main())
    zoo.assert_empty()


def test_the_loss_of_one_of_several_locks_stops_the_work_and_releases_all(zoo):
    reported = []
    for key in ("a", "b", "c"):
        with pytest.raises(LockLost) as lost, zk_locks("a", "b", "c") as hold:
            hold.add_lost_callback(lambda single: reported.append(single.key))
            zoo.client.delete(hold[key].path)
            with within(3):
                threading.Event().wait(10)
        assert lost.value.lock == key
        assert hold.lost
        zoo.assert_empty()
    eventually(lambda: reported == ["a", "b", "c"])


def test_opposite_orders_of_names_never_deadlock(zoo):
    """Nor do three that need two each of three."""

    def acquire(*keys):
        for _ in range(40):
            acquire_once(zk_locks(*keys, timeout=None))

    takers = [BackgroundCall(lambda keys=keys: acquire(*keys)) for keys in ("ab", "ba", "bc", "ca")]
    results(takers, 60)
    zoo.assert_empty(0)


def acquire_by_method(lock):
    acquired(lock).check()
    lock.release()


async def acquire_by_async_block(lock):
    async with lock as hold:
        hold.check()


async def acquire_by_async_method(lock):
    hold = await lock.aacquire(timeout=10)
    assert hold
    hold.check()
    await lock.arelease()


WAYS = (acquire_once, acquire_by_method, acquire_by_async_block, acquire_by_async_method)


@in_each_thread
@pytest.mark.parametrize(
    ("acquire", "lose"),
    [*((way, lambda zoo: zoo.delete("a")) for way in WAYS), (acquire_once, expire)],
    ids=lambda call: call.__name__,
)
def test_a_lock_lost_before_the_last_grant_is_acquired_again(
    zoo,
    acquire,
    lose,
    run,
):
    """Nobody need hear of it, as nothing was done under it."""

    def lose_while_the_other_is_busy():
        with zoo.hold_elsewhere("b"):
            held.set()
            zoo.wait_contenders("b", 2)
            lose(zoo)

    def acquire_both():
        acquiring = acquire(zk_locks("a", "b", timeout=20))
        if asyncio.iscoroutine(acquiring):
            asyncio.run(acquiring)

    held = threading.Event()
    thief = BackgroundCall(lose_while_the_other_is_busy)
    assert held.wait(10)
    run(acquire_both)
    thief.result()


def test_a_lock_lost_when_no_time_remains_is_not_acquired_again(zoo, warm_proxy, monkeypatch):
    monkeypatch.setattr(acquisition, "REPLY_TIMEOUT", 30)
    warm_proxy.delay_op(CREATE_CONTAINER, 0.5)
    locks = zk_locks(zk_lock(KEY, max_hold=0.2), "without/directory", timeout=0.1)
    assert_refused(locks, ZooKeeperUnavailable, r"max_hold.* Not all locks were acquired yet\.")
    warm_proxy.heal()


def test_the_options_of_each_lock_are_its_own(zoo):
    locks = {"stock": {"path": "stock/{sku}", "grace": 1, "timeout": 0}, "till": {"path": "till", "abort_on": "never"}}
    with zoo.configured(LOCKS=locks, DEFAULTS={"timeout": 7}):
        lock = zk_locks("till", "stock", fields={"sku": 5}, warn_after=3)
        assert lock.keys == ("stock/5", "till")
        stock, till = (single.spec for single in lock.locks)
        assert (stock.policy.grace, till.policy.abort_on) == (1, "never")
        assert (stock.warn_after, till.warn_after) == (3, 3)
        own = zk_locks(zk_lock("stock", fields={"sku": 5}), "till", abort_on="lost")
        assert [lock.spec.policy.abort_on for lock in own.locks] == ["suspended", "lost"]
        with lock as hold:
            assert hold["stock"] == hold["stock/5"]


def test_the_timeout_of_several_is_that_of_the_call_or_the_shortest_of_the_settings(zoo):
    with zoo.configured(LOCKS={"stock": {"path": "stock", "timeout": 0}}, DEFAULTS={"timeout": 7}):
        assert zk_locks("stock", "a").specs[0].timeout == 0
        assert zk_locks("a").specs[0].timeout == 7
        assert zk_locks("stock", timeout=None).specs[0].timeout is None
    with zoo.configured():
        assert zk_locks("a").specs[0].timeout == 5


def test_one_key_with_two_sets_of_options_is_refused(zoo):
    for options in ({"max_hold": 1}, {"abort_on": "never"}, {"what": "the other work"}):
        twice = zk_locks("a", zk_lock("a", **options))
        assert_refused(twice, ValueError, "'a' is requested twice, with another .*. Pass it once")


def test_several_locks_are_skipped_if_one_of_them_is(zoo):
    with zoo.hold_elsewhere("a"), zk_locks(zk_lock("a", timeout=0), zk_lock("b", on_conflict="skip")) as hold:
        assert hold is None


def test_the_release_of_all_locks_is_decided_together(zoo):
    locks = zk_locks(zk_lock("a"), zk_lock("b", release_on="exit"), "c", release_on="commit")
    assert {spec.release_on for spec in locks.specs} == {"commit"}


def test_a_key_named_for_reading_and_writing_is_write_locked(zoo):
    write, read = zk_lock("a", kind="write"), zk_lock("a", kind="read")
    assert zk_locks(read, read, write).locks == zk_locks(write, read).locks == (write,)
    assert zk_locks(read, "a").locks[0].spec.kind.name == "LOCK"
    assert zk_locks(write, "a").locks == (write,)
    with pytest.raises(ValueError, match="requested twice"):
        zk_locks(read, zk_lock("a", limit=2)).keys  # noqa: B018 - it is looked at there


def test_several_locks_may_be_of_different_kinds(zoo):
    reading, permit = zk_lock("a", kind="read"), zk_lock("b", limit=2)
    with zk_locks("c", permit, reading) as hold:
        assert [single.kind for single in hold] == ["read", "semaphore", "lock"]
        others = zk_locks(zk_lock("a", kind="read"), zk_lock("b", limit=2), timeout=30)
        BackgroundCall(lambda: acquire_once(others)).result()
        writer = zk_locks(zk_lock("a", kind="write"), "d", timeout=0)
        assert_refused(writer, LockUpgradeRefused)
        with pytest.raises(LockBusy, match="'a'"):
            BackgroundCall(lambda: acquire_once(writer)).result()
    with zk_lock("a", kind="write") as outer, zk_locks(reading, "c") as hold:
        assert hold["a"].token == outer.token
    with pytest.raises(LockLost), zk_lock("a", kind="write", abort_on="never") as outer:
        zoo.client.delete(outer.path)
        outer.wait_lost(5)
        with within(2), zk_locks(reading, "c", timeout=20):
            pass


def test_several_locks_with_an_invalid_name_are_refused_at_once(zoo):
    with pytest.raises(InvalidLockName):
        zk_locks()
    assert_refused(zk_locks("a", "b/{x}", fields={"x": ".."}), InvalidLockName)
    with contextlib.suppress(InvalidLockName):
        zk_locks("a", "").acquire()
    zoo.assert_empty(0)


def test_several_locks_share_one_reply_timeout(zoo):
    with zoo.configured("127.0.0.1:1"), within(1.0), pytest.raises(ZooKeeperUnavailable):
        zk_locks("a", "b", "c").acquire(blocking=False)


KEYS = tuple("abcdefghijk")


@pytest.fixture
def counted(zoo, warm_proxy):
    for key in KEYS:
        zoo.client.ensure_path(f"{zoo.base}/{key}")
    return warm_proxy


@pytest.mark.parametrize("timeout", [5, 0])
def test_each_free_lock_of_several_costs_one_round_trip_more_than_alone(counted, timeout):
    """A try peeks first, as that of a single lock. All releases are sent together."""
    with zk_locks(*KEYS, timeout=timeout) as hold:
        tokens = [single.token for single in hold]
        assert tokens == sorted(tokens)
        assert counted.round_trips() <= len(KEYS) * (1 if timeout else 2)
    counted.wait_for(lambda: sum(frame.opcode == DELETE and not frame.request for frame in counted.frames) == len(KEYS))
    assert counted.counts[CREATE2] == len(KEYS)


@pytest.mark.parametrize("busy", ["a", "f"])
def test_a_failed_try_of_several_locks_leaves_nothing_and_enters_no_larger_queue(zoo, counted, busy):
    with zoo.hold_elsewhere(busy):
        counted.reset()
        assert assert_refused(zk_locks(*KEYS, timeout=0), LockBusy, f"'{busy}'").lock == busy
        assert counted.counts[CREATE2] == KEYS.index(busy)
        eventually(lambda: [key for key in KEYS if zoo.children(key)] == [busy])
    acquire_once(zk_locks(*KEYS, timeout=0))


@pytest.mark.parametrize("busy", ["a", "e", "k"])
def test_a_caller_that_waits_is_in_queues_of_smaller_keys_only(zoo, counted, busy):
    with zoo.hold_elsewhere(busy):
        taker = BackgroundCall(lambda: acquire_once(zk_locks(*KEYS, timeout=20)))
        zoo.wait_contenders(busy, 2)
        counted.wait_for(lambda: counted.counts[GET_DATA] >= 2)
        assert [key for key in KEYS if zoo.children(key)] == [key for key in KEYS if key <= busy]
        assert counted.counts[CREATE2] == KEYS.index(busy) + 1
        others = [key for key in KEYS if key > busy]
        if others:
            acquire_once(zk_locks(*others, timeout=0))
    taker.result()
    zoo.assert_empty()


def test_several_locks_whose_directories_are_missing_are_acquired(zoo):
    for timeout in (0, 5):
        keys = [f"new-{timeout}/{key}" for key in KEYS]
        for _ in range(2):
            with zk_locks(*keys, timeout=timeout) as hold:
                assert hold.keys == tuple(keys)
    zoo.assert_empty()
