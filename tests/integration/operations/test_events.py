"""The app of events, on a real ZooKeeper; on each database where they differ."""

import contextlib
import json
import logging
import os
import re
import socket
import threading
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.db import connections, transaction
from django.test import RequestFactory, override_settings
from django.utils import timezone
from support.databases import database, sqlite
from support.deadlock import give_way
from support.faults import BackgroundCall, acquire_once, connected, expire, lose, proxied
from support.refused import no_deletes
from support.signalled import signalled
from support.texts import assert_shows
from support.work import assert_refused
from support.zoo import eventually, guid_of

from django_zklock import operations, zk_lock, zk_locked
from django_zklock.contrib.events import facts, history, recorder, table, writer
from django_zklock.contrib.events.models import Attempt, OperatorAction, PastIncident
from django_zklock.contrib.events.writer import Writer
from django_zklock.contrib.fences.models import Fence
from django_zklock.core import clock
from django_zklock.core.log import flush
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
        database(database_settings, Attempt, OperatorAction, PastIncident) as name,
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
    return list(Attempt._default_manager.order_by("pk"))


@each_database
def test_a_hold_is_one_row(alias):
    with zk_lock(NAME, fields={"sku": "4711"}, what="the count") as hold, zk_lock(NAME, fields={"sku": "4711"}):
        began = timezone.now()
    (row,) = rows()
    assert (row.key, row.template, row.kind, row.work) == ("inventory/4711", NAME, "lock", "the count")
    assert (row.host, row.pid, row.token) == (socket.gethostname(), os.getpid(), hold.token)
    assert (row.outcome, row.reason) == (Attempt.RELEASED, "")
    assert all(seconds and 0 < seconds < 60 for seconds in (row.held, row.waited))
    assert abs(row.at - began) < timedelta(seconds=30)


@each_database
def test_rows_are_committed_without_autocommit(alias):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(connections.settings[alias], "AUTOCOMMIT", False)
        acquire_once("k")
        recorder.flush(10)
    with contextlib.closing(connections.create_connection(alias)) as other, other.cursor() as cursor:
        cursor.execute(f"SELECT COUNT(*) FROM {Attempt._meta.db_table}")
        assert cursor.fetchone() == (1,)


@each_database
def test_a_hold_has_a_row_while_it_lasts(alias):
    with zk_lock("k", linger=60) as first:
        (row,) = rows()
        assert (row.outcome, row.held) == (Attempt.HELD, None)
    assert [row.outcome for row in rows()] == [Attempt.RELEASED]
    with zk_lock("k", linger=60) as second:
        assert second.token == first.token
        assert [row.outcome for row in rows()] == [Attempt.RELEASED, Attempt.HELD]
    assert [row.outcome for row in rows()] == [Attempt.RELEASED, Attempt.RELEASED]
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
    recorder.flush(10)
    actions = list(OperatorAction._default_manager.order_by("pk"))
    assert [(row.what, row.key, row.via, row.by, row.token) for row in actions] == [
        ("release requested", "a/b", "code", "anna", hold.token),
        ("broken", "a/b", "admin", "anna", hold.token),
        ("held", "a/b", "command", "anna", held.token),
        ("hold ended", "a/b", "code", "bert", held.token),
        ("limit set", "printers", "code", "anna", None),
        ("limit cleared", "printers", "code", "anna", None),
    ]
    assert {row.reason for row in actions} == {why["reason"], ""}
    assert {row.holder for row in actions[:2]} == {f"'the count' on {socket.gethostname()}, process {os.getpid()}"}
    assert (actions[2].seconds, actions[4].limit, all(row.sure for row in actions)) == (60.0, 3, True)
    assert table.history(10, key="printers", what="actions") == actions[:3:-1]


def test_a_wait_that_timed_out_is_a_row(alias):
    """A try that did not wait is none, as there may be any number of them."""
    with zk_lock("k"):
        BackgroundCall(lambda: assert_refused(zk_lock("k", timeout=0), LockBusy)).result()
        BackgroundCall(lambda: assert_refused(zk_lock("k", timeout=0.2), LockTimeout)).result()
    by_outcome = {row.outcome: row for row in rows()}
    assert set(by_outcome) == {Attempt.RELEASED, Attempt.TIMED_OUT}
    timed_out = by_outcome[Attempt.TIMED_OUT]
    assert (timed_out.key, timed_out.token, timed_out.held) == ("k", None, None)
    assert (timed_out.waited or 0) >= 0.2


