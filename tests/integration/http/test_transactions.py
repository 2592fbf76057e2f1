"""Lock, BEGIN, work, COMMIT, release: always in this order."""

import contextlib
import threading
import time
import unittest

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.db import IntegrityError, transaction
from django.db.transaction import TransactionManagementError
from django.test import TestCase
from django.utils.connection import ConnectionDoesNotExist
from support.deadlock import rivals
from support.faults import BackgroundCall, acquire_once, due, proxied
from support.ledger import Ledger, MariaDBLedger
from support.strike import assert_none_listed
from support.zoo import eventually, settle

from django_zklock import Lock, current_hold, zk_lock, zk_locked, zk_locks
from django_zklock.exceptions import LockBusy, LockDeadlock, LockInTransaction, LockLost, LockNotHeld, ZkLockError
from django_zklock.locks.hold import held_of

ON_SQLITE = pytest.mark.parametrize("ledger", ["sqlite"], indirect=True)


@pytest.fixture(params=["sqlite", "repeatable read", pytest.param("read committed", marks=pytest.mark.chaos)])
def ledger(request, tmp_path, django_db_blocker):
    with contextlib.ExitStack() as stack:
        stack.enter_context(django_db_blocker.unblock())
        if request.param == "sqlite":
            yield stack.enter_context(Ledger.opened("ledger", tmp_path))
        else:
            server = request.getfixturevalue("mariadb")
            yield stack.enter_context(MariaDBLedger("ledger", server.settings(request.param)).closed())


def lose(hold):
    """Mark a hold as lost, and wait until its observers know."""
    held_of(hold).grant.session.post(held_of(hold).grant.lose, "taken away")
    due(0)


def refuse():
    raise IntegrityError("refused")


# --- inside an open transaction -------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [False, True])
def test_a_lock_inside_an_open_transaction_is_refused(zoo, ledger, durable):
    """It would be released before COMMIT. Nothing is sent, and the error says what to do."""
    with transaction.atomic(using="ledger", durable=durable):
        for acquire in (Lock("late").__enter__, Lock("late").acquire, zk_locked("late")(lambda: None)):
            with pytest.raises(LockInTransaction, match=r"'ledger'.*atomic=True.*commit.*exit") as caught:
                acquire()
            assert caught.value.lock == "late"
    assert zoo.client.exists(f"{zoo.base}/late") is None


def test_a_lock_that_is_held_already_may_be_acquired_again_inside(zoo, ledger):
    with ledger.ends(lambda: len(zoo.children("held"))) as ends, zk_lock("held") as hold:
        with transaction.atomic(using="ledger"):
            with zk_lock("held", reentrant=True), zk_lock("held", release_on="commit"):
                ledger.write("a")
            assert zk_lock("held").acquire()
            zk_lock("held").release()
        assert len(zoo.children("held")) == 1, "the end of the transaction releases only its own part"
        hold.check()
    assert ends == [("commit", 1)]


def test_release_block_allows_a_lock_inside_a_transaction(zoo, ledger):
    with transaction.atomic(using="ledger"):
        with zk_lock("file", release_on="exit"):
            ledger.write("a")
        assert zoo.children("file") == []
        with pytest.raises(LockInTransaction, match="ledger"):
            zk_lock("file", release_on="exit", atomic="ledger").__enter__()


def test_a_release_inside_a_transaction_waits_for_its_end(zoo, ledger):
    lock = zk_lock("early")
    assert lock.acquire()
    with transaction.atomic(using="ledger"):
        ledger.write("a")
        lock.release()
        assert len(zoo.children("early")) == 1
        assert not lock.owned()
        for call in (lock.release, lambda: current_hold("early")):
            with pytest.raises(LockNotHeld):
                call()
    assert zoo.children("early") == []


async def test_async_code_has_no_transactions(zoo):
    with pytest.raises(SynchronousOnlyOperation, match="sync_to_async"):
        await zk_lock("async", atomic=True).__aenter__()
    with pytest.raises(SynchronousOnlyOperation, match="sync_to_async"):
        await zk_lock("async", atomic=True).aacquire()
    async with zk_lock("async", release_on="commit"):
        pass
    with pytest.raises(TypeError, match="sync_to_async"):

        @zk_locked("async", atomic=True)
        async def work(): ...


# --- atomic= --------------------------------------------------------------------------------------------------------


