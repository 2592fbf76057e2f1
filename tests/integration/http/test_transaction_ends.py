"""
However a transaction under a lock ends: Django's `Atomic` is left as often as it was entered.

Caches of queries (django-cachalot, django-cacheops) patch `Atomic` as these tests do. They keep a state of each thread,
and a block that was entered and never left makes the thread read old rows for ever.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest
from django.db import Error, IntegrityError, OperationalError, connections, transaction
from django.db.transaction import Atomic
from pytest_django import DjangoDbBlocker
from support.databases import database
from support.ledger import Ledger
from support.ledgers.models import Bank
from support.work import lose
from support.zoo import Zoo

from django_zklock import zk_lock
from django_zklock.exceptions import LockLost
from django_zklock.locks.hold import Hold

DATABASES = [
    "postgres",
    *(pytest.param(name, marks=pytest.mark.chaos) for name in ("sqlite", "mariadb-read committed")),
]
pytestmark = [
    pytest.mark.parametrize("database_settings", DATABASES, indirect=True),
    pytest.mark.filterwarnings("ignore:The lock .* is acquired after the first query:RuntimeWarning"),
]
SLEEP = {"postgresql": "SELECT pg_sleep(5)", "mysql": "SELECT SLEEP(5)"}  # a server goes on after the abort
Block: TypeAlias = "contextlib.AbstractContextManager[Hold]"
Open: TypeAlias = Callable[[str], Block]


@pytest.fixture
def ledger(database_settings: dict[str, Any], django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    with django_db_blocker.unblock(), database(database_settings) as alias:
        yield alias


class Depth(threading.local):
    """How many blocks of Django the thread is in, as a cache of queries counts them."""

    now = 0

    def begin(self, original: Callable[..., None], block: Atomic) -> None:
        original(block)
        self.now += 1

    def end(self, original: Callable[..., None], block: Atomic, *error: Any) -> None:
        self.now -= 1
        original(block, *error)


@pytest.fixture
def depth(monkeypatch: pytest.MonkeyPatch) -> Depth:
    depth, begin, end = Depth(), Atomic.__enter__, Atomic.__exit__
    monkeypatch.setattr(Atomic, "__enter__", lambda block: depth.begin(begin, block))
    monkeypatch.setattr(Atomic, "__exit__", lambda block, *error: depth.end(end, block, *error))
    return depth


# --- blocks ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def own(alias: str, **options: Any) -> Iterator[Hold]:
    with zk_lock("seats", atomic=alias, **options) as hold:
        yield hold


@contextlib.contextmanager
def fenced(alias: str, **options: Any) -> Iterator[Hold]:
    with zk_lock("seats", **options) as hold, hold.fenced("seats", using=alias):
        yield hold


@contextlib.contextmanager
def savepoint(alias: str, **options: Any) -> Iterator[Hold]:
    with (
        transaction.atomic(using=alias, durable=True),
        zk_lock("seats", atomic=alias, release_on="commit", **options) as hold,
    ):
        yield hold


@contextlib.contextmanager
def kept(alias: str, **options: Any) -> Iterator[Hold]:
    with transaction.atomic(using=alias), zk_lock("seats", release_on="commit", **options) as hold:
        yield hold


# --- ends -----------------------------------------------------------------------------------------------------------


def write(alias: str) -> None:
    Bank.objects.using(alias).create(name="x")


def query(alias: str) -> None:
    """Run a query that the abort interrupts."""
    if connections[alias].vendor == "sqlite":
        threading.Event().wait(5)
    else:
        with connections[alias].cursor() as cursor:
            cursor.execute(SLEEP[connections[alias].vendor])


def end_backend(alias: str) -> None:
    """End the server's side of the connection, as a fail-over does."""
    raw: Any = connections[alias].connection
    if connections[alias].vendor == "sqlite":
        raw.close()
        return
    kill = "SELECT pg_terminate_backend({})" if connections[alias].vendor == "postgresql" else "KILL {}"
    number = raw.info.backend_pid if connections[alias].vendor == "postgresql" else raw.thread_id()
    other = connections.create_connection(alias)
    with other.cursor() as cursor:
        cursor.execute(kill.format(number))
    other.close()


def commits(block: Any, alias: str) -> None:
    with block(alias):
        write(alias)


def raises(block: Any, alias: str) -> None:
    with contextlib.suppress(ZeroDivisionError), block(alias):
        write(alias)
        raise ZeroDivisionError


def exits(block: Any, alias: str) -> None:
    with contextlib.suppress(SystemExit), block(alias):
        write(alias)
        raise SystemExit


def savepoint_rolled_back(block: Any, alias: str) -> None:
    with block(alias):
        write(alias)
        with contextlib.suppress(ZeroDivisionError), transaction.atomic(using=alias):
            write(alias)
            raise ZeroDivisionError


def marked_for_rollback(block: Any, alias: str) -> None:
    with block(alias):
        write(alias)
        transaction.set_rollback(True, using=alias)


def on_commit_fails(block: Any, alias: str) -> None:
    with contextlib.suppress(ZeroDivisionError), block(alias):
        write(alias)
        transaction.on_commit(lambda: 1 / 0, using=alias)


def on_commit_locks_again(block: Any, alias: str) -> None:
    with block(alias):
        write(alias)
        transaction.on_commit(lambda: commits(own, alias), using=alias)


def generator_closed(block: Any, alias: str) -> None:
    def steps() -> Iterator[None]:
        with block(alias):
            write(alias)
            yield

    generator = steps()
    next(generator)
    generator.close()  # type: ignore[attr-defined]