def deadlock(zoo):
    return give_way(zoo, "stock/{sku}", NAME, fields={"sku": "7"}, what="sell")


def test_a_deadlock_has_a_row_for_each_wait(alias, zoo):
    error = deadlock(zoo)
    recorded = rows()
    first, second = [row for row in recorded if row.outcome == Attempt.DEADLOCK]
    assert (first.key, first.template, first.reason) == ("inventory/7", NAME, "stock/7")
    assert (second.key, second.template, second.reason) == ("stock/7", "stock/{sku}", "inventory/7")
    assert [(link.waits_for, link.holds) for link in error.circle] == [(row.key, row.reason) for row in (first, second)]
    for row in (first, second):
        assert (row.host, row.pid) == (socket.gethostname(), os.getpid())
        assert re.fullmatch(r"sell at tests/support/deadlock\.py:\d+", row.work), "this process knows where"
        assert (row.token, row.at) == (None, first.at)
    assert (first.waited is None, second.waited is None) == (False, True)
    assert not any(row.outcome == Attempt.TIMED_OUT for row in recorded)


def test_the_history_says_which_wait_of_a_deadlock_was_ended(alias, zoo):
    deadlock(zoo)
    recorder.flush(10)
    events, _older = history.history(10, reply_timeout=30, what=Attempt.DEADLOCK)
    assert [(event.key, event.what, event.reason) for event in events] == [
        ("stock/7", "Deadlock: held inventory/7", ""),
        ("inventory/7", "Deadlock: held stock/7; its wait was ended", ""),
    ]


def test_the_log_has_each_wait_of_a_deadlock(zoo, caplog):
    error = deadlock(zoo)
    (record,) = [record for record in caplog.records if "a deadlock has ended" in record.getMessage()]
    assert (record.levelname, record.lock) == ("WARNING", "inventory/7")
    links = [f"holds '{link.holds}' and waits for '{link.waits_for}'" for link in error.circle]
    assert_shows(record.getMessage(), *links)


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
    assert 2 <= sum(row.outcome == Attempt.TIMED_OUT for row in rows()) <= clock.now() - began + 3
    assert table.past_refused.get(60.0, 0.0, 0.0) == {"k": (20, 21)}


@each_database
def test_a_row_of_a_process_from_before_the_last_columns_is_about_one_caller(alias):
    """It does not name them while a deployment replaces the processes."""
    names = ["key", "template", "kind", "host", "pid", "work", "at", "outcome", "reason"]
    with connections[alias].cursor() as cursor:
        quoted = ", ".join(map(connections[alias].ops.quote_name, names))
        values = "'k', 'k', 'lock', 'web-1', 7, '', CURRENT_TIMESTAMP, 'timed out', ''"
        cursor.execute(f"INSERT INTO zklock_events_attempt ({quoted}) VALUES ({values})")
    assert [row.count for row in rows()] == [1]


@each_database
def test_a_database_that_fails_costs_no_event(alias, caplog):
    with connections[alias].schema_editor() as editor:
        editor.delete_model(Attempt)
    with caplog.at_level(logging.INFO, "django_zklock.events"):
        for key in ("a", "b", "c"):
            with zk_lock(key):
                recorder.flush(10)
        with connections[alias].schema_editor() as editor:
            editor.create_model(Attempt)
        assert sorted(row.key for row in rows()) == ["a", "b", "c"]
    assert [record.getMessage().partition(";")[0] for record in caplog.records if "events" in record.name] == [
        "events of locks cannot be written now",
        "events of locks are written again",
    ]


