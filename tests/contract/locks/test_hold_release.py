"""`hold.release()` ends the acquisition that returned the hold, from any thread, once; it never frees a newer hold."""

import asyncio
import contextlib
import gc
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.faults import due, expire
from support.primitives import KEY
from support.strike import LineStrike, functions_of
from support.work import acquired, in_each_thread, lose, run_in_thread
from support.zoo import eventually

from django_zklock import current_hold, zk_lock, zk_locked, zk_locks, zk_read, zk_write
from django_zklock.core.locks.acquisition import Acquisition
from django_zklock.core.locks.held import HeldLock, HeldLocks, held_locks
from django_zklock.exceptions import LockLost, LockNotHeld
from django_zklock.locks.hold import _Notifier, held_of


def is_free(key=KEY):
    return not run_in_thread(zk_lock(key).locked)


@in_each_thread
def test_a_hold_is_released_once_from_any_thread(zoo, primitive, run):
    lock = primitive.lock()
    hold = acquired(lock)
    run(hold.release)
    assert hold.state == "released"
    assert not lock.owned()
    assert held_locks.kept() == held_locks.all() == []
    for again in (hold.release, hold.check, lock.release):
        with pytest.raises(LockNotHeld):
            again()
    primitive.wait_released(zoo)
    zoo.assert_empty()


@in_each_thread
def test_each_acquisition_of_an_owner_has_its_own_hold(zoo, run):
    holds = [acquired(zk_lock(KEY)) for _ in range(4)]
    zk_lock(KEY).release()
    with pytest.raises(LockNotHeld):
        holds[3].release()
    for released in (1, 0):
        run(holds[released].release)
        assert holds[released].state == "released"
        with pytest.raises(LockNotHeld):
            run(holds[released].release)
        assert current_hold(KEY).token == holds[2].token
        assert not is_free()
        holds[2].check()
    zk_lock(KEY).release()
    with pytest.raises(LockNotHeld):
        run(holds[2].release)
    zoo.assert_empty()


def test_the_hold_of_a_block_is_released_by_its_owner_only(zoo):
    with zk_lock(KEY) as hold:
        inner, kept = acquired(zk_lock(KEY)), acquired(zk_lock("kept", release_on="commit"))
        for of_owner in (hold, current_hold("kept")):
            with pytest.raises(LockNotHeld, match="Only its owner"):
                run_in_thread(of_owner.release)
        kept.release()
        run_in_thread(inner.release)
        hold.check()
    zoo.assert_empty()


# --- inside a block ---------------------------------------------------------------------------------------------------


def test_a_release_inside_a_block_is_its_early_end(zoo, primitive):
    with primitive.lock() as hold:
        hold.release()
        primitive.wait_released(zoo)
        assert not primitive.lock().owned()
        for late in (
            hold.check,
            hold.release,
            hold.signed_token,
            primitive.lock().release,
            current_hold,
        ):
            with pytest.raises(LockNotHeld):
                late()
        with primitive.lock() as newer:
            assert newer.token != hold.token or primitive.lock().spec.linger
    assert not held_locks.all()


async def test_a_release_inside_an_async_block_is_its_early_end(zoo):
    async with zk_lock(KEY) as hold:
        await hold.arelease()
        with pytest.raises(LockNotHeld):
            hold.check()
    async with zk_lock(KEY):
        await current_hold().arelease()
    zoo.assert_empty()


@in_each_thread
def test_no_loss_after_an_early_end_reaches_the_block(zoo, run):
    def work():
        with zk_lock(KEY, max_hold=0.3) as hold:
            hold.release()
            expire(zoo)
            eventually(lambda: held_of(hold).grant.why_invalid() is not None)
            due(0)
        return "done"

    assert run(work) == "done"


def test_a_loss_before_the_early_end_is_told_by_the_release(zoo):
    with pytest.raises(LockLost), zk_lock(KEY, max_hold=60) as hold:
        with contextlib.suppress(BaseException):
            lose(hold)
            assert hold.wait_lost(10)
            threading.Event().wait(1)
        with pytest.raises(LockLost):
            hold.release()
    zoo.assert_empty()


def test_an_error_after_the_early_end_leaves_the_block(zoo):
    with pytest.raises(KeyError), zk_lock(KEY) as hold:
        hold.release()
        raise KeyError
    zoo.assert_empty()


