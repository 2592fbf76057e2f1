"""The chart of the last hour and the last day: when it began, in each database, and never in the way of a page."""

import re
import time
from datetime import datetime, timedelta

import pytest
from django.db import router
from django.test import override_settings
from django.utils import timezone
from support.adminsite import LIST
from support.databases import database
from support.texts import assert_shows

from django_zklock import zk_lock
from django_zklock.contrib.events import chart
from django_zklock.contrib.events.models import Attempt

HOUR, DAY = chart.SPANS.values()


@pytest.fixture(params=[True, False], ids=["aware", "naive"])
def table(
    request,
    database_settings,
    django_db_blocker,
    monkeypatch,
):
    """Have the table in each database, with times that have a zone and with times that have none."""

    class ToIt:
        def db_for_read(self, model, **hints):
            return alias

    zone = override_settings(USE_TZ=request.param, TIME_ZONE="Asia/Kathmandu")
    with zone, django_db_blocker.unblock(), database(database_settings, Attempt) as alias:
        monkeypatch.setattr(router, "routers", [ToIt()])
        yield alias


def attempt(age, **given):
    at = datetime.fromtimestamp(time.time() - age, timezone.now().tzinfo)
    fields = {"key": "k", "pid": 1, "outcome": Attempt.RELEASED, "held": 0.0, "waited": 0.0}
    return Attempt(at=at, **{**fields, **given})


each_database = pytest.mark.parametrize(
    "database_settings", ["sqlite", "postgres", "mariadb-read committed"], indirect=True
)


def write(alias, *rows):
    Attempt._default_manager.using(alias).bulk_create(rows)


@each_database
def test_a_hold_counts_in_all_bars_that_it_covers(table):
    until_ten_minutes_ago = attempt(5400, held=4800.0)
    write(table, until_ten_minutes_ago, *(attempt(1800 + number, held=30.0, key="other") for number in range(60)))
    hour = chart._count(("", HOUR), 0.0)
    assert sum(hour.held) == pytest.approx(50.0 + 30.0, abs=1.1)  # minutes
    assert hour.held[2] == pytest.approx(1.0)
    assert hour.held[-5:] == [0.0] * 5
    of_lock = chart._count(("k", HOUR), 0.0)
    assert sum(of_lock.held) == pytest.approx(50.0, abs=1.1)
    day = chart._count(("", DAY), 0.0)
    assert sum(day.held) == pytest.approx((4800 + 1800) / 1800, abs=0.01)


@each_database
def test_a_wait_counts_in_all_bars_and_its_refusal_in_one(table):
    write(table, attempt(900, waited=600.0, held=None, outcome=Attempt.TIMED_OUT))
    hour = chart._count(("", HOUR), 0.0)
    assert sum(hour.waited) == pytest.approx(10.0, abs=0.01)
    assert max(hour.waited) == pytest.approx(1.0)
    (bar,) = [index for index, count in enumerate(hour.refused) if count]
    assert 40 <= bar < 47
    assert hour.refused[bar] == 1


@each_database
def test_a_short_row_at_the_edge_of_a_bar_is_in_both(table):
    """So a lock with one holder never has more than one."""
    second = time.time() % 60
    write(table, *(attempt(1200 + second + 30 - 40 * number, held=40.0) for number in range(20)))
    hour = chart._count(("k", HOUR), 0.0)
    assert max(hour.held) == pytest.approx(1.0, abs=0.01)
    assert sum(hour.held) == pytest.approx(800 / 60, abs=0.01)


@each_database
def test_rows_of_wrong_clocks_and_without_an_end_do_not_count(table):
    rows = (attempt(-7200, held=5.0), attempt(90_000 * 3, held=5.0), attempt(600, held=None, outcome=Attempt.HELD))
    write(table, *rows)
    assert chart._count(("", HOUR), 0.0)[1:] == ([0.0] * 60,) * 3
    assert chart._count(("", DAY), 0.0)[1:] == ([0.0] * 48,) * 3


pages = pytest.mark.usefixtures("zoo", "db")


def texts(client, path="?"):
    """Return the words of the chart of a page."""
    page = client.get(f"{LIST}{path}").content.decode()
    shown = re.search(r'<details class="zklock-chart".*?<ul>(.*?)</ul>', page, re.DOTALL)
    return " ".join(re.sub(r"<.*?>", " ", shown[1]).split()) if shown else ""


@pages
@pytest.mark.parametrize("path", ["", "?", "k/change/"])
def test_a_page_says_how_many_there_are_and_when_it_began(operator, path):
    attempt(120, waited=30.0, held=None, outcome=Attempt.TIMED_OUT).save()
    began = timezone.localtime(timezone.now() - timedelta(seconds=120), timezone.get_default_timezone())
    with zk_lock("k"):
        shown = texts(operator, path)
    assert_shows(shown, "Holders Hour: 1 now; the most, 1, at ", "Waiters Hour: 0 now; the most, 0.")
    assert_shows(shown, f"Refusals Hour: 1; the first at {began:%H:%M}.", "Day: 1; the first at")


@pages
def test_a_chart_without_rows_is_not_shown(operator):
    assert texts(operator) == ""
