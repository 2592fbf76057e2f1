"""Concurrent writers of one row: the database alone keeps them in order."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from django.db import connections, models, transaction
from support.databases import on_servers
from support.faults import BackgroundCall
from support.fenced_writes import WAYS, by_fence, by_get, by_join
from support.ledgers.models import Account, Bank
from support.work import FixedFence, run_in_thread
from support.zoo import eventually

from django_zklock.contrib.fences.block import FencedBlock
from django_zklock.contrib.fences.models import Fence as FenceRow
from django_zklock.contrib.fences.rows import advance
from django_zklock.contrib.tokens.stores import DatabaseTokens
from django_zklock.exceptions import StaleToken

WRITERS = 6
WRITES = 10  # of each


@pytest.mark.parametrize("way", [by_get, *(pytest.param(way, marks=pytest.mark.chaos) for way in (by_fence, by_join))])
def test_no_update_is_lost_though_the_lock_grants_everybody(ledger, way):
    row = Account(name="a")
    row.save(using=ledger)
    tokens = itertools.count(1)
    refused = []
    together, newest_done = threading.Barrier(WRITERS), threading.Event()

    def write():
        done = 0
        try:
            while done < WRITES:
                token = next(tokens)
                if token <= WRITERS:  # the newest of the first tokens writes first, so the others are refused
                    together.wait(20)
                    assert token == WRITERS or newest_done.wait(20)
                try:
                    way(ledger, FixedFence(token), row.pk)
                    done += 1
                except StaleToken:
                    refused.append(token)
                if token == WRITERS:
                    newest_done.set()
        finally:
            connections[ledger].close()

    with ThreadPoolExecutor(WRITERS) as pool:
        for writing in [pool.submit(write) for _ in range(WRITERS)]:
            writing.result(55)
    assert Account.objects.using(ledger).get(pk=row.pk).balance == WRITERS * WRITES
    assert {*range(1, WRITERS)} <= {*refused}


@on_servers
@pytest.mark.parametrize("way", WAYS)
def test_a_writer_that_waited_for_the_row_compares_again(ledger, way):
    row = Account(name="a")
    row.save(using=ledger)

    def older():
        try:
            way(ledger, FixedFence(4), row.pk)
        finally:
            connections[ledger].close()

    with transaction.atomic(using=ledger):
        newer = Account.objects.using(ledger).fenced(FixedFence(5)).get(pk=row.pk)
        newer.balance = newer.rate = 7
        newer.save()
        writing = BackgroundCall(older)
        eventually(lambda: one_waits_for_a_lock(ledger), message="the older one does not wait")
    with pytest.raises(StaleToken):
        writing.result()
    row = Account.objects.using(ledger).get(pk=row.pk)
    assert (row.balance, row.rate, row.fencing_token) == (7, 7, 5)


def one_waits_for_a_lock(using):
    waits = {
        "postgresql": "SELECT count(*) FROM pg_locks WHERE NOT granted",
        "mysql": "SHOW STATUS LIKE 'Innodb_row_lock_current_waits'",
    }
    with connections[using].cursor() as cursor:
        cursor.execute(waits[connections[using].vendor])
        return int(cursor.fetchone()[-1]) > 0


# --- a transaction that has read before it fences: its snapshot does not decide what is stale -------------------------

STALE, NEWER = FixedFence(10), FixedFence(20)


def update_of_two_rows(using, fence, pk):
    Account.objects.using(using).fenced(fence).update(balance=777)


def update_by_aggregate(using, fence, pk):
    counted = Account.objects.using(using).annotate(n=models.Count("pk")).filter(pk=pk)
    counted.fenced(fence).update(balance=777)


def block(using, fence, name):
    with FencedBlock(fence, name, using):
        Account.objects.using(using).update(balance=777)


def advance_token(using, fence, name):
    DatabaseTokens(using, prefix="").advance(name, fence.token)


BY_NAME = [
    pytest.param(lambda using, fence, pk, way=way, name=name: way(using, fence, name), id=f"{way.__name__}-{name}")
    for way in (block, advance_token)
    for name in ("known", "new")
]


def write_as_newer_holder(using, pk):
    with transaction.atomic(using=using):
        row = Account.objects.using(using).fenced(NEWER).get(pk=pk)
        row.balance = row.rate = 100
        row.save()
        advance("known", NEWER.token, using)
        advance("new", NEWER.token, using)
    connections[using].close()


@on_servers
@pytest.mark.timeout(60)  # instead of a loop that floods the database
@pytest.mark.parametrize("way", [*WAYS, update_of_two_rows, update_by_aggregate, *BY_NAME])
def test_a_stale_holder_that_has_read_before_is_refused(ledger, way):
    row, other = Account(name="a"), Account(name="b")
    row.save(using=ledger)
    other.save(using=ledger)
    advance("known", 1, ledger)
    with pytest.raises(StaleToken), transaction.atomic(using=ledger):
        for model in (Account, FenceRow):
            list(model._base_manager.using(ledger).all())
        run_in_thread(lambda: write_as_newer_holder(ledger, row.pk))
        way(ledger, STALE, row.pk)
    rows = Account.objects.using(ledger).order_by("pk").values_list("balance", "rate", "fencing_token")
    assert list(rows) == [(100, 100, 20), (0, 0, 0)]
    assert dict(FenceRow.objects.using(ledger).values_list("name", "token")) == {"known": 20, "new": 20}


@on_servers
@pytest.mark.parametrize("by", ["get", "fence", "get by join"])
def test_a_fenced_row_is_read_as_it_is_now(ledger, by):
    row = Account(name="a", fencing_token=STALE.token)
    row.save(using=ledger)

    def write():
        Account.objects.using(ledger).update(balance=100)
        connections[ledger].close()

    with transaction.atomic(using=ledger):
        list(Account.objects.using(ledger).all())
        run_in_thread(write)
        if by == "fence":
            row.fence(STALE, refresh=True)
        else:
            row = Account.objects.using(ledger).fenced(STALE).get(**{"bookings": None} if "join" in by else {})
    assert row.balance == 100


@on_servers
def test_a_sub_select_in_the_filter_lets_no_row_escape(ledger):
    """All rows are changed or none, though the sub-select may be read from a snapshot and the rows are not."""
    rows = Account.objects.using(ledger)
    rows.bulk_create([Account(name="a"), Account(name="b")])
    banks = Bank.objects.using(ledger).filter(open=True)

    def open_bank():
        bank = Bank(name="b")
        bank.save(using=ledger)
        rows.update(bank=bank)
        rows.filter(name="a").fenced(NEWER).update(balance=100)
        connections[ledger].close()

    with suppress(StaleToken), transaction.atomic(using=ledger):
        list(banks)
        run_in_thread(open_bank)
        assert rows.filter(bank__in=banks).fenced(STALE).update(balance=777) == 0
    assert list(rows.order_by("name").values_list("balance", flat=True)) == [100, 0]
