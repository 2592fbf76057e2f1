"""Names and rows that many use for the first time at once, and names that look alike."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from django.db import connections, transaction
from support.ledgers.models import Account

from django_zklock.contrib.fences.models import Fence
from django_zklock.contrib.fences.rows import advance
from django_zklock.exceptions import StaleToken

THREADS = 6


def one_token(using: str, round_: int, thread: int) -> None:
    with transaction.atomic(using=using):
        advance(f"{round_}", 1, using)


def rising_tokens(using: str, round_: int, thread: int) -> None:
    try:
        advance(f"{round_}", thread + 1, using)
    except StaleToken:
        assert thread + 1 < THREADS


def own_names(using: str, round_: int, thread: int) -> None:
    with transaction.atomic(using=using):
        if connections[using].vendor != "sqlite":  # which refuses to write after a read if another one wrote meanwhile
            list(Fence.objects.using(using).all())
        advance(f"{round_ * 7919 % 1000}.{thread}", 1, using)


def own_rows(using: str, round_: int, thread: int) -> None:
    row = Account(pk=round_ * 7919 % 1000 * THREADS + thread + 1, name="new")
    row.save_fenced(SimpleNamespace(key="k", token=1), using=using)


@pytest.mark.parametrize("use", [one_token, rising_tokens, own_names, own_rows])
def test_concurrent_first_uses_of_a_fence_succeed(ledger: str, use: Callable[[str, int, int], None]) -> None:
    rounds = 20 if connections[ledger].vendor == "mysql" else 5
    together = threading.Barrier(THREADS, timeout=60)

    def run(thread: int) -> None:
        try:
            for round_ in range(rounds):
                together.wait()
                use(ledger, round_, thread)
        except BaseException:
            together.abort()
            raise
        finally:
            connections[ledger].close()

    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(run, thread) for thread in range(THREADS)]:
            done.result(90)
    rows = Fence.objects.using(ledger).filter(token=THREADS if use is rising_tokens else 1).count()
    rows += Account.objects.using(ledger).count()
    assert rows == rounds * (1 if use in (one_token, rising_tokens) else THREADS)


def test_names_are_compared_byte_by_byte_and_to_their_end(ledger: str) -> None:
    """The collation of the database, which may ignore case, accents and blanks at the end, does not matter."""
    names = ["ledger", "Ledger", "ledger ", "order/e", "order/é", "order/e\u0301", "straße", "strasse", "😀", "😁"]
    tokens = {name: token for token, name in enumerate(names, start=1)}
    for _ in range(2):
        for name in reversed(names):
            advance(name, tokens[name], ledger)
    assert dict(Fence.objects.using(ledger).values_list("name", "token")) == tokens
    Fence.objects.using(ledger).all().delete()
    first, second = "k" * 999 + "1", "k" * 999 + "2"
    advance(first, 2, ledger)
    advance(second, 1, ledger)
    assert [len(name) for name in Fence.objects.using(ledger).values_list("name", flat=True)] == [255, 255]
    with pytest.raises(StaleToken) as caught:
        advance(first, 1, ledger)
    assert caught.value.lock == first
