"""The app of events, on a real ZooKeeper; on each database where they differ."""

import contextlib
import json
import logging
import os
import socket
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.db import connections, transaction
from django.db.models import F
from django.test import RequestFactory, override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from support.databases import database, sqlite
from support.deadlock import give_way
from support.faults import BackgroundCall, acquire_once, expire, lose, proxied
from support.refused import no_deletes
from support.signalled import signalled
from support.texts import assert_shows
from support.work import assert_refused
from support.zoo import eventually, guid_of

from django_zklock import operations, zk_lock, zk_locked
from django_zklock.contrib.events import recorder, table, writer
from django_zklock.contrib.events.models import EXIT_TIMEOUT, LATE, MAX_TEXT, Event
from django_zklock.contrib.events.writer import Writer
from django_zklock.contrib.fences.models import Fence
from django_zklock.core import clock
from django_zklock.core.queue.escaping import shortened
from django_zklock.core.zk import process, troubles
from django_zklock.exceptions import LockBusy, LockLost, LockTimeout, StaleToken

NAME = "inventory/{sku}"
LONG = "/".join(["k" * 150] * 3)

each_database = pytest.mark.parametrize("database_settings", ["sqlite", "postgres", "mariadb"], indirect=True)


@pytest.fixture
def database_settings(request, tmp_path):
    kind = getattr(request, "param", "sqlite")
    if kind == "sqlite":
        return sqlite(tmp_path / "database.sqlite3")
    server = request.getfixturevalue(kind)
    return server.settings if kind == "postgres" else server.settings("read committed")


@pytest.fixture
def alias(database_settings, zoo, django_db_blocker):
    def to_it(model, **hints):
        return name

    routed = override_settings(DATABASE_ROUTERS=[SimpleNamespace(db_for_read=to_it, db_for_write=to_it)])
    with (
        routed,
        django_db_blocker.unblock(),
        database(database_settings, Event) as name,
    ):
        recorder.connect()
        yield name
        recorder.disconnect()
        recorder.flush(10)


@pytest.fixture(autouse=True)
def own_writer(monkeypatch):
    own = Writer()
    monkeypatch.setattr(recorder, "_writer", own)
    monkeypatch.setattr(writer, "PAUSE", 600.0)  # it writes when a test says so; not while a table is made, say
    yield
    for used in (own, recorder._writer):
        if used._loop is not None:
            used._loop.stop()  # a thread of each test would stay until the end of the run


def rows():
    recorder.flush(10)
    return list(Event._default_manager.order_by("pk"))


@each_database
def test_a_hold_is_one_row(alias):
    with zk_lock(NAME, fields={"sku": "4711"}, what="the count") as hold, zk_lock(NAME, fields={"sku": "4711"}):
        began = timezone.now()
    (row,) = rows()
    assert (row.key, row.kind, row.work) == ("inventory/4711", "lock", "the count")
    assert (row.host, row.pid, row.token) == (socket.gethostname(), os.getpid(), hold.token)
    assert (row.outcome, row.reason) == (Event.RELEASED, "")
    assert all(seconds and 0 < seconds < 60 for seconds in (row.held, row.waited))
    assert abs(row.at - began) < timedelta(seconds=30)


@each_database
def test_a_hold_has_a_row_while_it_lasts(alias):
    with zk_lock("k", linger=60) as first:
        (row,) = rows()
        assert (row.outcome, row.held) == (Event.HELD, None)
    assert [row.outcome for row in rows()] == [Event.RELEASED]
    with zk_lock("k", linger=60) as second:
        assert second.token == first.token
        assert [row.outcome for row in rows()] == [Event.RELEASED, Event.HELD]
    assert [row.outcome for row in rows()] == [Event.RELEASED, Event.RELEASED]
    process.reset()  # or the lock would linger