def test_several_locks_may_be_released_one_by_one_inside_their_block(zoo):
    with zk_locks("a", "b") as several:
        current_hold("a").release()
        assert is_free("a")
        assert not is_free("b")
        several.release()
        assert is_free("b")
        with pytest.raises(LockNotHeld):
            several.release()
    zoo.assert_empty()


@pytest.mark.parametrize("release", ["hold", "current_hold", "lock"])
def test_a_release_inside_an_inner_block_ends_only_that(zoo, release):
    lock = zk_lock(KEY)
    with lock as outer:
        with zk_lock(KEY) as inner:
            {"hold": inner.release, "current_hold": lambda: current_hold().release(), "lock": lock.release}[release]()
            with pytest.raises(LockNotHeld):
                inner.release()
            outer.check()
        outer.check()
        assert not is_free()
        with zk_lock(KEY) as again:
            again.release()
        outer.check()
        outer.release()
        assert is_free()
    zoo.assert_empty()


def test_a_writer_that_reads_releases_the_one_or_the_other(zoo):
    with zk_write(KEY) as write:
        with zk_read(KEY) as read:
            read.release()
            write.check()
        with zk_read(KEY) as read:
            write.release()
            read.check()
    assert not held_locks.all()


def test_a_locked_function_may_release_its_lock_early(zoo):
    @zk_locked(KEY)
    def work():
        current_hold().release()
        return is_free()

    assert work()
    zoo.assert_empty()


def test_a_block_outlives_the_hold_of_an_acquisition_around_it(zoo):
    hold = acquired(zk_lock(KEY))
    with zk_lock(KEY) as inner:
        hold.release()
        inner.check()
        with pytest.raises(LockNotHeld):
            hold.release()
    assert hold.state == inner.state == "released"
    zoo.assert_empty()


def test_the_release_of_several_skips_what_has_ended(zoo):
    first, several = acquired(zk_lock("a")), acquired(zk_locks("a", "b"))
    zk_lock("a").release()
    several.release()
    first.check()
    first.release()
    zoo.assert_empty()


@in_each_thread
def test_the_release_of_several_ends_all(zoo, run):
    hold = acquired(zk_locks("b", "a"))
    run(hold["a"].release)
    assert is_free("a")
    assert not is_free("b")
    run(hold.release)
    with pytest.raises(LockNotHeld):
        run(hold.release)
    zoo.assert_empty()


def test_a_write_hold_that_another_thread_releases_leaves_its_owner_a_reader_alone(zoo):
    write, read = acquired(zk_write(KEY)), acquired(zk_read(KEY))
    run_in_thread(write.release)
    with pytest.raises(LockNotHeld):
        write.release()
    assert run_in_thread(lambda: zk_read(KEY).acquire(blocking=False)) is None
    read.check()
    read.release()
    zoo.assert_empty()


def test_a_hold_outlives_its_thread(zoo):
    hold = run_in_thread(lambda: acquired(zk_lock(KEY, release_on="commit")))
    with ThreadPoolExecutor(1) as pool:
        pooled = pool.submit(lambda: acquired(zk_lock("pooled"))).result()
        for left in (hold, pooled):
            left.check()
            left.release()
            with pytest.raises(LockNotHeld):
                left.release()
    zoo.assert_empty()


@pytest.mark.parametrize("lock", [zk_lock(KEY, max_hold=0.2), zk_lock(KEY, max_hold=0.2, linger=0.05)])
def test_an_expired_hold_does_not_stop_its_thread(zoo, lock):
    expired = acquired(lock)
    assert expired.wait_lost(10)
    for same in (lock.acquire, lock.__enter__):
        with pytest.raises(LockLost, match="max_hold"):
            same()
    newer = acquired(zk_lock(KEY))
    assert newer.token != expired.token
    assert expired.state == "lost"
    with pytest.raises(LockLost, match="max_hold"):
        run_in_thread(expired.release)
    with pytest.raises(LockNotHeld):
        expired.release()
    newer.check()
    assert not is_free()
    with zk_lock(KEY) as hold:
        assert hold.token == newer.token
    newer.release()
    eventually(lambda: not zoo.contenders())