def connection_closed(block: Any, alias: str) -> None:
    with block(alias):
        write(alias)
        connections[alias].close()


def connection_closed_and_used(block: Any, alias: str) -> None:
    with contextlib.suppress(Error), block(alias):
        write(alias)
        connections[alias].close()
        write(alias)


def backend_ended(block: Any, alias: str) -> None:
    with contextlib.suppress(Error), block(alias):
        write(alias)
        end_backend(alias)
        write(alias)


def backend_ended_before_commit(block: Any, alias: str) -> None:
    with contextlib.suppress(Error), block(alias):
        write(alias)
        end_backend(alias)


def no_new_connection(block: Any, alias: str) -> None:
    connection = connections[alias]

    def refuse(parameters: object) -> None:
        raise OperationalError("no server")

    with contextlib.suppress(Error), block(alias):
        write(alias)
        end_backend(alias)
        connection.__dict__["get_new_connection"] = refuse
        write(alias)
    del connection.__dict__["get_new_connection"]


def lock_lost_in_query(block: Any, alias: str) -> None:
    with contextlib.suppress(LockLost), block(alias) as hold:
        write(alias)
        hold._held.grant.session.post(hold._held.grant.session.loop.call_later, 0.2, lambda: lose(hold))
        query(alias)


def lock_lost_in_savepoint(block: Any, alias: str) -> None:
    with contextlib.suppress(LockLost), block(alias) as hold, transaction.atomic(using=alias):
        write(alias)
        lose(hold)
        end = threading.Event()
        while True:
            end.wait(0.01)


def max_hold_in_query(block: Any, alias: str) -> None:
    with contextlib.suppress(LockLost), block(alias, max_hold=0.5):
        write(alias)
        query(alias)


def commit_refused(block: Any, alias: str) -> None:
    """The lock is lost, and the work does not notice it."""
    with contextlib.suppress(LockLost), block(alias) as hold:
        write(alias)
        with contextlib.suppress(BaseException):
            lose(hold)
            assert hold.wait_lost(10)
            threading.Event().wait(1)


def lock_lost_after_its_block(block: Any, alias: str) -> None:
    with contextlib.suppress(LockLost), block(alias):
        write(alias)
        with zk_lock("more", release_on="commit") as hold:
            write(alias)
        lose(hold)
        assert hold.wait_lost(10)


def commit_fails(block: Any, alias: str) -> None:
    def fail() -> None:
        raise IntegrityError("a deferred constraint")

    with contextlib.suppress(IntegrityError), block(alias):
        write(alias)
        connections[alias].__dict__["_commit"] = fail
    del connections[alias].__dict__["_commit"]


def released_inside(block: Any, alias: str) -> None:
    with block(alias) as hold:
        write(alias)
        hold.release()


def locked_again(block: Any, alias: str) -> None:
    with block(alias):
        with zk_lock("seats", reentrant=True, atomic=alias, release_on="commit"):
            write(alias)
        with contextlib.suppress(ZeroDivisionError), zk_lock("seats", reentrant=True, release_on="commit"):
            raise ZeroDivisionError


WAYS: list[Callable[[Any, str], None]] = [
    commits, raises, exits, savepoint_rolled_back, marked_for_rollback, on_commit_fails, on_commit_locks_again,
    generator_closed, connection_closed, connection_closed_and_used, backend_ended, backend_ended_before_commit,
    no_new_connection, lock_lost_in_query, lock_lost_in_savepoint,
    max_hold_in_query, commit_refused, lock_lost_after_its_block, commit_fails, released_inside, locked_again,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "block", [own, kept, *(pytest.param(block, marks=pytest.mark.chaos) for block in (fenced, savepoint))]
)
def test_each_block_is_left_as_often_as_it_was_entered(
    zoo: Zoo, ledger: str, depth: Depth, block: Any, way: Callable[[Any, str], None]
) -> None:
    depth.now = 0
    way(block, ledger)
    assert depth.now == 0
    zoo.assert_empty(timeout=5)
    connection = connections[ledger]
    assert not connection.in_atomic_block
    assert not connection.savepoint_ids
    assert not {"commit", "rollback", "close", "set_autocommit"} & set(connection.__dict__)
    with zk_lock("seats", timeout=5, atomic=ledger):
        before = Bank.objects.using(ledger).count()
        write(ledger)
    assert Bank.objects.using(ledger).count() == before + 1


def test_each_database_is_left_if_the_commit_of_another_one_fails(
    zoo: Zoo, ledger: str, audit: Ledger, depth: Depth
) -> None:
    depth.now = 0

    def fail() -> None:
        raise IntegrityError("a deferred constraint")

    with pytest.raises(IntegrityError), zk_lock("seats", atomic=[ledger, "audit"]):
        write(ledger)
        audit.write("x")
        raw = connections[ledger].connection
        audit.connection.__dict__["_commit"] = fail
    del audit.connection.__dict__["_commit"]
    assert depth.now == 0
    assert connections[ledger].connection is raw
    assert audit.seen() == list(Bank.objects.using(ledger).all()) == []


def test_a_forked_child_leaves_its_blocks_and_not_its_parents(zoo: Zoo, ledger: str, depth: Depth) -> None:
    depth.now = 0
    child = 0
    with contextlib.suppress(ZeroDivisionError), zk_lock("seats", atomic=ledger):
        write(ledger)
        child = os.fork()
        if not child:
            raise ZeroDivisionError
    if not child:
        os._exit(depth.now or connections[ledger].in_atomic_block)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert depth.now == 0
    assert Bank.objects.using(ledger).count() == 1