@each_database
def test_an_event_that_the_database_refuses_costs_no_other(alias, caplog):
    with connections[alias].cursor() as cursor:
        column = connections[alias].ops.quote_name("key")
        cursor.execute(f"CREATE UNIQUE INDEX no_key_twice ON {Attempt._meta.db_table} ({column})")
    for key in ("a", "b", "b", "c", "d"):
        acquire_once(key)
    assert [row.key for row in rows()] == ["a", "b", "c", "d"]
    assert all(said in caplog.text for said in ("refuses 10 events: each is tried alone", "refuses an event"))


REFUSE_B = {
    "sqlite": "CREATE TRIGGER refuse_b BEFORE INSERT ON {table} WHEN NEW.key = 'b' BEGIN SELECT RAISE(ABORT, 'b'); END",
    "postgresql": """
        CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'b'; END $$;
        CREATE TRIGGER refuse_b BEFORE INSERT ON {table} FOR EACH ROW WHEN (NEW.key = 'b') EXECUTE FUNCTION refuse()
        """,
    "mysql": "CREATE TRIGGER refuse_b BEFORE INSERT ON {table} FOR EACH ROW "
    "IF NEW.`key` = 'b' THEN SIGNAL SQLSTATE '45000'; END IF",
}


@each_database
def test_an_error_that_may_be_an_outage_costs_one_event_at_most(alias, caplog):
    """If the database takes other rows, it is no outage. A row that it refuses twice is dropped."""
    with connections[alias].cursor() as cursor:
        cursor.execute(REFUSE_B[connections[alias].vendor].format(table=Attempt._meta.db_table))
    for key in ("a", "b", "c", "b", "d"):
        acquire_once(key)
    eventually(lambda: [row.key for row in rows()] == ["a", "c", "d"])
    assert "refuses an event" in caplog.text
    with zk_lock("b"):
        recorder.flush(10)
    acquire_once("e")
    eventually(lambda: [row.key for row in rows()] == ["a", "c", "d", "e"])


@pytest.mark.usefixtures("alias")
def test_too_many_events_drop_the_oldest(monkeypatch, caplog):
    monkeypatch.setattr(writer, "MOST_EVENTS", 3)
    monkeypatch.setattr(recorder, "_writer", Writer())
    for key in ("a", "b", "c"):
        acquire_once(key)
    attempts = rows()
    assert sorted((row.key, row.outcome) for row in attempts) == [("b", Attempt.RELEASED), ("c", Attempt.RELEASED)]
    assert "3 events of locks were dropped" in caplog.text


@pytest.mark.usefixtures("alias")
def test_a_lock_is_free_to_use_while_no_thread_can_record_it(monkeypatch, caplog):
    def fail(_):
        raise RuntimeError("can't start new thread")

    connected()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        acquire_once("a")
        assert flush(5)
    assert "an event of lock 'a' was not recorded" in caplog.text
    acquire_once("b")
    assert [row.key for row in rows()] == ["a", "b"], "it is written later"


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
    assert [row.key for row in rows() if row.outcome != Attempt.RELEASED] == ["kept"]
    assert by_key["kept"].outcome == Attempt.LOST


@each_database
def test_rows_are_deleted_when_they_are_old(alias):
    for days in (9, -300, 8, 7.1, 6.9, 0):  # the clock of one host was wrong
        insert("k", held=days, at=timezone.now() - timedelta(days=days))
    steps = 0
    while table.delete_old(7, 2):
        steps += 1
    assert steps == 3
    assert [row.held for row in rows()] == [-300, 6.9, 0]


def test_a_refused_write_of_a_holder_is_recorded(alias):
    """The tokens of ZooKeeper have fallen."""
    with zk_lock(NAME, fields={"sku": "4711"}) as hold, hold.fenced("ledger", using=alias):
        Fence._default_manager.using(alias).update(token=hold.token + (1 << 40))
    for _ in range(3):
        with zk_lock(NAME, fields={"sku": "4711"}, what="the count") as hold, pytest.raises(StaleToken):
            hold.fenced("ledger", using=alias).__enter__()
    eventually(lambda: len([row for row in rows() if row.outcome == Attempt.STALE]) == 3)
    refused = Attempt._default_manager.filter(outcome=Attempt.STALE)
    assert [(row.key, row.template, row.work) for row in refused] == [("inventory/4711", NAME, "the count")] * 3
    assert [(template, keys) for template, keys, _began in facts.stale()] == [(NAME, ["inventory/4711"] * 3)]


