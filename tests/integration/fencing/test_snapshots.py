"""A transaction that has read before it fences: its snapshot does not decide what is stale."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from django.db import connections, models, transaction
from support.fenced_writes import WAYS
from support.ledgers.models import Account, Bank
from support.work import FixedFence, run_in_thread

from django_zklock.contrib.fences.block import FencedBlock
from django_zklock.contrib.fences.models import Fence
from django_zklock.contrib.fences.rows import advance
from django_zklock.exceptions import StaleToken
from django_zklock.fencing.stores import DatabaseTokens

STALE, NEWER = FixedFence(10), FixedFence(20)


def update_of_two_rows(using: str, fence: FixedFence, pk: int) -> None:
    Account.objects.using(using).fenced(fence).update(balance=777)


def update_by_aggregate(using: str, fence: FixedFence, pk: int) -> None:
    counted = Account.objects.using(using).annotate(n=models.Count("pk")).filter(pk=pk)
    counted.fenced(fence).update(balance=777)


def block(using: str, fence: FixedFence, name: str) -> None:
    with FencedBlock(fence, name, using):
        Account.objects.using(using).update(balance=777)


def advance_token(using: str, fence: FixedFence, name: str) -> None:
    DatabaseTokens(using, prefix="").advance(name, fence.token)


BY_NAME = [
    pytest.param(lambda using, fence, pk, way=way, name=name: way(using, fence, name), id=f"{way.__name__}-{name}")
    for way in (block, advance_token)
    for name in ("known", "new")
]


def write_as_newer_holder(using: str, pk: int) -> None:
    with transaction.atomic(using=using):
        row = Account.objects.using(using).fenced(NEWER).get(pk=pk)
        row.balance = row.rate = 100
        row.save()
        advance("known", NEWER.token, using)
        advance("new", NEWER.token, using)
    connections[using].close()


@pytest.mark.timeout(60)  # instead of a loop that floods the database
@pytest.mark.parametrize("way", [*WAYS, update_of_two_rows, update_by_aggregate, *BY_NAME])
def test_a_stale_holder_that_has_read_before_is_refused(
    ledger: str, way: Callable[[str, FixedFence, int], None]
) -> None:
    if connections[ledger].vendor == "sqlite":
        return  # refuses any write of a transaction that has read before another one wrote: "database is locked"
    row, other = Account(name="a"), Account(name="b")
    row.save(using=ledger)
    other.save(using=ledger)
    advance("known", 1, ledger)
    with pytest.raises(StaleToken), transaction.atomic(using=ledger):
        for model in (Account, Fence):
            list(model._base_manager.using(ledger).all())
        run_in_thread(lambda: write_as_newer_holder(ledger, row.pk))
        way(ledger, STALE, row.pk)
    rows = Account.objects.using(ledger).order_by("pk").values_list("balance", "rate", "fencing_token")
    assert list(rows) == [(100, 100, 20), (0, 0, 0)]
    assert dict(Fence.objects.using(ledger).values_list("name", "token")) == {"known": 20, "new": 20}


@pytest.mark.parametrize("by", ["get", "fence", "get by join"])
def test_a_fenced_row_is_read_as_it_is_now(ledger: str, by: str) -> None:
    """Also if the row has the token of this holder already, and the transaction has read it before."""
    if connections[ledger].vendor == "sqlite":
        return
    row = Account(name="a", fencing_token=STALE.token)
    row.save(using=ledger)

    def write() -> None:
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


def test_a_sub_select_in_the_filter_lets_no_row_escape(ledger: str) -> None:
    """All rows are changed or none, though the sub-select may be read from a snapshot and the rows are not."""
    if connections[ledger].vendor == "sqlite":
        return
    rows = Account.objects.using(ledger)
    rows.bulk_create([Account(name="a"), Account(name="b")])
    banks = Bank.objects.using(ledger).filter(open=True)

    def open_bank() -> None:
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
