"""Each run of a schedule is recorded once, by the leader, whatever happens to the connection."""

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.beat import ScheduleEntry
from celery.schedules import schedule
from support.faults import BackgroundCall
from support.proxy import MULTI
from support.work import lose
from support.zoo import TESTS, eventually

from django_zklock.contrib.celery.beat import Candidacy
from django_zklock.contrib.celery.schedule import LeadershipLost, Run, ScheduleRecords, continue_from

APP = Celery("ledgers", set_as_current=False)
NOW = datetime.now(UTC)
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
ODD_NAMES = ["a/b", "..", "", "x" * 3000, "\udc80", "12345678901234", 7]


def entry(name="report", *, last=LONG_AGO, count=0):
    every = schedule(60, app=APP)
    return ScheduleEntry(name=name, task="t", schedule=every, last_run_at=last, total_run_count=count, app=APP)


@pytest.fixture
def leader(zoo):
    """Make a new leader, in place of the one before; return its records."""
    made = []

    def lead():
        while made:
            made.pop().withdraw()
        made.append(Candidacy("nightly"))
        made[-1].start()
        records = ScheduleRecords(made[-1].wait(10), zoo.base, "nightly")
        records.load()
        return records

    yield lead
    while made:
        made.pop().withdraw()


def test_runs_are_counted_across_leaders(leader):
    first = leader()
    first.adopt([entry(count=3)])
    recorded = [first.record_run(entry()) for _ in range(4)]
    assert [run.count for run in recorded] == [4, 5, 6, 7]
    mine, second = entry(), leader()
    second.adopt([mine])
    assert (mine.last_run_at, mine.total_run_count) == (recorded[-1].at, recorded[-1].count)
    assert second.record_run(mine).count == 8
    assert second.hold.token > first.hold.token


def test_any_text_names_an_entry_and_five_thousand_have_room(leader):
    names = [*ODD_NAMES, *(f"entry {number}" for number in range(5000))]
    first = leader()
    first.adopt(map(entry, names))
    for name in ODD_NAMES:
        first.record_run(entry(name))
    entries = [entry(name) for name in names]
    leader().adopt(entries)
    assert [mine.total_run_count for mine in entries] == [1] * len(ODD_NAMES) + [0] * 5000


def test_an_entry_that_left_the_schedule_is_remembered_for_a_week(leader):
    """A beat of an older version, without the entry, may lead for a while."""
    leader().adopt([entry("old"), entry("new", last=NOW), entry("kept")])
    leader().adopt([entry("kept")])
    assert set(leader()._runs) == {"new", "kept"}


def broken(zoo, records):
    zoo.client.delete(records.hold.path)


def replaced(zoo, records):
    """Its successor has recorded no run yet, so the version is still the one that it knows: the servers decide."""
    records.check = lambda: None
    broken(zoo, records)


def lost(zoo, records):
    lose(records.hold)
    eventually(lambda: records.hold.lost)


def written_by_another(zoo, records):
    zoo.client.set(f"{zoo.base}/!beat/nightly", b"{}")


@pytest.mark.parametrize("end", [broken, replaced, lost, written_by_another])
def test_a_process_that_does_not_lead_any_more_records_no_run(zoo, leader, end):
    records = leader()
    records.adopt([entry()])
    end(zoo, records)
    before = zoo.client.get(f"{zoo.base}/!beat/nightly")[0]
    for _ in range(2):  # refused by the servers, then by its own knowledge
        with pytest.raises(LeadershipLost):
            records.record_run(entry())
    assert zoo.client.get(f"{zoo.base}/!beat/nightly")[0] == before


def test_a_record_that_cannot_be_read_counts_as_none(zoo, leader):
    zoo.client.create(f"{zoo.base}/!beat/nightly", b"\x00", makepath=True)
    records = leader()
    records.adopt([entry()])
    assert records.record_run(entry()).count == 1


@pytest.mark.parametrize("strike", ["kill_before_op", "kill_after_op"])
def test_a_run_whose_reply_is_lost_is_recorded_once(warm_proxy, leader, strike):
    records = leader()
    counts = []
    for step in (lambda: records.adopt([entry()]), lambda: counts.append(records.record_run(entry()).count)):
        fired = getattr(warm_proxy, strike)(MULTI)
        BackgroundCall(step).result(20)
        assert fired.is_set()
    assert [*counts, records.record_run(entry()).count] == [1, 2]


HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("last", "saved", "runs", "expected", "count"),
    [
        pytest.param(NOW - HOUR, NOW - HOUR, 5, NOW, 5, id="the leader died before it saved the row"),
        pytest.param(NOW + HOUR, NOW + HOUR, 5, NOW + HOUR, 1, id="it was switched off for a while"),
        pytest.param(NOW - HOUR, NOW + HOUR, 5, NOW, 1, id="somebody edited the row, which was not saved yet"),
        # Else leaders that change more often than an entry is due would never send it.
        pytest.param(NOW + HOUR, NOW + HOUR, 0, NOW, 0, id="it has not run, and waits from when it was first seen"),
    ],
)
def test_a_row_goes_on_from_the_later_of_record_and_row(last, saved, runs, expected, count):
    model = SimpleNamespace(date_changed=saved, total_run_count=1)
    row = SimpleNamespace(name="report", last_run_at=last, total_run_count=1, model=model)
    continue_from(row, Run(NOW, runs))
    assert (row.last_run_at, model.total_run_count) == (expected, count)


def test_a_naive_time_stays_naive_and_means_utc():
    """Some schedulers compute with such times. They mean UTC."""
    mine = entry(last=LONG_AGO.replace(tzinfo=None))
    continue_from(mine, Run(NOW, 5))
    assert mine.last_run_at == NOW.replace(tzinfo=None)


@pytest.mark.chaos  # a matrix
def test_rows_continue_as_without_records_in_all_time_zones():
    pytest.importorskip("django_celery_beat")
    env = {**os.environ, "PYTHONPATH": str(TESTS.parent)}
    program = [sys.executable, str(TESTS / "support/rowtimes.py")]
    assert subprocess.run(program, env=env, check=True, capture_output=True, text=True).stdout == "compared\n"
