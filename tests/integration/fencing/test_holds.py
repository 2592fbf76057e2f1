"""Rows and names fenced by the holds of real locks; stale holders are refused, and lost data of ZooKeeper detected."""

from types import SimpleNamespace

import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured, SynchronousOnlyOperation
from django.db import connections, transaction
from django.db.transaction import TransactionManagementError
from django.test import modify_settings
from support.ledgers.models import Account
from support.work import lose, run_in_thread

from django_zklock import zk_lock
from django_zklock.contrib.fences.block import FencedBlock
from django_zklock.contrib.fences.models import Fence
from django_zklock.exceptions import LockLost, LockNotHeld, StaleToken

FAR = 10**12  # more transactions than any test has


@pytest.fixture
def row(ledger):
    made = Account(name="a")
    made.save(using=ledger)
    return made


def fences(using):
    return dict(Fence.objects.using(using).values_list("name", "token"))


def test_a_hold_fences_a_row(zoo, ledger, row):
    with zk_lock("k") as old:
        pass
    with zk_lock("k") as hold:
        Account.objects.using(ledger).update(balance=7)
        with transaction.atomic(using=ledger):
            hold.fence(row, refresh=True)
            assert (row.balance, row.fencing_token) == (7, hold.token)
        with pytest.raises(StaleToken) as caught, transaction.atomic(using=ledger):
            row.fence(SimpleNamespace(key="k", token=old.token))
        assert type(caught.value) is StaleToken


def test_a_hold_that_was_released_fences_nothing(zoo, ledger, row):
    """The work would have no lock. A hold that a transaction keeps still fences."""
    rows = Account.objects.using(ledger)
    with zk_lock("k") as hold:
        row.save_fenced(hold)
    for use in (
        lambda: row.save_fenced(hold),
        lambda: hold.fence(row),
        lambda: rows.fenced(hold),
        lambda: hold.fenced("books", using=ledger),
    ):
        with pytest.raises(LockNotHeld, match="was released, so it cannot fence rows"):
            use()
    with transaction.atomic(using=ledger):
        with zk_lock("k", release_on="commit") as kept:
            pass
        kept.fence(row)
    with pytest.raises(TypeError, match=r"A fence is a hold, as current_hold\(\) .*; not None"):
        rows.fenced(None)


def test_a_hold_that_is_lost_but_not_replaced_may_still_write(zoo, ledger, row):
    with zk_lock("k", abort_on="never") as hold:
        lose(hold)
        assert hold.wait_lost(10)
        row.save_fenced(hold)
    assert Account.objects.using(ledger).get().fencing_token == hold.token


@pytest.mark.usefixtures("zoo")
@pytest.mark.parametrize("how", [{"kind": "read"}, {"limit": 2}], ids=["readers", "permits"])
def test_an_older_concurrent_holder_is_refused_with_the_reason(ledger, row, how):
    """Its lock is valid, so the message about a newer holder would mislead."""

    def work():
        with zk_lock("k", **how) as newer:
            row.save_fenced(newer, using=ledger)
        connections[ledger].close()

    with zk_lock("k", **how) as older:
        run_in_thread(work)
        with pytest.raises(StaleToken, match=r'shares the lock .k. has written since.*kind="write"'):
            row.save_fenced(older, using=ledger)
        older.check()


async def test_a_hold_fences_in_the_thread_of_the_database(zoo, ledger):
    async with zk_lock("k") as hold:
        row = Account(name="a")
        await row.asave_fenced(hold, using=ledger)
        with pytest.raises(TransactionManagementError):
            await hold.afence(row)

        def work():
            with transaction.atomic(using=ledger):
                hold.fence(row)
            connections[ledger].close()

        await sync_to_async(work)()


def test_a_name_is_fenced_like_a_row(zoo, ledger):
    with zk_lock("k") as old, old.fenced("books", using=ledger):
        Account(name="a").save(using=ledger)
    assert fences(ledger) == {"books": old.token}
    with zk_lock("k") as hold:
        with hold.fenced("books", using=ledger):
            assert connections[ledger].in_atomic_block
        stale = FencedBlock(SimpleNamespace(key="k", token=old.token), "books", using=ledger)
        with pytest.raises(StaleToken, match="'books' has seen the token"), stale:
            raise AssertionError("the block of a stale holder ran")
    assert fences(ledger) == {"books": hold.token}


def test_a_fenced_block_that_fails_writes_nothing(zoo, ledger):
    with zk_lock("k") as hold, pytest.raises(ZeroDivisionError), hold.fenced("books", using=ledger):
        Account(name="a").save(using=ledger)
        1 / 0  # noqa: B018
    assert not Account.objects.using(ledger).exists()
    assert fences(ledger) == {}


def test_the_lock_is_checked_before_the_commit(zoo, ledger):
    lock = zk_lock("k")
    hold = lock.acquire()
    assert hold
    with pytest.raises(LockLost), hold.fenced("books", using=ledger):
        Account(name="a").save(using=ledger)
        lose(hold)
        assert hold.wait_lost(10)
    with pytest.raises(LockLost):
        lock.release()
    assert not Account.objects.using(ledger).exists()


async def test_a_fenced_block_in_async_code_says_what_to_do(zoo):
    async with zk_lock("k") as hold:
        with pytest.raises(SynchronousOnlyOperation, match="sync_to_async"):
            async with hold.fenced("books"):
                pass
        with pytest.raises(SynchronousOnlyOperation, match="sync_to_async"), hold.fenced("books"):
            pass


def test_without_the_app_the_error_names_it(zoo):
    with (
        zk_lock("k") as hold,
        modify_settings(INSTALLED_APPS={"remove": "django_zklock.contrib.fences"}),
        pytest.raises(ImproperlyConfigured, match=r"django_zklock\.contrib\.fences"),
    ):
        hold.fenced("books")


def test_a_refusal_of_a_valid_hold_names_a_possible_loss_of_data(zoo, ledger, row):
    """Otherwise all writes would be stale for years without an explanation. A lost hold is simply stale."""
    Account.objects.using(ledger).update(fencing_token=FAR)
    Fence.objects.using(ledger).create(name="books", token=FAR)
    everything = Account.objects.using(ledger)
    with zk_lock("k", abort_on="never") as hold:
        for call in (
            lambda: row.save_fenced(hold),
            lambda: everything.fenced(hold).update(balance=1),
            lambda: everything.fenced(hold).delete(),
            lambda: hold.fenced("books", using=ledger).__enter__(),
        ):
            with pytest.raises(StaleToken, match=r"lost its data\?.* docs/how-to/fence-your-rows\.md") as caught:
                call()
            assert caught.value.lock == "k"
        lose(hold)
        assert hold.wait_lost(10)
        with pytest.raises(StaleToken, match="was granted to another holder since"):
            row.save_fenced(hold)
