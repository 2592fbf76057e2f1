"""The incidents of the last day: begun, ended, how many waited, and who acted; and what is next in line."""

import html
import re
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from support.adminsite import LIST
from support.browser.actors import Part, staged
from support.locking import ending

from django_zklock import inspection
from django_zklock.contrib.events import table
from django_zklock.contrib.events.models import Attempt, OperatorAction, PastIncident
from django_zklock.report import past

pytestmark = pytest.mark.django_db


@pytest.fixture
def stage(zoo, monkeypatch):
    monkeypatch.setattr("django_zklock.admin.LockAdmin.long_held", 0.001)
    with staged(zoo) as stage:
        yield stage


def hang(stage, key="stock"):
    return [stage.join_queue(key, Part("worker-1", 7, waited=1)), stage.join_queue(key, Part("web-1"))]


def page(client, **headers):
    inspection.snapshot(max_age=0.0, max_waiters=1)
    return html.unescape(" ".join(client.get(LIST, headers=headers).content.decode().split()))


def over(text):
    part = text.partition("Incidents of the last 24 hours")[2].partition("</ul>")[0]
    return [re.sub(" +", " ", re.sub("<.*?>", "", row)).strip() for row in re.findall("<li>(.*?)</li>", part)]


def test_an_incident_that_is_over_is_listed(stage, operator):
    paths = hang(stage)
    assert over(page(operator)) == [], "it has a card"
    for path in paths:
        stage.quit_queue(path)
    (row,) = over(page(operator))
    clock = r"\d\d:\d\d:\d\d"
    held = r"worker-1 · pid 7 has held stock for \d+\.\d s"
    assert re.fullmatch(rf"{clock} – {clock} {held} at most 1 caller waited · nobody acted", row)


def test_the_list_is_in_the_language_of_the_page(stage, operator):
    for path in hang(stage):
        page(operator)
        stage.quit_queue(path)
    german = page(operator, **{"Accept-Language": "de"}).partition("Vorfälle der letzten 24 Stunden")[2]
    (row,) = over(f"Incidents of the last 24 hours {german}")
    assert "hält stock seit" in row


def test_operators_who_acted_on_its_locks_are_named(stage, operator):
    paths = hang(stage)
    page(operator)
    OperatorAction(key="stock", what="broken", by="anna", at=timezone.now()).save()
    OperatorAction(key="stock", what="stack shown", by="bert", at=timezone.now()).save()
    OperatorAction(key="other", what="broken", by="carl", at=timezone.now()).save()
    for path in paths:
        stage.quit_queue(path)
    (row,) = over(page(operator))
    assert row.endswith("acted: anna")


def test_incidents_that_only_the_doctor_saw_are_listed(stage, zoo, operator):
    path = zoo.client.create(f"{zoo.base}/a/b/foreign-", sequence=True, makepath=True)
    ending("doctor", "--incident")
    zoo.client.delete(path)
    (row,) = over(page(operator))
    assert "Unknown znode in the queue: a/b" in row


def test_the_most_callers_are_kept(stage, operator):
    hang(stage)
    page(operator)
    more = [stage.join_queue("stock", Part(f"web-{number}")) for number in range(2, 5)]
    page(operator)
    for path in more:
        stage.quit_queue(path)
    page(operator)
    assert PastIncident.objects.get().peak == 4


def test_an_incident_that_returns_has_the_same_row(stage, operator, zoo):
    """Its length is that of the last time."""
    path = zoo.client.create(f"{zoo.base}/a/b/foreign-", sequence=True, makepath=True)
    page(operator)
    hour = timezone.now() - timedelta(hours=1)
    PastIncident.objects.update(at=hour, seen_at=hour)
    page(operator)
    zoo.client.delete(path)
    assert "×2" in over(page(operator))[0]
    assert PastIncident.objects.get().at > hour


def test_a_calm_look_neither_reads_nor_writes_incidents(zoo):
    with CaptureQueriesContext(connection) as queries:
        ending("doctor", "--incident")
    assert not [query for query in queries if "pastincident" in query["sql"]]


def test_an_incident_that_lasts_is_not_written_at_each_look(stage, operator):
    hang(stage)
    page(operator)
    with CaptureQueriesContext(connection) as queries:
        page(operator)
    written = [query["sql"] for query in queries if re.match("(INSERT|UPDATE).*pastincident", query["sql"])]
    assert written == []


def test_an_unknown_cause_is_shown_by_its_name(operator, zoo):
    """A newer version may have written it."""
    now = timezone.now()
    PastIncident(identity="new-1", cause="new", keys='["a"]', texts="{}", at=now, seen_at=now).save()
    assert "new: a" in over(page(operator))[0]


def test_old_incidents_are_deleted_with_the_other_rows(zoo):
    now = timezone.now()
    for number, days in enumerate((40, 1)):
        at = now - timedelta(days=days)
        PastIncident(identity=str(number), cause="hung", keys="[]", texts="{}", at=at, seen_at=at).save()
    table.delete_old(30, 1000)
    assert [row.identity for row in PastIncident.objects.all()] == ["1"]


def test_two_deaths_under_a_lock_are_a_notice(operator, zoo):
    for number in range(2):
        at = timezone.now() - timedelta(minutes=number + 1)
        Attempt(
            key="orders/7",
            template="",
            host=f"w{number}",
            pid=1,
            work="charge",
            token=number + 1,
            at=at,
            outcome=Attempt.HELD,
            missed_at=at,
        ).save()
    assert "w0 · pid 1, too, ended while it held orders/7 (charge)" in page(operator)


def test_tables_that_cannot_be_read_are_asked_once_for_a_page(stage, operator, monkeypatch):
    """Each question may wait for a database that is away. The cards are there all the same."""
    asked = []

    def ask(name, *args, default=None, **more):
        asked.append(name)
        return default

    for key in "ab":
        hang(stage, key)
    monkeypatch.setattr(past, "ask", ask)
    assert page(operator).count("has held") == 2
    assert [name for name in asked if not name.startswith("facts.")] == []
    assert len(asked) <= 2
