"""
However a transaction under a lock ends: Django's `Atomic` is left as often as it was entered.

Caches of queries (django-cachalot, django-cacheops) patch `Atomic` as these tests do. They keep a state of each thread,
and a block that was entered and never left makes the thread read old rows for ever.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.db import Error, IntegrityError, OperationalError, close_old_connections, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import Atomic
from django.http import HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.template.response import SimpleTemplateResponse
from django.test import Client, override_settings
from django.urls import path
from django.views import View
from support.databases import database
from support.ledgers.models import Bank, Booking
from support.work import in_each_thread, lose, lose_later, run_in_thread

from django_zklock import current_hold, zk_lock, zk_locked, zk_locks
from django_zklock.exceptions import LockLost
from django_zklock.locks.hold import Hold

DATABASES = [
    "postgres",
    *(pytest.param(name, marks=pytest.mark.chaos) for name in ("sqlite", "mariadb-read committed", "postgres-pool")),
]
pytestmark = pytest.mark.parametrize("database_settings", DATABASES, indirect=True)
SLEEP = {"postgresql": "SELECT pg_sleep(5)", "mysql": "SELECT SLEEP(5)"}  # a server goes on after the abort


@pytest.fixture
def ledger(database_settings, django_db_blocker):
    settings = {**database_settings, "ATOMIC_REQUESTS": True}
    with django_db_blocker.unblock(), database(settings) as alias:
        yield alias


class Depth(threading.local):
    """How many blocks of Django the thread is in, as a cache of queries counts them."""

    now = 0

    def begin(self, original, block):
        original(block)
        self.now += 1

    def end(self, original, block, *error):
        self.now -= 1
        original(block, *error)


@pytest.fixture
def depth(monkeypatch):
    depth, begin, end = Depth(), Atomic.__enter__, Atomic.__exit__
    monkeypatch.setattr(Atomic, "__enter__", lambda block: depth.begin(begin, block))
    monkeypatch.setattr(Atomic, "__exit__", lambda block, *error: depth.end(end, block, *error))
    return depth


@pytest.fixture
def holders(zoo, ledger, monkeypatch):
    """How many had the lock at each COMMIT."""
    holders = []
    original = BaseDatabaseWrapper._commit

    def commit(connection):
        holders.append(len(zoo.children("seats")))
        original(connection)

    monkeypatch.setattr(BaseDatabaseWrapper, "_commit", commit)
    return holders


# --- blocks ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def own(alias, **options):
    with zk_lock("seats", atomic=alias, **options) as hold:
        yield hold


@contextlib.contextmanager
def lingering(alias, **options):
    with zk_lock("seats", atomic=alias, linger=0.2, **options) as hold:
        yield hold


@contextlib.contextmanager
def several(alias, **options):
    with zk_locks("rows", "seats", atomic=alias, **options) as holds:
        yield holds["seats"]


@contextlib.contextmanager
def fenced(alias, **options):
    with zk_lock("seats", **options) as hold, hold.fenced("seats", using=alias):
        yield hold


@contextlib.contextmanager
def savepoint(alias, **options):
    with (
        transaction.atomic(using=alias, durable=True),
        zk_lock("seats", atomic=alias, release_on="commit", **options) as hold,
    ):
        yield hold


@contextlib.contextmanager
def kept(alias, **options):
    with transaction.atomic(using=alias), zk_lock("seats", release_on="commit", **options) as hold:
        yield hold


# --- requests under ATOMIC_REQUESTS ---------------------------------------------------------------------------------


def request_locked_view(way, alias):
    @zk_locked("seats", **way.options)
    def view(request):
        return way.body(current_hold(), alias) or HttpResponse()

    request_root(view)


def request_locked_handler(way, alias):
    """Django begins the transaction before the handler acquires the lock."""

    class Handler(View):
        @zk_locked("seats", **way.options)
        def get(self, request):
            return way.body(current_hold(), alias) or HttpResponse()

    request_root(Handler.as_view())


def request_root(view):
    with override_settings(ROOT_URLCONF=(path("", view),)):
        Client().get("/")


# --- ends -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """A way in which the work under a lock may end."""

    body: Callable[[Hold, str], HttpResponseBase | None]
    error: type[BaseException] = LockLost  # which may end the block, too
    options: Mapping[str, Any] = field(default_factory=dict)  # of the lock


def write(hold, alias):
    Bank.objects.using(alias).create(name="x")


def query(alias):
    """Run a query that the abort interrupts."""
    if connections[alias].vendor == "sqlite":
        threading.Event().wait(5)
    else:
        with connections[alias].cursor() as cursor:
            cursor.execute(SLEEP[connections[alias].vendor])


def end_backend(alias):
    """End the server's side of the connection, as a fail-over does."""
    raw = connections[alias].connection
    if connections[alias].vendor == "sqlite":
        raw.close()
        return
    kill = "SELECT pg_terminate_backend({})" if connections[alias].vendor == "postgresql" else "KILL {}"
    number = raw.info.backend_pid if connections[alias].vendor == "postgresql" else raw.thread_id()
    other = connections.create_connection(alias)
    with other.cursor() as cursor:
        cursor.execute(kill.format(number))
    other.close()