def test_atomic_commits_before_the_release(zoo, ledger):
    def next_holder():
        with zk_lock("atomic", timeout=None):
            return ledger.seen()

    with ledger.ends(lambda: len(zoo.children("atomic"))) as ends, zk_lock("atomic", atomic="ledger"):
        following = BackgroundCall(next_holder)
        zoo.wait_contenders("atomic", 2)
        ledger.write("a")
        assert ledger.connection.in_atomic_block
        assert ledger.seen() == []
    assert following.result() == ["a"]
    assert ends == [("commit", 2)]


@pytest.mark.parametrize("ledger", ["sqlite", "read committed"], indirect=True)
def test_atomic_rolls_back_if_a_block_in_it_gives_way_in_a_deadlock(zoo, ledger):
    looks = ledger.ends(lambda: len(zoo.children("a")))
    with looks as ends, contextlib.ExitStack() as others, pytest.raises(LockDeadlock), zk_lock("a", atomic="ledger"):
        ledger.write("a")
        others.enter_context(rivals(zoo, {"b": "a"}))
        zk_lock("b", release_on="commit").acquire(timeout=40)
    assert ends == [("rollback", 2)]
    assert ledger.seen() == []


def test_a_lock_that_a_transaction_keeps_is_part_of_a_deadlock(zoo, ledger):
    """Its block has ended. But no other thread ends the transaction."""
    with contextlib.ExitStack() as others, pytest.raises(LockDeadlock), transaction.atomic("ledger"):
        with zk_lock("a", release_on="commit"):
            ledger.write("a")
        others.enter_context(rivals(zoo, {"b": "a"}))
        zk_lock("b", release_on="exit").acquire(timeout=40)
    assert ledger.seen() == []


def test_atomic_on_two_databases(zoo, ledger, audit):
    with ledger.ends(lambda: len(zoo.children("two"))) as first, audit.ends(lambda: len(zoo.children("two"))) as second:
        with zk_lock("two", atomic=["ledger", "audit"]):
            ledger.write("a")
            audit.write("a")
        for error in (ValueError, KeyboardInterrupt):
            with pytest.raises(error), zk_lock("two", atomic=("ledger", "audit")):
                ledger.write("b")
                audit.write("b")
                raise error
    assert ledger.seen() == audit.seen() == ["a"]
    for ends in (first, second):
        assert ends[0] == ("commit", 1)
        assert set(ends[1:]) == {("rollback", 1)}
    with pytest.raises(ZeroDivisionError) as struck, ledger.ends(lambda: 1 / 0), zk_lock("two", atomic="ledger"):
        raise ValueError
    assert struck.value.__cause__ is None, "the error of the block has not caused what strikes the rollback"


def test_atomic_on_a_function(zoo, ledger):
    with zoo.configured(LOCKS={"listed": {"path": "listed", "atomic": ["ledger"]}}):

        @zk_locked("listed")
        def work():
            ledger.write("a")
            return ledger.connection.in_atomic_block

        @zk_locked("listed", atomic=False)
        def work_without():
            return ledger.connection.in_atomic_block

        assert work()
        assert not work_without()
    assert ledger.seen() == ["a"]


def test_a_lock_that_is_lost_in_the_block_commits_nothing_unless_it_never_aborts(zoo, ledger):
    with pytest.raises(LockLost), zk_lock("lost", atomic="ledger") as hold:
        ledger.write("a")
        held_of(hold).grant.session.post(held_of(hold).grant.lose, "taken away")
        threading.Event().wait(10)
    ledger.assert_idle()
    with pytest.raises(LockLost) as caught, zk_lock("lost", atomic="ledger") as hold:
        ledger.write("b")
        with contextlib.suppress(BaseException):
            lose(hold)
            threading.Event().wait(10)
    assert caught.value.lock == "lost"
    assert ledger.seen() == []
    with zk_lock("lost", atomic="ledger", abort_on="never") as hold:
        ledger.write("c")
        lose(hold)
    with zk_lock("lost", atomic="ledger") as hold:
        ledger.write("d")
        transaction.on_commit(lambda: lose(hold), using="ledger")  # too late to matter
    assert ledger.seen() == ["c", "d"]


@ON_SQLITE
@pytest.mark.parametrize("options", [{}, {"grace": 0}], ids=str)
def test_work_is_committed_during_a_suspension_unless_its_grace_is_over(zoo, ledger, options):
    outcome = pytest.raises(LockLost) if options else contextlib.nullcontext()
    with proxied(zoo, 20) as proxy:
        with outcome, zk_lock("a", atomic="ledger", timeout=30, **options) as hold:
            ledger.write("a")
            proxy.go_away()
            eventually(lambda: hold.state != "held")
        assert ledger.seen() == ([] if options else ["a"])


