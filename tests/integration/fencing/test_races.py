"""Concurrent writers of one row: the database alone keeps them in order."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connections, transaction
from support.faults import BackgroundCall
from support.fenced_writes import WAYS, by_fence, by_get, by_join
from support.ledgers.models import Account
from support.work import FixedFence
from support.zoo import eventually

from django_zklock.exceptions import StaleToken
from django_zklock.fencing import Fence

WRITERS = 6
WRITES = 10  # of each


Way = Callable[[str, Fence, int], None]


@pytest.mark.slow
@pytest.mark.parametrize("way", [by_get, *(pytest.param(way, marks=pytest.mark.chaos) for way in (by_fence, by_join))])
def test_no_update_is_lost_though_the_lock_grants_everybody(ledger: str, way: Way) -> None:
    """Values that are read after the fence are up to date when they are written."""
    row = Account(name="a")
    row.save(using=ledger)
    tokens = itertools.count(1)
    refused: list[int] = []
    together, newest_done = threading.Barrier(WRITERS), threading.Event()

    def write() -> None:
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


@pytest.mark.parametrize("way", WAYS)
def test_a_writer_that_waited_for_the_row_compares_again(ledger: str, way: Way) -> None:
    if connections[ledger].vendor == "sqlite":
        return  # has one writer, and what waits there has not begun to compare
    row = Account(name="a")
    row.save(using=ledger)

    def older() -> None:
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


def one_waits_for_a_lock(using: str) -> bool:
    waits = {
        "postgresql": "SELECT count(*) FROM pg_locks WHERE NOT granted",
        "mysql": "SHOW STATUS LIKE 'Innodb_row_lock_current_waits'",
    }
    with connections[using].cursor() as cursor:
        cursor.execute(waits[connections[using].vendor])
        return int(cursor.fetchone()[-1]) > 0