def raises(hold, alias):
    write(hold, alias)
    raise ZeroDivisionError


def exits(hold, alias):
    write(hold, alias)
    raise SystemExit


def generator_closed(hold, alias):
    write(hold, alias)
    raise GeneratorExit


def savepoint_rolled_back(hold, alias):
    write(hold, alias)
    with contextlib.suppress(ZeroDivisionError), transaction.atomic(using=alias):
        raises(hold, alias)


def marked_for_rollback(hold, alias):
    write(hold, alias)
    transaction.set_rollback(True, using=alias)


def statement_refused(hold, alias):
    """PostgreSQL ends the transaction with a ROLLBACK, although Django sends COMMIT."""
    row = Bank.objects.using(alias).create(name="x")
    with contextlib.suppress(IntegrityError):
        Bank(pk=row.pk, name="y").save(using=alias, force_insert=True)


def statement_refused_in_savepoint(hold, alias):
    with transaction.atomic(using=alias):
        statement_refused(hold, alias)
    write(hold, alias)


def row_refused_by_the_commit(hold, alias):
    """The constraint is deferred, but not on MariaDB."""
    Booking(account_id=999, amount=1).save(using=alias)


def commit_fails(hold, alias):
    def fail():
        raise IntegrityError("a deferred constraint")

    write(hold, alias)
    connections[alias].__dict__["_commit"] = fail


def committed_by_hand(hold, alias):
    write(hold, alias)
    transaction.commit(using=alias)


def rolled_back_by_hand(hold, alias):
    write(hold, alias)
    transaction.rollback(using=alias)


def durable_block_inside(hold, alias):
    write(hold, alias)
    with transaction.atomic(using=alias, durable=True):
        write(hold, alias)


def on_commit_fails(hold, alias):
    write(hold, alias)
    transaction.on_commit(lambda: 1 / 0, using=alias)


def on_commit_fails_robustly(hold, alias):
    write(hold, alias)
    transaction.on_commit(lambda: 1 / 0, using=alias, robust=True)


def on_commit_locks_again(hold, alias):
    def lock_again():
        with zk_lock("seats", atomic=alias):
            write(None, alias)

    write(hold, alias)
    transaction.on_commit(lock_again, using=alias)


def lock_lost_in_on_commit(hold, alias):
    def lose_it():
        lose(hold)
        query(alias)

    write(hold, alias)
    transaction.on_commit(lose_it, using=alias)


def connection_closed(hold, alias):
    write(hold, alias)
    connections[alias].close()


def connection_closed_and_used(hold, alias):
    connection_closed(hold, alias)
    write(hold, alias)


def old_connections_closed(hold, alias):
    write(hold, alias)
    connections[alias].errors_occurred = True
    close_old_connections()


