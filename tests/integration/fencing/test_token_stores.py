"""The tables of tokens and of fences: the highest token stays, however many come at once, and names do not collide."""

import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError, connection, connections, transaction
from django.test import modify_settings
from support.ledgers.models import Account

from django_zklock.contrib.fences.models import Fence
from django_zklock.contrib.fences.rows import advance
from django_zklock.contrib.tokens.stores import DatabaseTokens
from django_zklock.exceptions import StaleToken


def outcome(store, key, token):
    try:
        store.advance(key, token)
    except StaleToken as error:
        assert error.lock == key
        return False
    return True


def test_threads_that_advance_at_once_keep_the_highest(ledger):
    store, threads = DatabaseTokens(ledger), 4
    passed, lock = [0], threading.Lock()
    start = threading.Barrier(threads)

    def work(seed):
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
def test_no_newer_token_comes_between_the_check_and_the_commit(ledger, before):
    store = DatabaseTokens(ledger)
    store.advance("a", before)
    waiting = {  # how long another one waits for the row: 50 ms, or not at all
        "sqlite": {"timeout": 0.05},
        "postgresql": {"options": "-c lock_timeout=50"},
        "mysql": {"init_command": "SET innodb_lock_wait_timeout = 0"},
    }
    connections.settings[ledger]["OPTIONS"].update(waiting[connections[ledger].vendor])

    def newer():
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
def test_a_token_counts_once_its_transaction_commits_and_a_stale_one_ends_none():
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
def test_names_of_fences_and_keys_of_tokens_do_not_collide():
    """A fence of the receiver and a lock of another service may have the same name; so may locks of two ensembles."""
    Fence.objects.create(name="a", token=99)
    DatabaseTokens().advance("a", 5)
    DatabaseTokens(prefix="west:").advance("a", 3)
    assert {row.name: row.token for row in Fence.objects.all()} == {"a": 99, "signed:a": 5, "west:a": 3}


def test_a_missing_app_is_named():
    missing = pytest.raises(ImproperlyConfigured, match=r'add "django_zklock\.contrib\.fences" to INSTALLED_APPS')
    with modify_settings(INSTALLED_APPS={"remove": "django_zklock.contrib.fences"}), missing:
        DatabaseTokens().advance("a", 1)


THREADS = 6


def one_token(using, round_, thread):
    with transaction.atomic(using=using):
        advance(f"{round_}", 1, using)


def rising_tokens(using, round_, thread):
    try:
        advance(f"{round_}", thread + 1, using)
    except StaleToken:
        assert thread + 1 < THREADS


def own_names(using, round_, thread):
    with transaction.atomic(using=using):
        if connections[using].vendor != "sqlite":  # which refuses to write after a read if another one wrote meanwhile
            list(Fence.objects.using(using).all())
        advance(f"{round_ * 7919 % 1000}.{thread}", 1, using)


def own_rows(using, round_, thread):
    row = Account(pk=round_ * 7919 % 1000 * THREADS + thread + 1, name="new")
    row.save_fenced(SimpleNamespace(key="k", token=1), using=using)


@pytest.mark.parametrize("use", [one_token, rising_tokens, own_names, own_rows])
def test_concurrent_first_uses_of_a_fence_succeed(ledger, use):
    rounds = 20 if connections[ledger].vendor == "mysql" else 5
    together = threading.Barrier(THREADS, timeout=60)

    def run(thread):
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


def test_names_are_compared_byte_by_byte_and_to_their_end(ledger):
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
