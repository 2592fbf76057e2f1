"""An exception that destroys the end of a block releases that block alone; transactions and other kinds keep locks."""

import asyncio
import contextlib
import gc
import threading
import weakref
from contextlib import ExitStack

import pytest
from django.db import connections, transaction
from django.db.transaction import TransactionManagementError
from support.faults import BackgroundCall, acquire_once
from support.strike import LineStrike, Struck
from support.work import lose
from support.zoo import eventually

from django_zklock import ReadWriteLock, current_hold, zk_lock, zk_locks
from django_zklock.core.locks import held
from django_zklock.core.locks.acquisition import Acquisition
from django_zklock.core.locks.held import HeldLocks, held_locks
from django_zklock.core.queue.operator_hold import is_operator
from django_zklock.core.zk import process
from django_zklock.exceptions import LockLost
from django_zklock.locks import transactions
from django_zklock.locks.base import LockBase
from django_zklock.locks.hold import held_of


@pytest.mark.parametrize("function", [LockBase._close, transactions.Transaction.end])
def test_an_acquire_inside_a_block_survives_its_interrupted_end(zoo, ledger, caplog, function):
    """The transaction of the block does not: it is rolled back."""
    mutex = zk_lock("k")
    with contextlib.suppress(Struck), LineStrike([function], 0) as strike, zk_lock("k", atomic="ledger"):
        mutex.acquire()
        ledger.write("written")
    assert strike.where
    assert ("destroyed the end of a block under lock 'k'" in caplog.text) is (function is LockBase._close)
    assert ledger.seen() == []
    ledger.assert_idle()
    assert mutex.owned()
    mutex.release()
    assert not mutex.owned()
    assert not zoo.children("k")


def test_an_interrupted_end_of_an_exit_stack_releases_its_lock(zoo):
    with contextlib.suppress(Struck), LineStrike([Acquisition.end_block], 0) as strike, ExitStack() as stack:
        stack.enter_context(zk_lock("k"))
    assert strike.where
    eventually(lambda: not zoo.children("k"))


def test_a_block_end_that_is_dropped_late_releases_nothing(zoo, caplog):
    mutex = zk_lock("k")
    with mutex:
        end = mutex.__exit__
        with ExitStack() as stack:
            stack.enter_context(mutex)
        with mutex:
            del end
        assert mutex.owned()
        assert len(zoo.children("k")) == 1
    assert not caplog.records


@pytest.mark.parametrize("way", ["with", "with several", "async with"])
def test_the_error_of_a_block_end_is_freed_with_its_handler(zoo, way):
    """No frame of its traceback refers to it, so nothing waits for the garbage collector: neither locks nor locals."""
    mutex = zk_locks("a", "b") if way == "with several" else zk_lock("a")

    def fail():
        try:
            with mutex:
                lose(current_hold())
                threading.Event().wait(10)
        except LockLost as error:
            return weakref.ref(error)
        return None

    async def fail_in_coroutine():
        try:
            async with mutex:
                lose(current_hold())
                await asyncio.sleep(10)
        except LockLost as error:
            return weakref.ref(error)
        return None

    gc.collect()
    gc.disable()
    try:
        reference = asyncio.run(fail_in_coroutine()) if way == "async with" else fail()
        assert reference() is None
    finally:
        gc.enable()


def test_a_generator_that_is_closed_on_the_protocols_thread_releases_its_lock(zoo, monkeypatch):
    """The garbage collector runs on any thread. The end of the block does not wait there for that thread itself."""
    monkeypatch.setattr(held, "RELEASE_TIMEOUT", 60)

    def generate():
        with zk_lock("k"):
            yield

    generators = [generate()]
    next(generators[0])
    process.current().post(generators.clear)
    eventually(lambda: not zoo.children("k"), message="the lock was not released")


def test_a_block_that_does_not_begin_is_not_reported_as_destroyed(zoo, ledger, caplog):
    ledger.connection.ensure_connection()
    ledger.connection.set_autocommit(False)
    try:
        with pytest.raises(TransactionManagementError), zk_lock("k", atomic="ledger"):
            pass
    finally:
        ledger.connection.set_autocommit(True)
    eventually(lambda: not zoo.children("k"), message="the lock was not released")  # the error does not wait for it
    assert not caplog.records