def test_a_refused_release_is_no_release_in_the_history(zoo, alias):
    """Not even if the row of the release has been written before, and the znode cannot say it."""
    with no_deletes(zoo, "k"), signalled("lock_release_refused") as sent:
        with zk_lock("k") as hold:
            pass
        eventually(lambda: len(sent) == 1)
        eventually(lambda: [row.outcome for row in rows()] == [Attempt.REFUSED])
        (row,) = rows()
        assert (row.token, row.held is not None) == (hold.token, True)
        assert 'the right "delete"' in row.reason
        assert facts.refused_releases() == {hold.token: row.reason}
        assert str(history.WHAT[row.outcome]) == "Release refused"


def test_the_correction_of_a_release_finds_its_row_in_another_batch(alias):
    grant = table.Attempted(Attempt.HELD, time.time(), "k", "k", "lock", 7, "work")
    table.write([grant, table.Ended(grant, Attempt.RELEASED, 1.0, "")])
    table.write([table.Ended(grant, Attempt.REFUSED, 1.0, "no right")])
    assert [(row.outcome, row.reason) for row in rows()] == [(Attempt.REFUSED, "no right")]


def test_the_usual_hold_is_a_median(alias):
    for held in (1, 2, 100, 4):
        insert("k", held=held)
    insert("k", held=50, outcome=Attempt.LOST)
    insert("other", held=50)
    assert facts.usual_hold("k") is None
    insert("k", held=3)
    table.usual.clear()
    assert facts.usual_hold("k") == 3
    for _ in range(table.USUAL_OF):
        insert("k", held=7, at=timezone.now() + timedelta(seconds=1))
    assert facts.usual_hold("k") == 3, "a median is used for a minute"
    table.usual.clear()
    assert facts.usual_hold("k") == 7


def test_the_usual_wait_is_that_before_the_last_hour(alias):
    """A convoy would soon make its own waits the usual ones."""
    for minutes, waited in ((90, 2), (80, 3), (70, 4), (65, 100), (61, 1), (59, 90), (1, 95)):
        insert("k", held=1, waited=waited, at=timezone.now() - timedelta(minutes=minutes))
    assert facts.usual_wait("k") == 3
    assert facts.usual_wait("other") is None


@each_database
def test_the_last_grants_are_those_of_the_key(alias):
    """Keys are compared byte by byte and to their end."""
    for key in ("k/a", "k/A", "k/á", "a", "b", "a", f"{LONG}1", f"{LONG}2"):
        acquire_once(key)
        recorder.flush(10)
    assert [attempt.key for attempt in table.last_grants("a", 20)] == ["a", "a"]
    assert [attempt.key for attempt in table.last_grants("k/a", 20)] == ["k/a"]
    assert len(table.last_grants(f"{LONG}1", 20)) == 1
    assert len(table.history(20, key=f"{LONG}1")) == 1


@each_database
def test_the_newest_rows_come_first(alias):
    for key in ("a", "b", "a", "c"):
        acquire_once(key)
        recorder.flush(10)
    newest = table.history(3)
    assert [attempt.key for attempt in newest] == ["c", "a", "b"]
    assert newest[0].at >= newest[1].at >= newest[2].at


@each_database
def test_rows_of_one_time_are_paged_by_their_keys(alias):
    at = timezone.now() - timedelta(minutes=1)
    for number in range(6):
        insert(f"paged/{number}", held=1, at=at)
    *shown, following = table.history(4, part="paged/")
    rest = table.history(4, part="paged/", before=following.at, row=following.pk)
    assert [row.key for row in (*shown, *rest)] == [f"paged/{number}" for number in (5, 4, 3, 2, 1, 0)]


