"""The past in the admin: the history of a lock and of all, and the last grants on the page of a lock."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.utils import timezone
from support.adminsite import user_with
from support.ensemble import free_ports
from support.faults import within
from support.zoo import Zoo, eventually

from django_zklock import zk_lock
from django_zklock.contrib.events import table
from django_zklock.contrib.events.models import Attempt, OperatorAction
from django_zklock.dashboard import past
from django_zklock.operations import clear_limit

pytestmark = [pytest.mark.zookeeper, pytest.mark.django_db]

LIST = "/admin/zklock/lock/"


@pytest.fixture
def operator() -> Client:
    return user_with("view_lock", "break_lock", "limit_lock")


@pytest.fixture(autouse=True)
def no_usual_holds() -> None:
    """Forget the usual holds of earlier tests."""
    table.usual_holds.clear()


def shown(client: Client, path: str) -> list[list[str]]:
    """Return the cells of the table of a page."""
    page = client.get(f"{LIST}{path}").content.decode()
    rows = re.findall(r"<tr>(.*?)</tr>", page.partition("<tbody>")[2].partition("</tbody>")[0], re.DOTALL)
    return [[re.sub(r"<.*?>", "", cell).strip() for cell in re.findall(r"<td>(.*?)</td>", row)] for row in rows]


def attempt(key: str = "k", **more: Any) -> Attempt:
    given: dict[str, Any] = {"template": key, "host": "web-3", "pid": 812, "work": "GET /buy/", "token": 7}
    given |= {"at": timezone.now(), "waited": 0.5, "held": 2.0, "outcome": Attempt.RELEASED, **more}
    made = Attempt(key=key, **given)
    made.save()
    return made


def action(key: str = "k", **more: Any) -> OperatorAction:
    given: dict[str, Any] = {"what": "broken", "by": "anna", "reason": "worker hangs", "via": "command", "token": 7}
    made = OperatorAction(key=key, **{"at": timezone.now(), "holder": "web-3 · pid 812", **given, **more})
    made.save()
    return made


def test_the_history_has_actions_and_grants_by_their_time(zoo: Zoo, operator: Client) -> None:
    """That of another lock does not have them, that of all locks has."""
    ago = timezone.now() - timedelta(minutes=1)
    attempt("k", at=ago - timedelta(hours=1), outcome=Attempt.LOST, reason="the session is over")
    action(at=ago)
    action(what="held", via="code", seconds=60.0, reason="deploy", at=ago + timedelta(seconds=1))
    action(what="limit set", via="admin", limit=3, sure=False, at=ago + timedelta(seconds=2))
    attempt("k", outcome=Attempt.TIMED_OUT, token=None, held=None)
    assert shown(operator, "k/history/") == [
        ["Waited, and not granted", "web-3 · pid 812 GET /buy/", "code", "", "0.5 s"],
        ["Limit set to 3 (perhaps: the answer was lost)", "anna", "admin", "worker hangs", ""],
        ["Held by an operator for 1 min 0 s", "anna", "code", "deploy", ""],
        ["Broken; it was held by web-3 · pid 812", "anna", "command", "worker hangs", ""],
        ["Held and lost", "web-3 · pid 812 GET /buy/", "code", "the session is over", "2.0 s"],
    ]
    assert [row[0] for row in shown(operator, "history/")] == ["k"] * 5
    assert shown(operator, "other/history/") == []
    assert "Nothing is recorded of this lock." in operator.get(f"{LIST}other/history/").content.decode()


def test_the_history_needs_no_zookeeper(zoo: Zoo, operator: Client) -> None:
    action()
    (port,) = free_ports(1)
    with zoo.configured(f"127.0.0.1:{port}"), within(5):
        assert len(shown(operator, "history/")) == 1


@pytest.mark.parametrize("path", ["history/", "k/history/"])
def test_the_history_needs_a_permission(zoo: Zoo, path: str) -> None:
    assert user_with("break_lock").get(f"{LIST}{path}").status_code == 403


def test_texts_of_actions_are_escaped(zoo: Zoo, operator: Client) -> None:
    """Another client wrote the work of the holder, and a caller the rest."""
    hostile = "<script>alert(1)</script>"
    action(key=hostile, what=hostile[:32], by=hostile, reason=hostile, holder=hostile)
    action(key=hostile, holder=hostile)
    page = operator.get(f"{LIST}history/").content.decode()
    assert "alert(1)" in page
    assert "<script>alert" not in page


def test_the_page_of_a_lock_has_its_last_grants(zoo: Zoo, operator: Client) -> None:
    """Each has its holder, its duration and its end; a summary covers the holds and the waits."""
    for seconds in (1, 2, 9):
        attempt(held=seconds, at=timezone.now() - timedelta(hours=10 - seconds))
    attempt(outcome=Attempt.LOST, reason="the session is over", at=timezone.now() - timedelta(minutes=2))
    attempt(outcome=Attempt.TIMED_OUT, held=None, token=None)
    with zk_lock("k") as hold:
        attempt(outcome=Attempt.HELD, held=None, token=hold.token - 1, at=timezone.now() - timedelta(minutes=1))
        attempt(outcome=Attempt.HELD, held=None, token=hold.token)
        response = operator.get(f"{LIST}k/change/")
    past = response.context["past"]
    assert [grant.what for grant in past.grants] == [
        "Still held",
        "No end was recorded",
        "Held and lost",
        *["Held and released"] * 3,
    ]
    assert "Held and lost: the session is over" in response.content.decode()
    first = past.grants[-1]
    assert (first.by, first.waited, first.lasted) == ("web-3 · pid 812", "0.5 s", "1.0 s")
    assert past.summaries[0] == ("Hold", "The last 6: median 1.5 s, longest 9.0 s")
    assert past.summaries[1][1] in response.content.decode()


def test_a_hold_is_compared_with_the_usual_duration(zoo: Zoo, operator: Client) -> None:
    """In the list and on its page, if it lasts longer. A short hold is nothing special."""
    for _ in range(5):
        attempt(held=100.0)
    with zk_lock("k"), zk_lock("short"):
        assert "its usual time" not in operator.get(LIST).content.decode()
        assert past.times_usual(1250, "k") == "12 x its usual time"
        assert past.times_usual(60, "short") == past.times_usual(60, "") == ""
        for template, held in (("k", 1e-6), ("short", 1e-6)):
            for _ in range(table.USUAL_OF):
                attempt(template, held=held)
        table.usual_holds.clear()
        assert past.times_usual(0.9, "k") == ""
        for path in ("", "k/change/"):
            eventually(lambda path=path: "its usual time" in operator.get(f"{LIST}{path}").content.decode())  # type: ignore[misc]


def test_without_the_app_the_history_is_that_of_this_admin(
    zoo: Zoo, operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page of a lock has no past, and the history says where the other actions are."""
    attempt("k")
    action()
    monkeypatch.setattr(past, "source", None)
    clear_limit("k", reason="code", by="anna")
    operator.post(f"{LIST}limit/", {"key": "k", "permits": "3", "reason": "rush hour"})
    assert past.usual_hold("k") is None
    response = operator.get(f"{LIST}k/change/")
    assert response.context["past"] is None
    assert "Last grants" not in response.content.decode()
    for path in ("k/history/", "history/"):
        (row,) = shown(operator, path)
        assert row[-5:] == ["Limit set to 3: rush hour", "u-view_lock-break_lock-limit_lock", "admin", "", ""]
    assert "zklock.audit" in operator.get(f"{LIST}history/").content.decode()
    clear_limit("k", reason="r", by="anna")


def test_a_table_that_cannot_be_read_breaks_no_page(
    zoo: Zoo, operator: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """The transaction of the request does not break either."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE zklock_events_attempt RENAME TO elsewhere")
    for path in ("history/", "k/history/", "k/change/"):
        assert operator.get(f"{LIST}{path}").status_code == 200
    assert "the table of events cannot be read" in caplog.text
    assert LogEntry.objects.count() == 0


def test_a_host_that_loses_its_locks_again_and_again_is_named(zoo: Zoo, operator: Client) -> None:
    """The page of the health names it. It ignores single losses, and those of an earlier day."""
    for number in range(4):
        attempt(host="worker-3", token=number, outcome=Attempt.LOST, reason="the ZooKeeper session is over")
    attempt(host="worker-4", outcome=Attempt.LOST)
    for number in range(4):
        attempt(host="worker-5", token=number, outcome=Attempt.LOST, at=timezone.now() - timedelta(days=1))
    page = operator.get(f"{LIST}health/").content.decode()
    assert "worker-3 has lost 4 locks within 30 min 0 s." in page
    assert "worker-4" not in page
    assert "worker-5" not in page
