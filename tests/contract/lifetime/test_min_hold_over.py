"""An operator hold that is over, and whose process has ended: while it is in the queue, it is not shown as a holder."""

import asyncio
import time
import uuid

import pytest
from support.faults import acquire_once
from support.locking import as_json, ending, zklock
from support.proxy import GET_DATA, MULTI
from support.zoo import eventually

from django_zklock import Lock, zk_lock, zk_locks
from django_zklock.core.protocol import operator_holds
from django_zklock.core.zk import process
from django_zklock.inspection import look_at, snapshot
from django_zklock.management.exit_codes import ExitCode
from django_zklock.operations import hold_lock

pytestmark = pytest.mark.usefixtures("emptied")

SHORT = 1.5  # seconds
LONG = 600.0


def by_operator(key, seconds):
    hold_lock(key, seconds=seconds, reason="deploy 42", by="anna")


def by_rest(key, seconds):
    acquire_once(Lock(key, min_hold=seconds, what="nightly"))


def strand(key, seconds, acquire=by_rest):
    acquire(key, seconds)
    process.reset()


either_hold = pytest.mark.parametrize("acquire", [by_operator, by_rest])


@pytest.fixture
def kept(monkeypatch):
    """Have no look delete a hold, as if this client may not."""
    monkeypatch.setattr(operator_holds, "MOST_DELETED", 0)


def fresh():
    shown = snapshot(max_age=0, reply_timeout=30)
    assert not shown.problem
    return shown


def is_free(key):
    return look_at(key, reply_timeout=30) is None


def wait_as_curator(zoo, key, kind="lock-", guid=""):
    """Have a client wait that ends no minimum hold; return the name of its node."""
    prefix = f"{zoo.base}/{key}/_c_{guid or uuid.uuid4()}-{kind}"
    path = zoo.client.create(prefix, b"10.0.0.7", ephemeral=True, sequence=True)
    return path.rpartition("/")[2]


@either_hold
def test_an_expired_minimum_hold_without_waiters_is_free(zoo, acquire):
    strand("k", SHORT, acquire)
    eventually(lambda: is_free("k"))
    eventually(lambda: zoo.children("k") == [])
    assert ending("show", "k")[0] == ExitCode.NO_HOLDER
    assert ending("end-hold", "k", "--token=1", "--reason=over")[0] == ExitCode.NO_HOLDER
    with zk_lock("k", timeout=0) as hold:
        assert [lock.holders[0].token for lock in fresh().locks] == [hold.token]
    assert zoo.children("k") == []


def test_an_expired_minimum_hold_without_waiters_is_in_no_list(zoo):
    strand("k", SHORT)
    eventually(lambda: is_free("k"))
    with zk_lock("other"):
        shown = fresh()
        assert ([lock.key for lock in shown.locks], shown.total) == (["other"], 1)
        assert "1 held, 0 waiting" in zklock("status")
        assert zklock("list").endswith("1 lock\n")
        locks = eventually(lambda: as_json("list")["locks"])  # known up to a reply's travel time
        assert [lock["key"] for lock in locks] == ["other"]


async def test_an_expired_hold_does_not_count_as_locked(zoo):
    await asyncio.to_thread(strand, "k", SHORT)
    lock, both = zk_lock("k"), zk_locks("k", "other")
    await asyncio.to_thread(eventually, lambda: not lock.locked())
    assert not await lock.alocked()
    assert not await both.alocked()
    await asyncio.to_thread(strand, "k", LONG)
    assert await lock.alocked()
    assert await asyncio.to_thread(both.locked)


def test_one_of_two_permits_whose_holds_are_not_both_over_is_locked(zoo):
    for seconds in (SHORT, LONG):
        acquire_once(Lock("k", limit=2, min_hold=seconds))
    process.reset()
    lock = zk_lock("k", limit=2)

    def is_one_left():
        assert lock.locked()
        return len(zoo.children("k")) == 1

    eventually(is_one_left)
    assert lock.locked()


@pytest.mark.usefixtures("kept")
def test_a_look_survives_a_connection_that_breaks(zoo, proxy):
    for kill, opcode in ((proxy.kill_before_op, GET_DATA), (proxy.kill_after_op, MULTI)):
        strand("k", SHORT)
        eventually(lambda: is_free("k"))
        killed = kill(opcode)
        assert not zk_lock("k").locked()
        assert killed.is_set()


@either_hold
def test_a_minimum_hold_has_the_servers_clock(zoo, acquire, monkeypatch):
    strand("k", LONG, acquire)
    real_time = time.time
    monkeypatch.setattr(time, "time", lambda: real_time() + 86400)
    assert zk_lock("k").locked()
    (lock,) = fresh().locks
    assert lock.operator is not None
    assert lock.expired_holds == ()
    assert len(lock.holders) == 1


@either_hold
@pytest.mark.usefixtures("kept")
def test_a_waiter_behind_an_expired_hold_is_about_to_get_the_lock(zoo, acquire):
    """The lock passes to the first waiter: it is not held, and not free. The expired hold is shown."""
    strand("k", SHORT, acquire)
    waiter = wait_as_curator(zoo, "k")
    eventually(lambda: not fresh().locks[0].holders)
    assert zk_lock("k").locked()
    (lock,) = fresh().locks
    (expired,) = lock.expired_holds
    assert expired.operator is not None
    assert expired.held_since is None
    assert [(waiting.name, waiting.waits_behind) for waiting in lock.waiters] == [(waiter, expired.name)]
    assert (lock.waiting, lock.held_for) == (1, None)