def test_each_action_of_an_operator_is_a_row(alias):
    why = {"reason": "the machine is on fire", "by": "anna"}
    with pytest.raises(LockLost), zk_lock("a/b", what="the count", abort_on="never") as hold:
        operations.request_release("a/b", **why)
        with operations.acting_via("admin"), pytest.raises(ZeroDivisionError), transaction.atomic():
            operations.break_lock("a/b", guid=guid_of(hold.path), token=hold.token, **why)
            raise ZeroDivisionError
        hold.wait_lost(10)
        hold.check()
    with operations.acting_via("command"):
        held = operations.hold_lock("a/b", seconds=60, **why)
    operations.end_hold("a/b", token=held.token, by="bert")
    operations.set_limit("printers", 3, **why)
    operations.clear_limit("printers", **why)
    actions = [row for row in rows() if row.outcome == Event.ACTION]
    holder = f"'the count' on {socket.gethostname()}, process {os.getpid()}"
    assert [(row.key, row.by, row.reason) for row in actions] == [
        ("a/b", "anna (code)", "the machine is on fire"),
        ("a/b", "anna (admin)", "the machine is on fire"),
        ("a/b", "anna (command)", "the machine is on fire"),
        ("a/b", "bert (code)", ""),
        ("printers", "anna (code)", "the machine is on fire"),
        ("printers", "anna (code)", "the machine is on fire"),
    ]
    assert holder in actions[1].work
    assert all(row.work for row in actions)


def test_a_wait_that_timed_out_is_a_row(alias):
    with zk_lock("k"):
        BackgroundCall(lambda: assert_refused(zk_lock("k", timeout=0.2), LockTimeout)).result()
    by_outcome = {row.outcome: row for row in rows()}
    assert set(by_outcome) == {Event.RELEASED, Event.TIMED_OUT}
    timed_out = by_outcome[Event.TIMED_OUT]
    assert (timed_out.key, timed_out.token, timed_out.held) == ("k", None, None)
    assert (timed_out.waited or 0) >= 0.2


@each_database
def test_the_last_refusal_of_each_lock_is_found(alias):
    for key, outcome, seconds in (
        *(("k", Event.TIMED_OUT, 50), ("k", Event.TRIED, 20), ("k", Event.RELEASED, 5)),
        *((f"{LONG}1", Event.TRIED, 30), ("other", Event.TRIED, 2 * 86400), ("another", Event.TRIED, 1)),
    ):
        insert(shortened(key, MAX_TEXT), outcome=outcome, at=ago(seconds))
    refused = table.refused(["k", f"{LONG}1", "other"])
    assert {key: round(seconds / 10) for key, seconds in refused.items()} == {"k": 2, f"{LONG}1": 3}


def deadlock(zoo):
    return give_way(zoo, "stock/{sku}", NAME, fields={"sku": "7"}, what="sell")


def test_a_deadlock_is_a_row_with_its_story(alias, zoo):
    error = deadlock(zoo)
    recorded = rows()
    (row,) = [row for row in recorded if row.outcome == Event.DEADLOCK]
    assert (row.key, row.host, row.pid, row.token) == ("inventory/7", socket.gethostname(), os.getpid(), None)
    assert_shows(row.work, *(f"held {link.holds} and waited for {link.waits_for}" for link in error.circle))
    assert not any(row.outcome == Event.TIMED_OUT for row in recorded)


@each_database
def test_refused_tries_of_a_view_share_a_row_a_second(alias):
    """The client of the view gets an error. Other code may do without the lock. A write in between begins a new row."""

    @zk_locked("k", timeout=0)
    def pay(request):
        pytest.fail("granted")

    def request():
        with contextlib.suppress(LockBusy):
            assert pay(RequestFactory().post("/pay/")).status_code == 409

    began = clock.now()
    with zk_lock("k"):
        for _half in range(2):
            for _number in range(10):
                BackgroundCall(request).result()
            recorder.flush(10)
        assert not BackgroundCall(lambda: zk_lock("k").acquire(timeout=0)).result()
    assert 2 <= sum(row.outcome == Event.TIMED_OUT for row in rows()) <= clock.now() - began + 3
    (refused,) = table.recent(Event.TIMED_OUT, "key", 60.0)
    assert (refused.name, refused.number) == ("k", 20)


