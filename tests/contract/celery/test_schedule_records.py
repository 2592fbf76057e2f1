"""Each run of a schedule is recorded once, by the leader, whatever happens to the connection."""

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.beat import ScheduleEntry
from celery.schedules import schedule
from kazoo.exceptions import NoNodeError
from support.faults import BackgroundCall, proxied
from support.proxy import MULTI
from support.work import lose
from support.zoo import TESTS, eventually

from django_zklock.contrib.celery.beat import Candidacy
from django_zklock.contrib.celery.schedule import LeadershipLost, RunRecord, ScheduleRecords, continue_from
from django_zklock.core.zk.gateway import Node

APP = Celery("ledgers", set_as_current=False)
Make = Callable[[], Candidacy]
LONG_AGO = datetime(2020, 1, 1, tzinfo=timezone.utc)


def entry(name="report", *, last=LONG_AGO, count=0):
    return ScheduleEntry(
        name=name, task="t", schedule=schedule(60, app=APP), last_run_at=last, total_run_count=count, app=APP
    )


@pytest.fixture
def candidate():
    made = []

    def make():
        made.append(Candidacy("nightly"))
        return made[-1]

    yield make
    for candidacy in made:
        candidacy.withdraw()


def ledger_of(zoo, candidacy):
    candidacy.start()
    hold = candidacy.wait(10)
    assert hold is not None
    ledger = ScheduleRecords(hold, zoo.base, "nightly")
    ledger.load()
    return ledger


def test_runs_are_counted_across_leaders(zoo, candidate):
    first, second = candidate(), candidate()
    ledger = ledger_of(zoo, first)
    ledger.adopt([entry(count=3)])
    assert [ledger.record_run(entry()).count for _ in range(3)] == [4, 5, 6]
    recorded = ledger.record_run(entry())
    first.withdraw()
    other = ledger_of(zoo, second)
    mine = entry()
    other.adopt([mine])
    assert mine.last_run_at == recorded.at
    assert mine.total_run_count == 7
    assert other.record_run(mine).count == 8
    assert other.hold.token > ledger.hold.token


def test_many_entries_and_odd_names_have_records(zoo, candidate):
    names = [f"entry {number}" for number in range(500)]
    names += ["a/b", "..", "", "x" * 300, "\udc80", "12345678901234", 7]
    first, second = candidate(), candidate()
    ledger = ledger_of(zoo, first)
    ledger.adopt([entry(name) for name in names])
    for name in names[-8:]:
        ledger.record_run(entry(name))
    first.withdraw()
    other = ledger_of(zoo, second)
    entries = [entry(name) for name in names]
    other.adopt(entries)
    assert [entry.total_run_count for entry in entries] == [0] * (len(names) - 8) + [1] * 8


def test_a_former_leader_records_no_run(zoo, candidate):
    ledger = ledger_of(zoo, candidate())
    ledger.adopt([entry()])
    zoo.client.delete(ledger.hold.path)  # as somebody who breaks the lock does
    for _ in range(2):  # refused by the servers, then by its own knowledge
        with pytest.raises(LeadershipLost):
            ledger.record_run(entry())
    ledger = ledger_of(zoo, candidate())
    lose(ledger.hold)
    eventually(lambda: ledger.hold.lost)
    with pytest.raises(LeadershipLost, match="the test took it away"):
        ledger.record_run(entry())
    (record,) = records(zoo)
    assert record.count == 0


def test_the_servers_refuse_a_former_leader(zoo, candidate, monkeypatch):
    """
    The servers decide. A process may be paused after it has looked at its clock, and write any time later.

    Its successor has recorded no run yet, so the version of the record is still the one that it knows.
    """
    first = candidate()
    ledger = ledger_of(zoo, first)
    ledger.adopt([entry()])
    monkeypatch.setattr(ledger, "check", lambda: None)
    first.withdraw()
    ledger_of(zoo, candidate())
    with pytest.raises(LeadershipLost, match="node"):
        ledger.record_run(entry())
    assert [record.count for record in records(zoo)] == [0]


def test_a_record_of_another_process_ends_the_lead(zoo, candidate):
    """Only the leader should write it. A process that finds another record does not know what was sent."""
    ledger = ledger_of(zoo, candidate())
    ledger.adopt([entry()])
    zoo.client.set(f"{zoo.base}/!beat/nightly/report", b"{}")
    with pytest.raises(LeadershipLost, match="another process"):
        ledger.record_run(entry())


def test_a_record_that_cannot_be_read_counts_as_none(zoo, candidate):
    zoo.client.create(f"{zoo.base}/!beat/nightly/report", b"\x00", makepath=True)
    ledger = ledger_of(zoo, candidate())
    mine = entry()
    ledger.adopt([mine])
    assert mine.last_run_at is not None
    assert mine.last_run_at > datetime.now(timezone.utc) - timedelta(minutes=1)
    assert ledger.record_run(mine).count == 1