@pytest.mark.parametrize("release_on", [None, "exit", "commit"])
@pytest.mark.parametrize("of", ["hold", "current_hold", "lock", "several"])
def test_a_release_inside_a_block_waits_for_the_transaction_of_the_block(zoo, ledger, of, release_on):
    options = {"atomic": "ledger", **({"release_on": release_on} if release_on else {})}
    lock = zk_locks("early", "late", **options) if of == "several" else zk_lock("early", **options)
    with ledger.ends(lambda: len(zoo.children("early"))) as ends:
        with lock as hold:
            ledger.write("a")
            {"current_hold": lambda: current_hold("early").release(), "lock": lock.release}.get(of, hold.release)()
            ledger.write("b")
        with pytest.raises(LockLost), lock as several:
            hold = current_hold("early")
            several.release()
            ledger.write("c")
            with contextlib.suppress(BaseException):
                lose(hold)
                threading.Event().wait(1)
    assert ends == [("commit", 1), ("rollback", 1)]
    assert ledger.seen() == ["a", "b"]
    zoo.assert_empty()


@pytest.mark.parametrize("around", [False, True])
def test_a_function_of_on_commit_may_release_the_lock(zoo, ledger, around):
    """It ends the block that is committed, not the one around that."""
    looks = []
    lock = zk_lock("early")
    with lock if around else contextlib.nullcontext():
        with zk_lock("early", atomic="ledger") as hold:
            ledger.write("a")
            transaction.on_commit(hold.release, using="ledger")
            transaction.on_commit(lambda: looks.append(not zoo.children("early")), using="ledger")
        assert lock.owned() is around
    assert looks == [not around]
    assert ledger.seen() == ["a"]
    zoo.assert_empty()


def test_nothing_is_committed_without_its_connection(zoo, ledger, caplog):
    """The database has rolled back a closed connection."""
    lock = zk_lock("gone", atomic="ledger")
    with lock:
        ledger.write("a")
        ledger.connection.close()
    assert ledger.seen() == []
    for in_pool in (False, True):  # a connection of a pool goes back to it
        with pytest.raises(ZeroDivisionError), lock:
            ledger.write("a")
            ledger.connection.connection.close() if in_pool else ledger.connection.close()
            ledger.connection.connection = None if in_pool else ledger.connection.connection
            _ = 1 / 0
    assert ledger.seen() == []
    assert "rollback" not in caplog.text


def test_atomic_inside_atomic_is_one_transaction(zoo, ledger):
    lock = zk_lock("nested", atomic="ledger")
    with ledger.ends(lambda: len(zoo.children("nested"))) as ends, lock:
        ledger.write("a")
        with pytest.raises(ValueError, match="inner"), lock:
            ledger.write("b")
            raise ValueError("inner")
        with lock:
            ledger.write("c")
        assert ledger.seen() == []
    assert ends == [("commit", 1)]
    assert ledger.seen() == ["a", "c"]


def test_atomic_is_refused_where_it_cannot_be(zoo, ledger):
    with pytest.raises(ZkLockError, match="sync block"):
        zk_lock("x", atomic="ledger").acquire()
    with pytest.raises(ConnectionDoesNotExist):
        zk_lock("x", atomic="leger").__enter__()
    with pytest.raises(ValueError, match="atomic"):
        zk_lock("x", atomic=3)
    with pytest.raises(ValueError, match="release"):
        zk_lock("x", release_on="block")
    assert zoo.client.exists(f"{zoo.base}/x") is None
    transaction.set_autocommit(False, using="ledger")
    try:
        ledger.write("a")
        with pytest.raises(TransactionManagementError, match="autocommit"):
            zk_lock("x", atomic="ledger").__enter__()
    finally:
        transaction.commit(using="ledger")
        transaction.set_autocommit(True, using="ledger")
    assert ledger.seen() == ["a"], "the open transaction is left alone"


# --- release_on="commit" --------------------------------------------------------------------------------------------


def fail(ledger):
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("acquire", "release"),
    [(Lock.__enter__, lambda lock: lock.__exit__(None, None, None)), (Lock.acquire, Lock.release)],
    ids=["with", "acquire"],
)
@pytest.mark.parametrize(
    ("end", "rows"),
    [
        (lambda ledger: None, ["a"]),
        (fail, []),
        (lambda ledger: transaction.set_rollback(True, using="ledger"), []),
    ],
    ids=["commit", "rollback", "set_rollback"],
)
def test_a_lock_is_held_until_the_transaction_has_ended(zoo, ledger, acquire, release, end, rows):
    lock = zk_lock("kept", release_on="commit")
    with ledger.ends(lambda: len(zoo.children("kept"))) as ends:
        with contextlib.suppress(ZeroDivisionError), transaction.atomic(using="ledger"):
            hold = acquire(lock)
            ledger.write("a")
            release(lock)
            assert len(zoo.children("kept")) == 1
            hold.check()
            end(ledger)
        assert zoo.children("kept") == []
    ledger.assert_idle()
    assert ledger.seen() == rows
    assert [kept for _, kept in ends] == [1]
    assert_none_kept()