def backend_ended(hold, alias):
    backend_ended_before_commit(hold, alias)
    write(hold, alias)


def backend_ended_in_savepoint(hold, alias):
    with transaction.atomic(using=alias):
        backend_ended(hold, alias)


def backend_ended_before_commit(hold, alias):
    write(hold, alias)
    end_backend(alias)


def no_new_connection(hold, alias):
    def refuse(parameters):
        raise OperationalError("no server")

    write(hold, alias)
    end_backend(alias)
    connections[alias].__dict__["get_new_connection"] = refuse
    write(hold, alias)


def lock_lost_in_query(hold, alias):
    write(hold, alias)
    lose_later(hold, 0.2)
    query(alias)


def lock_lost_in_savepoint(hold, alias):
    with transaction.atomic(using=alias):
        write(hold, alias)
        lose(hold)
        end = threading.Event()
        while True:
            end.wait(0.01)


def lock_lost_and_checked(hold, alias):
    commit_refused(hold, alias)
    hold.check()


def slow_query(hold, alias):
    write(hold, alias)
    query(alias)


def commit_refused(hold, alias):
    """The lock is lost, and the work does not notice it."""
    write(hold, alias)
    with contextlib.suppress(BaseException):
        lose(hold)
        assert hold.wait_lost(10)
        threading.Event().wait(1)


def lock_lost_after_its_block(hold, alias):
    write(hold, alias)
    with zk_lock("more", release_on="commit") as more:
        write(hold, alias)
    lose(more)
    assert more.wait_lost(10)


def released_inside(hold, alias):
    write(hold, alias)
    hold.release()


def locked_again(hold, alias):
    with zk_lock("seats", reentrant=True, atomic=alias, release_on="commit"):
        write(hold, alias)
    with contextlib.suppress(ZeroDivisionError), zk_lock("seats", reentrant=True, release_on="commit"):
        raise ZeroDivisionError


def another_block_fails(hold, alias):
    write(hold, alias)
    with contextlib.suppress(ZeroDivisionError), zk_lock("more", atomic=alias, release_on="commit"):
        raises(hold, alias)


def renders_later(hold, alias):
    class Page(SimpleTemplateResponse):
        @property
        def rendered_content(self):
            write(hold, alias)
            return ""

    write(hold, alias)
    return Page("")


def rendering_fails(hold, alias):
    class Page(SimpleTemplateResponse):
        @property
        def rendered_content(self):
            raise ZeroDivisionError

    write(hold, alias)
    return Page("")


def streams(hold, alias):
    """It is refused."""
    write(hold, alias)
    return StreamingHttpResponse(iter("x"))


WAYS = [
    Way(write),
    Way(raises, ZeroDivisionError),
    Way(exits, SystemExit),
    Way(generator_closed, GeneratorExit),
    # Django's own ways
    Way(savepoint_rolled_back),
    Way(marked_for_rollback),
    Way(statement_refused, Error),
    Way(statement_refused_in_savepoint, Error),
    Way(row_refused_by_the_commit, IntegrityError),
    Way(commit_fails, IntegrityError),
    Way(committed_by_hand, transaction.TransactionManagementError),
    Way(rolled_back_by_hand, transaction.TransactionManagementError),
    Way(durable_block_inside, RuntimeError),
    Way(on_commit_fails, ZeroDivisionError),
    Way(on_commit_fails_robustly),
    Way(on_commit_locks_again),
    # the database goes away
    Way(connection_closed),
    Way(connection_closed_and_used, Error),
    Way(old_connections_closed),
    Way(backend_ended, Error),
    Way(backend_ended_in_savepoint, Error),
    Way(backend_ended_before_commit, Error),
    Way(no_new_connection, Error),
    # the lock goes away
    Way(lock_lost_in_query),
    Way(lock_lost_in_savepoint),
    Way(lock_lost_in_on_commit),
    Way(lock_lost_and_checked),
    Way(lock_lost_after_its_block),
    Way(slow_query, options={"max_hold": 0.5}),
    Way(commit_refused),
    Way(released_inside),
    # other blocks
    Way(locked_again),
    Way(another_block_fails),
]
RESPONSES = [Way(renders_later), Way(rendering_fails, ZeroDivisionError), Way(streams, TypeError)]
BLOCKS = [
    own,
    kept,
    *(pytest.param(block, marks=pytest.mark.chaos) for block in (lingering, several, fenced, savepoint)),
]