@each_database
def test_a_database_that_fails_costs_no_event(alias, caplog):
    with connections[alias].schema_editor() as editor:
        editor.delete_model(Event)
    with caplog.at_level(logging.INFO, "django_zklock.events"):
        for key in ("a", "b", "c"):
            with zk_lock(key):
                recorder.flush(10)
        with connections[alias].schema_editor() as editor:
            editor.create_model(Event)
        assert sorted(row.key for row in rows()) == ["a", "b", "c"]
    assert [record.getMessage().partition(";")[0] for record in caplog.records if "events" in record.name] == [
        "events of locks cannot be written now",
        "events of locks are written again",
    ]


@each_database
def test_an_event_that_the_database_refuses_costs_no_other(alias, caplog):
    with connections[alias].cursor() as cursor:
        column = connections[alias].ops.quote_name("key")
        cursor.execute(f"CREATE UNIQUE INDEX no_key_twice ON {Event._meta.db_table} ({column})")
    for key in ("a", "b", "b", "c", "d"):
        acquire_once(key)
    assert [row.key for row in rows()] == ["a", "b", "c", "d"]
    assert_shows(caplog.text, "refuses 10 events: each is tried alone", "refuses an event")


@pytest.mark.usefixtures("alias")
def test_too_many_events_drop_the_oldest(monkeypatch, caplog):
    monkeypatch.setattr(writer, "MOST_EVENTS", 3)
    monkeypatch.setattr(recorder, "_writer", Writer())
    for key in ("a", "b", "c"):
        acquire_once(key)
    attempts = rows()
    assert sorted((row.key, row.outcome) for row in attempts) == [("b", Event.RELEASED), ("c", Event.RELEASED)]
    assert "3 events of locks were dropped" in caplog.text


@pytest.mark.usefixtures("alias")
@pytest.mark.parametrize("database_settings", ["postgres"], indirect=True)
def test_a_process_writes_what_is_left_when_it_exits(zoo, database_settings):
    script = """
import os, sys
from django_zklock.contrib.events import recorder
recorder.connect()
recorder.flush.__defaults__ = (30.0,)  # a process that ends waits for the last write
with zk_lock("parent"):
    pass
recorder.flush(10)
with zk_lock("again"):
    pass
child = os.fork()
with zk_lock("child" if child == 0 else "last"):
    pass
if child:
    os.waitpid(child, 0)
    kept = zk_lock("kept").acquire()
sys.exit(0)
"""
    other = zoo.spawn(script, TEST_DATABASES=json.dumps({"default": database_settings}))
    _, errors = other.communicate(timeout=60)
    assert other.returncode == 0, errors
    assert sorted(row.key for row in rows()) == ["again", "child", "kept", "last", "parent"]
    by_key = {row.key: row for row in rows()}
    assert {key for key, row in by_key.items() if row.pid == other.pid} == {"again", "kept", "last", "parent"}
    assert {row.outcome for row in rows()} == {Event.RELEASED}, "an orderly end is no loss"


@each_database
def test_rows_are_deleted_when_they_are_old(alias):
    for days in (9, -300, 8, 7.1, 6.9, 0):  # the clock of one host was wrong
        insert("k", held=days, at=ago(days * 86400))
    steps = 0
    while table.delete_old(7, 2):
        steps += 1
    assert steps == 1
    assert [row.held for row in rows()] == [-300, 6.9, 0]


def test_a_refused_write_of_a_holder_is_recorded(alias):
    """The tokens of ZooKeeper have fallen."""
    with zk_lock(NAME, fields={"sku": "4711"}) as hold, hold.fenced("ledger", using=alias):
        Fence._default_manager.using(alias).update(token=hold.token + (1 << 40))
    for _ in range(3):
        with zk_lock(NAME, fields={"sku": "4711"}, what="the count") as hold, pytest.raises(StaleToken):
            hold.fenced("ledger", using=alias).__enter__()
    eventually(lambda: len([row for row in rows() if row.outcome == Event.STALE]) == 3)
    refused = Event._default_manager.filter(outcome=Event.STALE)
    assert [(row.key, row.work) for row in refused] == [("inventory/4711", "the count")] * 3


