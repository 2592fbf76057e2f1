"""Names of fences that are used for the first time by many at once, and names that look alike."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connections, transaction

from django_zklock.contrib.fences import advance
from django_zklock.contrib.fences.models import Fence
from django_zklock.exceptions import StaleToken

THREADS = 6
ROUNDS = 50


@pytest.mark.parametrize(
    "name_of",
    [
        pytest.param(lambda round_, thread: f"{round_}", id="one name"),
        pytest.param(lambda round_, thread: f"{round_ * 7919 % 1000}.{thread}", id="a name for each"),
    ],
)
@pytest.mark.parametrize("tokens", ["the same token", "rising tokens"])
def test_first_uses_at_once_all_succeed(ledger: str, name_of: Callable[[int, int], str], tokens: str) -> None:
    """Without an error of the database, whatever the transaction has read before."""
    together = threading.Barrier(THREADS, timeout=60)
    highest: dict[str, int] = {}

    def use(thread: int) -> None:
        try:
            for round_ in range(ROUNDS):
                together.wait()
                name, token = name_of(round_, thread), 1 if tokens == "the same token" else thread + 1
                try:
                    with transaction.atomic(using=ledger):
                        advance(name, token, ledger)
                except StaleToken:
                    assert tokens == "rising tokens"
        finally:
            connections[ledger].close()

    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(use, thread) for thread in range(THREADS)]:
            done.result(60)
    names = {name_of(round_, thread) for round_ in range(ROUNDS) for thread in range(THREADS)}
    assert set(Fence.objects.using(ledger).values_list("name", flat=True)) == names


def test_names_are_compared_byte_by_byte(ledger: str) -> None:
    """Whatever the collation of the database takes for equal: case, accents, blanks at the end."""
    names = ["ledger", "Ledger", "ledger ", "order/e", "order/é", "order/e\u0301", "straße", "strasse", "😀", "😁"]
    random.Random(7).shuffle(names)
    for token, name in enumerate(reversed(names), start=1):
        advance(name, token, ledger)
    for token, name in enumerate(reversed(names), start=1):
        advance(name, token, ledger)
    assert Fence.objects.using(ledger).count() == len(names)