@each_database
def test_a_text_is_searched(alias):
    """In the last day, or from the time that the caller gives: no index finds a part of a text."""
    now = timezone.now()
    insert("inventory/4711", held=1, work="task charge", host="worker-7", pid=812)
    insert("inventory/4712", held=1, work="task refund", host="worker-8", pid=813)
    insert("inventory/4711", held=1, work="task charge", host="worker-7", pid=812, at=now - timedelta(days=3))
    for wanted in ({"part": "4711"}, {"who": "CHARGE"}, {"who": "worker-7"}, {"who": "812"}):
        assert len(table.history(9, **wanted)) == 1, wanted
        assert len(table.history(9, since=now - timedelta(days=4), **wanted)) == 2, wanted
    for nobody in ("9" * 40, "²", "%", "task_charge"):
        assert table.history(9, who=nobody) == []
    assert len(table.history(9, host="worker-7")) == 2


@each_database
def test_refusals_and_losses_begin_after_their_last_pause(alias):
    now = timezone.now().replace(second=0, microsecond=0)
    for minutes in (90, 40, 20, 0):
        insert("k", held=0, outcome=Attempt.TIMED_OUT, at=now - timedelta(minutes=minutes))
        insert("k", outcome=Attempt.LOST, host="h", held=60, at=now - timedelta(minutes=minutes + 1))
    for wanted in ({"key": "k", "outcome": Attempt.TIMED_OUT}, {"host": "h", "outcome": Attempt.LOST}):
        assert table.began(1800, **wanted) == str(now - timedelta(minutes=40))


def break_it(hold):
    operations.break_lock("k", guid=guid_of(hold.path), token=hold.token, reason="it hangs", by="anna")


def lose_by_end_of_session(zoo):
    with zk_lock("other", abort_on="never"):
        lose(zk_lock("k", abort_on="lost"), lambda hold: expire(zoo), 20)


def lose_by_cut(zoo):
    with proxied(zoo, 20) as proxy, zk_lock("other", abort_on="never"):
        lose(zk_lock("k", grace=0), lambda hold: proxy.cut_all(), 10)


def lost_rows():
    return [row for row in rows() if row.outcome == Attempt.LOST]


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
    assert lost.reason == reason
    assert lost.session
    assert lost.held is not None
    assert table.past_losses.get(60.0, 0.0, 0.0) == {}


@pytest.mark.parametrize("cause", [lose_by_end_of_session, lose_by_cut])
@pytest.mark.usefixtures("alias")
def test_holds_that_the_network_ended_are_one_loss_of_their_host(zoo, cause):
    cause(zoo)
    lost = eventually(lost_rows)
    assert {row.reason for row in lost} <= set(troubles.ALL)
    assert len({row.session for row in lost}) == 1
    assert all(row.session and row.held is not None for row in lost)
    assert table.past_losses.get(60.0, 0.0, 0.0) == {socket.gethostname(): 1}


@each_database
def test_each_reason_of_a_doubt_counts_as_a_loss_once_for_a_session(alias):
    """Holds with `grace=0` end with the first doubt, so each doubt is a reason of losses."""
    ago = timezone.now() - timedelta(hours=2)
    for number, reason in enumerate(troubles.ALL):
        insert("k", held=1, host="worker-7", session=number, outcome=Attempt.LOST, reason=reason)
    insert("k", held=7200, host="long", outcome=Attempt.LOST, reason=troubles.SESSION_OVER, at=ago)
    insert("k", held=1, host="once", outcome=Attempt.LOST, reason=troubles.SESSION_OVER, at=ago)
    for pid in (1, 1, 2):  # pool processes with one session, and rows from before there were sessions
        insert("k", held=1, host="pool", pid=pid, session=-7, outcome=Attempt.LOST, reason=troubles.LEASE_OVER)
        insert("k", held=1, host="before", pid=pid, outcome=Attempt.LOST, reason=troubles.CONNECTION_BROKE)
    losses = {"worker-7": len(troubles.ALL), "long": 1, "pool": 1, "before": 2}
    assert table.past_losses.get(60.0, 0.0, 0.0) == losses


def insert(template, *, held, **more):
    given = {"outcome": Attempt.RELEASED, "at": timezone.now(), "pid": 1, "waited": 0.0, **more}
    Attempt._default_manager.create(key=template, template=template, held=held, **given)