def test_a_refused_release_is_no_release_in_the_history(zoo, alias):
    """Not even if the row of the release has been written before, and the znode cannot say it."""
    with no_deletes(zoo, "k"), signalled("lock_release_refused") as sent:
        with zk_lock("k") as hold:
            pass
        eventually(lambda: len(sent) == 1)
        eventually(lambda: [row.outcome for row in rows()] == [Event.REFUSED])
        (row,) = rows()
        assert (row.token, row.held is not None) == (hold.token, True)
        assert 'the right "delete"' in row.reason
        assert [recent.name for recent in table.recent(Event.REFUSED, "key", 60.0)] == ["k"]


@each_database
def test_the_last_grants_are_those_of_the_key(alias):
    """Keys are compared byte by byte and to their end."""
    for key in ("k/a", "k/A", "k/á", "a", "b", "a", f"{LONG}1", f"{LONG}2"):
        acquire_once(key)
        recorder.flush(10)
    assert [attempt.key for attempt in table.last_grants("a", 20)] == ["a", "a"]
    assert [attempt.key for attempt in table.last_grants("k/a", 20)] == ["k/a"]
    assert len(table.last_grants(f"{LONG}1", 20)) == 1


# --- Holds without an end ---------------------------------------------------------------------------------------------


def killed(alias, *, successor=None, outage=None, kind="lock", **given):
    """Return who is said to have died of one hold without an end, and a later hold that was recorded so long ago."""
    insert("k", held=None, outcome=Event.HELD, token=7, kind=kind, host="web-1", session=1, at=ago(600), **given)
    if successor is not None:
        insert("k", held=1.0, token=8, kind=kind, host="web-2", at=ago(successor))
    Event._default_manager.update(recorded=F("at"))
    if outage is not None:
        insert("x", outcome=Event.TIMED_OUT, at=ago(outage))
        Event._default_manager.filter(key="x").update(recorded=F("at") + timedelta(seconds=EXIT_TIMEOUT + 1))
    return [(recent.name, recent.number, recent.sessions) for recent in table.recent(Event.HELD, "host", 1800.0)]


@each_database
def test_a_hold_without_an_end_that_another_one_followed_is_a_death(alias):
    assert killed(alias, successor=LATE + 1) == [("web-1", 1, 1)]


@pytest.mark.usefixtures("alias")
def test_a_hold_that_nobody_followed_is_no_death(alias):
    assert killed(alias) == []


def test_a_hold_is_no_death_before_the_longest_pause_of_the_writers(alias):
    """After an outage of the database, the row of the next holder may be written before the end of this hold."""
    assert killed(alias, successor=LATE - 5) == []


@each_database
@pytest.mark.parametrize(("outage", "is_death"), [(500, False), (700, True)], ids=["during the hold", "before"])
def test_a_hold_from_before_an_outage_of_the_database_is_no_death(alias, outage, is_death):
    """A process that ended meanwhile could not record the end. A row that was written late tells of the outage."""
    assert bool(killed(alias, successor=LATE + 1, outage=outage)) is is_death


def test_holders_of_a_semaphore_follow_each_other_without_a_death(alias):
    assert killed(alias, successor=LATE + 1, kind="semaphore") == []


# --- What the queries cost --------------------------------------------------------------------------------------------

END_OF_A_HOLD = {"key": "k/7", "token": 7, "outcome": Event.RELEASED, "held": 1.0, "reason": ""}
QUERIES = {
    "last grants": ("zklock_events_key", lambda: table.last_grants("k/7", 20)),
    "deaths": ("zklock_events_outcome", lambda: table.recent(Event.HELD, "host", 1800.0)),
    "refusals": ("zklock_events_outcome", lambda: table.recent(Event.TIMED_OUT, "key", 60.0)),
    "last refusals": ("zklock_events_", lambda: table.refused([f"k/{number}" for number in range(20)])),
    "late rows": ("zklock_events_at", lambda: list(table._written_late(1800.0))),
    "end of a hold": ("zklock_events_", lambda: table.write([{**END_OF_A_HOLD, "at": time.time()}])),
    "list": ("zklock_events_at", lambda: list(Event._default_manager.order_by("-at", "-pk")[:100])),
    "list of a lock": (
        "zklock_events_key",
        lambda: list(Event._default_manager.filter(key="k/7").order_by("-at", "-pk")[:100]),
    ),
}


