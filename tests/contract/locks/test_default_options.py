"""A limit, a side or a transaction that the settings say for all locks, and locks that are something else."""

import asyncio

import pytest
from django.test import override_settings
from support.faults import BackgroundCall
from support.work import assert_refused, seen

from django_zklock import ReadWriteLock, zk_leader, zk_lock, zk_locked, zk_locks
from django_zklock.exceptions import LockBusy


def settings(zoo, **defaults):
    locks = {"side": {"path": "k", "kind": "write"}, "pool": {"path": "k", "limit": 2}}
    locks["together"] = {"path": "k", "atomic": True}
    return override_settings(ZKLOCK=zoo.settings(DEFAULTS=defaults, LOCKS=locks))


def wants(key):
    return seen(key).holders[0].kind


async def acquired_in_a_coroutine(lock):
    return await lock.aacquire()


@pytest.mark.parametrize(
    ("settings_of_locks", "make"),
    [
        ({}, lambda: zk_lock("k", timeout=0.2)),
        ({}, lambda: zk_locks("k", "l", timeout=0.2)),
        ({}, lambda: zk_locks(zk_lock("k", timeout=0.2), "l")),
        ({"LOCKS": {"entry": {"path": "k", "timeout": 0.2}}}, lambda: zk_lock("entry")),
        ({"DEFAULTS": {"timeout": 0.2}}, lambda: zk_lock("k")),
    ],
)
def test_a_call_without_a_timeout_waits_as_long_as_the_lock_says(zoo, settings_of_locks, make):
    with zoo.hold_elsewhere("k"), override_settings(ZKLOCK=zoo.settings(**settings_of_locks)):
        assert BackgroundCall(lambda: make().acquire()).result(20) is None
        assert asyncio.run(acquired_in_a_coroutine(make())) is None


def test_a_call_without_any_timeout_waits_without_limit(zoo):
    """So does one with -1, whatever the lock says: as in `threading`."""
    for acquire in (zk_lock("k").acquire, lambda: zk_lock("k", timeout=0).acquire(timeout=-1)):
        with zoo.hold_elsewhere("k"):
            waiter = BackgroundCall(lambda acquire=acquire: acquire().release())
            zoo.wait_contenders("k", 2)
        waiter.result()


def test_read_and_write_locks_ignore_a_default_limit(zoo):
    with settings(zoo, limit=3):
        lock = ReadWriteLock("k")
        with lock.read(), zk_lock("k", kind="read"):
            assert wants("k") == "read"
        with lock.write():
            assert wants("k") == "write"
        with zk_lock("side"):
            assert wants("k") == "write"
        assert zk_locked("k", kind="read")(lambda: wants("k"))() == "read"
        with zk_lock("l"):
            assert wants("l") == "semaphore"


def test_an_explicit_plain_lock_ignores_a_default_limit(zoo):
    with settings(zoo, limit=3), zk_lock("k", kind="lock"):
        assert wants("k") == "lock"


def test_a_semaphore_ignores_a_default_kind(zoo):
    with settings(zoo, kind="read"):
        for lock in (zk_lock("pool"), zk_lock("k", limit=2)):
            with lock:
                assert wants("k") == "semaphore"


@pytest.mark.parametrize("defaults", [{"limit": 3}, {"kind": "read"}, {"atomic": True}], ids=str)
def test_an_election_ignores_default_kind_and_limit(zoo, defaults):
    with settings(zoo, **defaults):
        with zk_leader("lead"):
            assert wants("lead") == "lock"
            assert_refused(zk_lock("lead", kind="lock", atomic=False, timeout=0, reentrant=False), LockBusy)
        for name in ("pool", "side", "together"):
            assert_refused(zk_leader(name), ValueError, f'LOCKS"]."{name}". sets (kind|limit|atomic)')
