"""Kinds of locks where they meet transactions, several locks, and the death of a process."""

from __future__ import annotations

import pytest
from django.db import transaction
from support.faults import BackgroundCall
from support.ledger import Ledger
from support.zoo import Zoo, eventually

from django_zklock import ReadWriteLock, zk_lock, zk_locks
from django_zklock.core.locks.held import held_locks
from django_zklock.core.queue.operator_hold import is_operator
from django_zklock.exceptions import LockBusy, LockDeadlock, LockUpgradeRefused

pytestmark = pytest.mark.zookeeper


def can_read() -> bool:
    def read() -> bool:
        try:
            with zk_lock("k", kind="read", timeout=0):
                return True
        except LockBusy:
            return False

    return BackgroundCall(read).result()


def end_rest(zoo: Zoo, key: str = "k") -> str:
    eventually(lambda: [is_operator(name) for name in zoo.children(key)] == [True])
    (name,) = zoo.children(key)
    zoo.client.delete(f"{zoo.base}/{key}/{name}")
    return name


# --- transactions -----------------------------------------------------------------------------------------------------


def test_a_lock_kept_by_a_transaction_is_part_of_a_deadlock(zoo: Zoo, ledger: Ledger) -> None:
    """Its block has ended, but it is not released before the COMMIT."""

    def other() -> None:
        with zk_lock("b"):
            zoo.wait_contenders("b", 2)
            with pytest.raises(LockDeadlock), zk_lock("a"):
                pass

    waits_last = BackgroundCall(other)
    zoo.wait_contenders("b", 1)
    with transaction.atomic(using="ledger"):
        with zk_lock("a", release_on="commit"):
            pass
        with zk_lock("b", release_on="commit"):
            pass
    waits_last.result()


def test_a_write_lock_kept_by_a_transaction_excludes_readers(zoo: Zoo, ledger: Ledger) -> None:
    """They would not see its work. After COMMIT they read while the owner reads, too."""
    rw = ReadWriteLock("k", release_on="commit")
    with transaction.atomic(using="ledger"):
        with rw.write() as hold:
            assert rw.read().acquire()
        assert not can_read()
        assert hold.kind == "write"
    eventually(can_read)
    rw.read().release()
    assert zoo.children("k") == []
    assert zoo.reading("k") == []
    assert not held_locks._kept


def test_a_read_block_inside_a_kept_write_lock_ends_before_it(zoo: Zoo, ledger: Ledger) -> None:
    rw = ReadWriteLock("k", release_on="commit")
    with pytest.raises(ZeroDivisionError), transaction.atomic(using="ledger"):
        with rw.write(), rw.read():
            pass
        with rw.read():
            pass
        assert not can_read()
        1 / 0  # noqa: B018
    assert zoo.children("k") == []
    assert not list(held_locks._weak.values())


def test_a_downgraded_hold_that_a_transaction_keeps_is_a_read_lock(zoo: Zoo, ledger: Ledger) -> None:
    """Its owner can't write any more, as others read."""
    rw = ReadWriteLock("k", release_on="commit")
    with transaction.atomic(using="ledger"):
        with rw.write() as hold:
            hold.downgrade()
            eventually(can_read)
        with pytest.raises(LockUpgradeRefused), rw.write():
            pass
        with rw.read():
            pass
        assert len(zoo.children("k")) == 1
    assert zoo.children("k") == []
    assert zoo.reading("k") == []


def test_the_minimum_hold_of_a_kept_lock_begins_after_the_transaction(zoo: Zoo, ledger: Ledger) -> None:
    with transaction.atomic(using="ledger"):
        with zk_lock("k", release_on="commit", min_hold=300):
            pass
        assert not is_operator(zoo.children("k")[0])
    end_rest(zoo)


# --- several locks, and dead processes --------------------------------------------------------------------------------


def test_one_of_several_locks_can_be_downgraded(zoo: Zoo) -> None:
    rw = ReadWriteLock("k")
    with zk_locks("a", rw.write()) as holds:
        holds["k"].downgrade()
        eventually(can_read)
        with zk_locks(rw.read(), "b"):
            pass
        with pytest.raises(LockUpgradeRefused), zk_locks("c", rw.write(), min_hold=300):
            pass
        zoo.wait_contenders("c", 0)
    assert zoo.contenders() == []
    assert zoo.reading("k") == []


def test_a_minimum_hold_outlives_a_kill_and_a_hold_does_not(zoo: Zoo) -> None:
    child = zoo.spawn(
        """
import os, signal
with zk_lock("permit", limit=2, min_hold=2):
    pass
with zk_lock("reader", kind="write", min_hold=2) as hold:
    hold.downgrade()
assert zk_lock("held", min_hold=300).acquire()
print("ready", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    out, errors = child.communicate(timeout=40)
    assert out == "ready\n", errors
    (permit,), (reader,) = zoo.children("permit"), zoo.children("reader")
    assert is_operator(permit)
    assert "-lease-" in permit
    assert is_operator(reader)
    assert "-__READ__" in reader
    with zk_locks("permit", "reader", "held", timeout=50):
        pass
