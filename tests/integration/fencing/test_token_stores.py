"""The table of a receiver of tokens keeps the highest one, with concurrent and paused callers."""

from __future__ import annotations

import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError, connection, connections, transaction
from django.test import modify_settings

from django_zklock.contrib.fences.models import Fence
from django_zklock.exceptions import StaleToken
from django_zklock.fencing.stores import DatabaseTokens, TokenStore


def outcome(store: TokenStore, key: str, token: int) -> bool:
    try:
        store.advance(key, token)
    except StaleToken as error:
        assert error.lock == key
        return False
    return True


@pytest.mark.django_db
def test_a_store_forgets_nothing_over_many_grants() -> None:
    store = DatabaseTokens()
    rng, highest = random.Random(5), 0
    for _ in range(300):
        token = max(1, highest + rng.randint(-5, 5))
        assert outcome(store, "a", token) == (token >= highest)
        highest = max(highest, token)
    assert outcome(store, "a", 2**63 - 1)
    assert not outcome(store, "a", 2**63 - 2)
    long = "A/%20" + "x" * 990
    assert outcome(store, f"{long}y", 2)
    assert outcome(store, long, 1), "keys are independent"


def test_threads_that_advance_at_once_keep_the_highest(ledger: str) -> None:
    store, threads = DatabaseTokens(ledger), 4
    passed, lock = [0], threading.Lock()
    start = threading.Barrier(threads)

    def work(seed: int) -> None:
        rng = random.Random(seed)
        start.wait(10)
        for _ in range(20):
            with lock:
                before = max(passed)
            token = before + rng.randint(-2, 6)
            if token > 0 and outcome(store, "a", token):
                assert token >= before, "a token passed after a higher one had"
                with lock:
                    passed.append(token)
        connections.close_all()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns between any two bytecodes
    try:
        with ThreadPoolExecutor(threads) as pool:
            for done in [pool.submit(work, seed) for seed in range(threads)]:
                done.result(50)
    finally:
        sys.setswitchinterval(interval)
    highest = max(passed)
    assert highest > 50
    assert outcome(store, "a", highest)
    assert not outcome(store, "a", highest - 1)


@pytest.mark.parametrize("before", [1, 5])
def test_no_newer_token_comes_between_the_check_and_the_commit(ledger: str, before: int) -> None:
    store = DatabaseTokens(ledger)
    store.advance("a", before)
    waiting = {  # how long another one waits for the row: 50 ms, or not at all
        "sqlite": {"timeout": 0.05},
        "postgresql": {"options": "-c lock_timeout=50"},
        "mysql": {"init_command": "SET innodb_lock_wait_timeout = 0"},
    }
    connections.settings[ledger]["OPTIONS"].update(waiting[connections[ledger].vendor])

    def newer() -> bool:
        try:
            return outcome(store, "a", 9)
        finally:
            connections[ledger].close()

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic(ledger):
            store.advance("a", 5)
            with pytest.raises(OperationalError, match=r"(?i)lock"):
                pool.submit(newer).result(20)
        assert pool.submit(newer).result(20)
    assert not outcome(store, "a", 5)


@pytest.mark.django_db(transaction=True)
def test_a_token_is_seen_only_if_its_transaction_commits_and_a_stale_one_rolls_nothing_back() -> None:
    store = DatabaseTokens()
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        store.advance("a", 9)
        raise ZeroDivisionError
    store.advance("a", 5)
    assert [(row.name, row.token) for row in Fence.objects.all()] == [("signed:a", 5)]
    with transaction.atomic():
        with pytest.raises(StaleToken):
            store.advance("a", 4)
        assert not connection.needs_rollback, "the receiver can go on, for example to record the refusal"


@pytest.mark.django_db
def test_names_of_fences_and_keys_of_tokens_do_not_collide() -> None:
    """A fence of the receiver and a lock of another service may have the same name; so may locks of two ensembles."""
    Fence.objects.create(name="a", token=99)
    DatabaseTokens().advance("a", 5)
    DatabaseTokens(prefix="west:").advance("a", 3)
    assert {row.name: row.token for row in Fence.objects.all()} == {"a": 99, "signed:a": 5, "west:a": 3}


def test_a_missing_app_is_named() -> None:
    missing = pytest.raises(ImproperlyConfigured, match=r'add "django_zklock\.contrib\.fences" to INSTALLED_APPS')
    with modify_settings(INSTALLED_APPS={"remove": "django_zklock.contrib.fences"}), missing:
        DatabaseTokens().advance("a", 1)