@pytest.mark.parametrize("case", ["in a file", "in memory", "connection closed", "savepoint", "savepoint ended"])
def test_a_block_whose_end_is_destroyed_is_rolled_back(zoo, ledger, case):
    """It alone, unless its work has ended the savepoint: then the transaction around it is rolled back, too."""

    def execute(statement):
        with connection.cursor() as cursor:
            return list(cursor.execute(statement))

    connection = connections["default"] if case == "in memory" else ledger.connection
    lock = zk_lock("k", atomic=connection.alias, release_on="commit")
    execute("CREATE TABLE IF NOT EXISTS note (text TEXT)")
    with transaction.atomic(using="ledger") if "savepoint" in case else contextlib.nullcontext():
        execute("INSERT INTO note VALUES ('before')")
        with contextlib.suppress(Struck), LineStrike([LockBase._close], 0) as strike, lock:
            execute("INSERT INTO note VALUES ('lost')")
            if case == "connection closed":
                connection.close()
            if case == "savepoint ended":
                connection.savepoint_commit(connection.savepoint_ids[-1])
        assert strike.where
    with lock:
        execute("INSERT INTO note VALUES ('after')")
    assert connection.get_autocommit()
    assert execute("SELECT text FROM note") == [("before",), ("after",)][case == "savepoint ended" :]
    execute("DROP TABLE note")


def test_an_interrupted_acquire_does_not_count(zoo):
    """The block around it is still the only use of the lock, so its loss is noticed."""
    mutex = zk_lock("k")
    with mutex as hold:
        with contextlib.suppress(Struck), LineStrike([HeldLocks.add], 0) as strike:
            mutex.acquire()
        assert strike.where
        assert not held_of(hold).is_unwatched


def test_a_block_that_is_skipped_has_no_transaction(zoo, ledger):
    lock = zk_lock("k", timeout=0, atomic=ledger.alias, on_conflict="skip")
    with zoo.hold_elsewhere("k"), lock as hold:
        assert hold is None
        assert not ledger.connection.in_atomic_block
    with lock as hold:
        assert hold is not None
        assert ledger.connection.in_atomic_block


# --- kinds of locks with transactions, several locks, and dead processes ----------------------------------------------


def can_read():
    def read():
        lock = zk_lock("k", kind="read", timeout=0, on_conflict="skip")
        with lock as hold:
            return hold is not None

    return BackgroundCall(read).result()


def test_a_write_lock_kept_by_a_transaction_excludes_readers(zoo, ledger):
    """They would not see its work. The lock lasts until its own reader has ended, too."""
    rw = ReadWriteLock("k", release_on="commit")
    with transaction.atomic(using="ledger"):
        with rw.write() as hold:
            assert rw.read().acquire()
        assert not can_read()
        assert hold.kind == "write"
    assert not can_read()
    rw.read().release()
    eventually(can_read)
    assert zoo.children("k") == []
    assert not held_locks._kept


def test_a_read_block_inside_a_kept_write_lock_ends_before_it(zoo, ledger):
    rw = ReadWriteLock("k", release_on="commit")
    with pytest.raises(ZeroDivisionError), transaction.atomic(using="ledger"):
        with rw.write(), rw.read():
            pass
        acquire_once(rw.read())
        assert not can_read()
        1 / 0  # noqa: B018
    assert zoo.children("k") == []
    assert not held_locks.all()


def test_the_minimum_hold_of_a_kept_lock_begins_after_the_transaction(zoo, ledger):
    with transaction.atomic(using="ledger"):
        acquire_once("k", release_on="commit", min_hold=300)
        assert not is_operator(zoo.children("k")[0])
    eventually(lambda: [is_operator(name) for name in zoo.children("k")] == [True])
    zoo.delete("k")


def test_a_minimum_hold_outlives_a_kill_and_a_hold_does_not(zoo):
    child = zoo.spawn(
        """
import os, signal
with zk_lock("permit", limit=2, min_hold=6):
    pass
with zk_lock("reader", kind="read", min_hold=6):
    pass
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
    acquire_once(zk_locks("permit", "reader", "held", timeout=50))