def assert_none_kept():
    with pytest.raises(LockNotHeld):
        zk_lock("kept").release()
    assert_none_listed()


def test_a_lock_is_held_until_the_last_of_several_transactions(zoo, ledger, audit):
    with transaction.atomic(using="ledger"):
        with transaction.atomic(using="audit"), zk_lock("last", release_on="commit"):
            audit.write("a")
            ledger.write("a")
        assert audit.seen() == ["a"]
        assert len(zoo.children("last")) == 1
    assert zoo.children("last") == []


def test_a_kept_lock_can_be_acquired_again_in_the_same_transaction(zoo, ledger):
    lock = zk_lock("kept", timeout=0, release_on="commit")
    with transaction.atomic(using="ledger"):
        with lock as first:
            pass
        with lock as second:
            acquire_once(lock)
            assert second == first == current_hold("kept")
        with zk_lock("kept", timeout=0) as third, lock:
            assert third == first
        with pytest.raises(LockBusy), zk_lock("kept", timeout=0, reentrant=False):
            pass
        assert zk_lock("kept").acquire(blocking=False) is not None
        zk_lock("kept").release()
        assert len(zoo.children("kept")) == 1
        ledger.write("a")
    assert zoo.children("kept") == []


@pytest.mark.parametrize(("max_hold", "rolls_back"), [(0.2, True), (None, True), (None, False)])
def test_a_kept_lock_that_is_lost_stops_the_commit(zoo, ledger, max_hold, rolls_back):
    """Even if the rollback fails: then the connection is closed."""
    ending = contextlib.nullcontext() if rolls_back else ledger.ends(refuse)
    with pytest.raises(LockLost) as caught, ending, transaction.atomic(using="ledger"):
        with zk_lock("kept", release_on="commit", max_hold=max_hold) as hold:
            ledger.write("a")
        if max_hold is None:
            lose(hold)
        assert hold.wait_lost(10)
        settle()
        with pytest.raises(LockLost):
            zk_lock("kept").acquire()
        assert len(zoo.children("kept")) == 1  # nobody else gets it before the rollback
    assert caught.value.lock == "kept"
    assert ledger.seen() == []


def test_locks_ignore_the_transaction_of_a_test_case(zoo, ledger):
    class Case(TestCase):
        databases = frozenset({"ledger"})

        def test_a_lock(self):
            with zk_lock("case"):
                ledger.write("a")
            assert zoo.children("case") == []

        def test_atomic(self):
            with zk_lock("case", atomic="ledger"):
                ledger.write("a")
            with pytest.raises(ValueError, match="x"), zk_lock("case", atomic="ledger"):
                ledger.write("b")
                raise ValueError("x")
            with ledger.connection.cursor() as cursor:
                cursor.execute("SELECT text FROM note")
                assert list(cursor.fetchall()) == [("a",)]

        def test_on_commit(self):
            acquire_once("case", release_on="commit")
            assert zoo.children("case") == []
            with transaction.atomic(using="ledger"):
                with zk_lock("case", release_on="commit"):
                    ledger.write("a")
                assert zoo.children("case") == []

        def test_an_open_block_is_refused_as_in_production(self):
            with transaction.atomic(using="ledger"), pytest.raises(LockInTransaction):
                zk_lock("case").__enter__()

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Case).run(result)
    assert result.testsRun
    assert not result.errors + result.failures, (result.errors + result.failures)[0][1]
    assert ledger.seen() == []


@pytest.mark.parametrize("abort_on", ["suspended", "never"])
def test_a_transaction_longer_than_max_hold_is_rolled_back_first(zoo, ledger, abort_on):
    with (
        pytest.raises(LockLost, match="max_hold"),
        ledger.ends(lambda: len(zoo.children("a"))) as ends,
        zk_lock("a", atomic="ledger", max_hold=0.3, abort_on=abort_on),
    ):
        ledger.write("late")
        time.sleep(20)
    assert ends == [("rollback", 1)]
    assert ledger.seen() == []