def named(way):
    return "-".join((way.body.__name__, *way.options))


@pytest.mark.parametrize("way", WAYS, ids=named)
@pytest.mark.parametrize("block", BLOCKS)
def test_each_block_is_left_as_often_as_it_was_entered(zoo, ledger, depth, holders, block, way):
    with ended(zoo, ledger, depth, holders, way), block(ledger, **way.options) as hold:
        way.body(hold, ledger)


@pytest.mark.chaos
@pytest.mark.parametrize("way", [*WAYS, *RESPONSES], ids=named)
@pytest.mark.parametrize("request_view", [request_locked_view, request_locked_handler])
def test_each_request_leaves_its_blocks(zoo, ledger, depth, holders, request_view, way):
    with ended(zoo, ledger, depth, holders, way):
        request_view(way, ledger)


@contextlib.contextmanager
def ended(zoo, ledger, depth, holders, way):
    """Assert in the end that nothing is left of the transaction, in this thread and for the next holder."""

    def next_holder():
        with zk_lock("seats", timeout=5), contextlib.closing(connections[ledger]):
            return Bank.objects.using(ledger).count()

    depth.now = 0
    connection = connections[ledger]
    with contextlib.suppress(way.error):
        yield
    for replaced in ("_commit", "get_new_connection"):
        connection.__dict__.pop(replaced, None)
    assert depth.now == 0
    assert holders[:1] in ([], [1])
    zoo.assert_empty(timeout=5)
    assert not connection.in_atomic_block
    assert not connection.savepoint_ids
    assert not {"commit", "rollback", "close", "set_autocommit"} & set(connection.__dict__)
    rows = run_in_thread(next_holder)
    assert rows == 1 or way.body is not write
    assert Bank.objects.using(ledger).count() == rows
    with zk_lock("seats", timeout=5, atomic=ledger):
        write(None, ledger)
    assert run_in_thread(next_holder) == rows + 1


def test_each_database_is_left_if_the_commit_of_another_one_fails(zoo, ledger, audit, depth):
    depth.now = 0

    def fail():
        raise IntegrityError("a deferred constraint")

    with pytest.raises(IntegrityError), zk_lock("seats", atomic=[ledger, "audit"]):
        write(None, ledger)
        audit.write("x")
        raw = connections[ledger].connection
        audit.connection.__dict__["_commit"] = fail
    del audit.connection.__dict__["_commit"]
    assert depth.now == 0
    assert connections[ledger].connection is raw
    assert audit.seen() == list(Bank.objects.using(ledger).all()) == []


def test_a_forked_child_leaves_its_blocks_and_not_its_parents(zoo, ledger, depth):
    depth.now = 0
    child = 0
    with contextlib.suppress(ZeroDivisionError), zk_lock("seats", atomic=ledger):
        write(None, ledger)
        child = os.fork()
        if not child:
            raise ZeroDivisionError
    if not child:
        os._exit(depth.now or connections[ledger].in_atomic_block)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert depth.now == 0
    assert Bank.objects.using(ledger).count() == 1


@in_each_thread
def test_a_query_that_an_abort_has_interrupted_leaves_no_broken_connection(zoo, ledger, run):
    """Outside of a transaction, no rollback closes it."""

    def work():
        with contextlib.closing(connections[ledger]):
            with pytest.raises(LockLost), zk_lock("seats") as hold:
                write(hold, ledger)
                lose_later(hold, 0.2)
                query(ledger)
            return Bank.objects.using(ledger).count()

    assert run(work) == 1