def test_an_expired_hold_of_a_writer_that_reads_does_not_stop_its_thread(zoo):
    """Both are dropped, or the read lock would wait for the write lock of its own owner."""
    write, read = acquired(zk_write(KEY)), acquired(zk_read(KEY))
    lose(write)
    assert write.wait_lost(10)
    newer = acquired(zk_write(KEY)), acquired(zk_read(KEY))
    for lost in (read, write):
        with pytest.raises(LockLost):
            lost.release()
    for hold in newer:
        hold.check()
        hold.release()
    zoo.assert_empty()


@pytest.mark.parametrize("in_stack", [False, True])
def test_a_lost_block_around_is_still_told(zoo, in_stack):
    """A block, and a transaction, must not go on under a lock that another lock object has acquired again."""
    lock = zk_lock(KEY, abort_on="never")
    stack = contextlib.ExitStack()
    with pytest.raises(LockLost), stack if in_stack else lock as block:
        hold = stack.enter_context(lock) if in_stack else block
        lose(hold)
        assert hold.wait_lost(10)
        with pytest.raises(LockLost):
            zk_lock(KEY).acquire()
        hold.check()
    zoo.assert_empty()


async def test_a_task_releases_the_hold_of_another_one(zoo):
    lock = zk_lock(KEY)

    async def acquire():
        hold = await lock.aacquire()
        assert hold
        return hold

    for release in ("task", "thread"):
        hold = await asyncio.create_task(acquire())
        if release == "task":
            await hold.arelease()
        else:
            await asyncio.to_thread(hold.release)
        with pytest.raises(LockNotHeld):
            await hold.arelease()
    hold = await asyncio.to_thread(lambda: run_in_thread(lambda: acquired(lock)))
    await hold.arelease()
    assert not await lock.alocked()
    zoo.assert_empty()


def test_a_wait_that_has_ended_leaves_nothing_at_the_hold(zoo):
    with zk_lock(KEY) as hold:
        assert not hold.wait_lost(timeout=0.01)
        due(0)
        assert not any(isinstance(value, _Notifier) for value in gc.get_objects())


def test_no_order_of_releases_frees_a_newer_hold(zoo):
    for seed in range(40):
        choose = random.Random(seed)
        live = []
        old = []
        for _ in range(12):
            act(f"key/{seed}", choose, live, old)
            for hold in live:
                hold.check()
            assert not live or not is_free(f"key/{seed}"), seed
        for hold in live:
            hold.release()
        for hold in old:
            with pytest.raises((LockNotHeld, LockLost)):
                hold.release()
            with pytest.raises(LockNotHeld):
                hold.release()
    eventually(lambda: not zoo.contenders())


def act(key, choose, live, old):
    """Acquire, or release one of the `live` or of the `old` holds, or lose all: what chance says."""
    run = choose.choice([lambda call: call(), run_in_thread])
    action = choose.choice(["acquire", "acquire", "release", "late", "late", "lose"])
    if action == "acquire":
        lock = choose.choice([zk_lock, zk_write])(key, linger=choose.choice([0, 0, 0.05]))
        if not live or lock.spec.kind.word == live[0].kind:
            live.append(acquired(lock))
    elif action == "release" and live:
        old.append(live.pop(choose.randrange(len(live))))
        run(old[-1].release)
    elif action == "late" and old:
        with pytest.raises((LockNotHeld, LockLost)):
            run(choose.choice(old).release)
    elif action == "lose" and live:
        lose(live[0])
        assert live[0].wait_lost(10)
        old += live
        live.clear()


class ReleasedAt(LineStrike):
    """Releases a hold in another thread at one line of this one."""

    def __init__(self, hold, at):
        super().__init__(functions_of(HeldLock, HeldLocks, Acquisition._acquire_again), at)
        self._hold = hold

    def strike(self):
        run_in_thread(self._hold.release)


@pytest.mark.parametrize(("kind", "lock"), [(zk_lock, zk_lock(KEY)), (zk_write, zk_read(KEY))])
def test_a_release_elsewhere_at_any_line_of_the_owner(zoo, kind, lock):
    for acquires in (True, False):
        at, where = 0, "."
        while where:
            hold = acquired(kind(KEY))
            newer = None if acquires else acquired(lock)
            with ReleasedAt(hold, at) as strike:
                if newer is None:
                    newer = acquired(lock)
                else:
                    newer.release()
            at, where = at + 1, strike.where
            if acquires:
                newer.check()
                assert lock.owned(), where
                newer.release()
            if not where:
                hold.release()
            assert not held_locks.kept(), where
        assert at > 5
    zoo.assert_empty()