def test_records_of_entries_that_left_the_schedule_go_after_a_week(zoo, candidate):
    """The record stays for a week, as a beat of an older version, without the entry, may lead for a while."""
    first, second = candidate(), candidate()
    ledger = ledger_of(zoo, first)
    ledger.adopt([entry("old"), entry("new", last=datetime.now(timezone.utc)), entry("kept")])
    first.withdraw()
    other = ledger_of(zoo, second)
    other.prune([entry("kept")])
    eventually(lambda: {record.entry for record in records(zoo)} == {"new", "kept"})


@pytest.mark.parametrize("strike", ["kill_before_op", "kill_after_op"])
def test_a_run_whose_reply_is_lost_is_recorded_once(zoo, warm_proxy, candidate, strike):
    ledger = ledger_of(zoo, candidate())

    def interrupted(call):
        fired = getattr(warm_proxy, strike)(MULTI)
        result = BackgroundCall(call).result(20)
        assert fired.is_set()
        return result

    for name in ("other", "report"):  # without the folder of the records, and with it
        interrupted(lambda name=name: ledger.adopt([entry(name), entry(f"{name} 2")]))
    assert interrupted(lambda: ledger.record_run(entry())).count == 1
    assert sorted(record.count for record in records(zoo)) == [0, 0, 0, 1]
    assert ledger.record_run(entry()).count == 2


def test_the_records_of_many_entries_take_few_requests(zoo):
    """Else the first leader would send thousands at once, and lose its lease. Long names fit in a request, too."""
    names = [*(f"entry {number}" for number in range(1200)), *(f"{number:03}" * 1000 for number in range(400))]
    with proxied(zoo, 20) as proxy:
        leader = Candidacy("nightly")
        ledger = ledger_of(zoo, leader)
        proxy.reset()
        ledger.adopt([entry(name) for name in names])
        ledger.prune([])
        eventually(lambda: not zoo.names(f"{zoo.base}/!beat/nightly"))
        assert proxy.counts[MULTI] <= 2 * (1 + 3 + 7) + 30  # creates and deletes, the missing folder, and heartbeats
        leader.withdraw()


def test_a_new_record_is_created_by_the_leader_only(zoo, candidate):
    ledger = ledger_of(zoo, candidate())
    zoo.client.create(f"{zoo.base}/!beat/nightly/second", b"{}", makepath=True)
    with pytest.raises(LeadershipLost, match="another process"):
        ledger.adopt([entry("first"), entry("second")])
    ledger = ScheduleRecords(ledger.hold, zoo.base, "hourly")
    zoo.client.delete(ledger.hold.path)
    with pytest.raises(LeadershipLost):
        ledger.adopt([entry("first"), entry("second")])
    assert zoo.names(f"{zoo.base}/!beat/hourly") == []


AT = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)
TICK = RunRecord(entry="report", at=AT, count=5)


def row(last, saved, count=1):
    """Return an entry like one of django-celery-beat."""
    model = SimpleNamespace(date_changed=saved, total_run_count=count)
    return SimpleNamespace(name="report", last_run_at=last, total_run_count=count, model=model)


@pytest.mark.parametrize(
    ("last", "saved", "expected"),
    [
        (AT - HOUR, AT - HOUR, AT),  # the leader died before it saved the row
        (AT + HOUR, AT + HOUR, AT + HOUR),  # it was switched off for a while, or saved by another leader
        (AT - HOUR, AT + HOUR, AT),  # somebody edited the row, which the leader had not saved yet
    ],
)
def test_a_row_goes_on_from_the_later_of_record_and_row(last, saved, expected):
    mine = row(last, saved)
    continue_from(mine, TICK)
    assert mine.last_run_at == expected
    assert mine.model.total_run_count == (5 if saved < AT else 1)


def test_an_entry_without_a_run_waits_from_when_it_was_first_seen():
    """Otherwise leaders that change more often than an entry is due would never send it."""
    mine = row(AT + HOUR, AT + HOUR, count=0)
    continue_from(mine, RunRecord(entry="report", at=AT, count=0))
    assert mine.last_run_at == AT


def test_a_naive_time_stays_naive_and_means_utc():
    """Some schedulers compute with such times. They mean UTC."""
    mine = entry(last=LONG_AGO.replace(tzinfo=None))
    continue_from(mine, TICK)
    assert mine.last_run_at == AT.replace(tzinfo=None)


@pytest.mark.chaos  # a matrix
def test_rows_continue_as_without_records_in_all_time_zones():
    pytest.importorskip("django_celery_beat")
    program = [sys.executable, str(TESTS / "support/rowtimes.py")]
    env = {**os.environ, "PYTHONPATH": str(TESTS.parent)}
    assert subprocess.run(program, env=env, check=True, capture_output=True, text=True).stdout == "compared\n"


def records(zoo):
    folder = f"{zoo.base}/!beat/nightly"
    rows = []
    for name in zoo.client.get_children(folder):
        path = f"{folder}/{name}"
        try:
            data, stat = zoo.client.get(path)
        except NoNodeError:  # removed since the list was made
            continue
        tick = RunRecord.decode(Node(path=path, data=data, czxid=stat.czxid, owner=0, version=stat.version))
        assert tick is not None
        rows.append(tick)
    return rows