@pytest.fixture
def many_rows(alias):
    now = timezone.now()
    Event._default_manager.bulk_create(
        Event(
            key=f"k/{number % 400}",
            at=now - timedelta(seconds=number),
            token=number,
            outcome=Event.RELEASED,
            kind="lock",
        )
        for number in range(20_000)
    )
    with connections[alias].cursor() as cursor:
        cursor.execute(f"ANALYZE {Event._meta.db_table}")


@pytest.mark.usefixtures("many_rows")
@pytest.mark.parametrize("database_settings", ["postgres"], indirect=True)
@pytest.mark.parametrize("name", QUERIES)
def test_each_query_uses_an_index(alias, name):
    index, query = QUERIES[name]
    with CaptureQueriesContext(connections[alias]) as queries:
        query()
    table_name = Event._meta.db_table
    asked = [query["sql"] for query in queries if table_name in query["sql"] and not query["sql"].startswith("INSERT")]
    assert asked
    for statement in asked:
        with connections[alias].cursor() as cursor:
            cursor.execute(f"EXPLAIN {statement}")
            plan = "\n".join(row[0] for row in cursor.fetchall())
        assert index in plan, plan
        assert "Seq Scan" not in plan, plan


def break_it(hold):
    operations.break_lock("k", guid=guid_of(hold.path), token=hold.token, reason="it hangs", by="anna")


def lose_by_end_of_session(zoo):
    with zk_lock("other", abort_on="never"):
        lose(zk_lock("k", abort_on="lost"), lambda hold: expire(zoo), 20)


def lose_by_cut(zoo):
    with proxied(zoo, 20) as proxy, zk_lock("other", abort_on="never"):
        lose(zk_lock("k", grace=0), lambda hold: proxy.cut_all(), 10)


def lost_rows():
    return [row for row in rows() if row.outcome in {Event.LOST, Event.CUT_OFF}]


@pytest.mark.parametrize(
    ("options", "cause", "reason"),
    [
        ({}, break_it, "its znode was deleted by another session"),
        ({"max_hold": 0.2}, lambda hold: None, "it was held for longer than max_hold, 0.2 s"),
    ],
    ids=["broken", "max_hold"],
)
@pytest.mark.usefixtures("alias", "zoo")
def test_a_hold_that_was_ended_says_why_and_is_no_loss_of_its_host(options, cause, reason):
    lose(zk_lock("k", **options), cause, 10)
    (lost,) = eventually(lost_rows)
    assert (lost.outcome, lost.reason) == (Event.LOST, reason)
    assert lost.session
    assert lost.held is not None


@pytest.mark.parametrize("cause", [lose_by_end_of_session, lose_by_cut])
@pytest.mark.usefixtures("alias")
def test_holds_that_the_network_ended_are_one_loss_of_their_host(zoo, cause):
    cause(zoo)
    lost = eventually(lost_rows)
    assert {row.reason for row in lost} <= set(troubles.ALL)
    assert len({row.session for row in lost}) == 1
    assert all(row.session and row.held is not None for row in lost)
    assert {row.outcome for row in lost} == {Event.CUT_OFF}
    (cut_off,) = table.recent(Event.CUT_OFF, "host", 60.0)
    assert (cut_off.name, cut_off.sessions) == (socket.gethostname(), 1)


def ago(seconds):
    return timezone.now() - timedelta(seconds=seconds)


def insert(key, *, held=None, **more):
    given = {"outcome": Event.RELEASED, "at": timezone.now(), "pid": 1, "waited": 0.0, **more}
    Event._default_manager.create(key=key, held=held, **given)
