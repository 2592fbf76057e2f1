"""The past in the admin: the history of a lock and of all, and the last grants on the page of a lock."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client, modify_settings
from django.utils import timezone
from support.adminsite import user_with
from support.ensemble import free_ports
from support.locking import zklock
from support.zoo import Zoo, eventually, guid_of

from django_zklock import zk_lock
from django_zklock.contrib.events.models import Attempt
from django_zklock.dashboard import past
from django_zklock.operations import action_list, clear_limit, hold_lock, set_limit

pytestmark = [pytest.mark.zookeeper, pytest.mark.django_db]

LIST = "/admin/zklock/lock/"
EVENTS = "support.quietevents.QuietEvents"


@pytest.fixture
def operator() -> Client:
    return user_with("view_lock", "break_lock", "limit_lock")


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    """Forget the usual holds of earlier tests."""
    past._usual.clear()
    yield
    past._usual.clear()


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


def test_a_break_by_a_command_is_in_the_history_with_its_reason(zoo: Zoo, operator: Client) -> None:
    """So is the holder. The page of another lock does not have it, that of all locks has."""
    with zoo.hold_elsewhere("k") as path:
        token = zoo.client.exists(path).czxid
        zklock("break", "k", "--reason=worker hangs", f"--token={token}", "--no-input")
    (row,) = shown(operator, "k/history/")
    assert row[0].startswith("Broken; it was held by")
    assert row[2:] == ["command", "worker hangs", ""]
    assert "@" in row[1]
    assert [each[0] for each in shown(operator, "history/")] == ["k"]
    assert shown(operator, "other/history/") == []
    assert "Nothing is recorded of this lock." in operator.get(f"{LIST}other/history/").content.decode()


def test_an_action_in_the_admin_is_shown_once(zoo: Zoo, operator: Client) -> None:
    """Although the admin has an entry of its own, which is shown when the action is no longer on the list."""
    with zoo.hold_elsewhere("k") as path:
        target = f"{guid_of(path)}:{zoo.client.exists(path).czxid}:k"
        operator.post(f"{LIST}break/", {"target": target, "reason": "worker hangs"})
    operator.post(f"{LIST}limit/", {"key": "k", "permits": "3", "reason": "rush hour"})
    user = "u-view_lock-break_lock-limit_lock"
    assert [row[0].partition(";")[0] for row in shown(operator, "k/history/")] == ["Limit set to 3", "Broken"]
    assert [row[1:4] for row in shown(operator, "k/history/")] == [
        [user, "admin", "rush hour"],
        [user, "admin", "worker hangs"],
    ]
    assert LogEntry.objects.count() == 2
    zoo.client.delete(action_list.node_path(zoo.base))
    assert [row[1:3] for row in shown(operator, "k/history/")] == [[user, "admin"]] * 2
    assert "worker hangs" in shown(operator, "k/history/")[1][0]
    clear_limit("k", reason="r", by="anna")


def test_the_history_has_actions_entries_and_grants_by_their_time(zoo: Zoo, operator: Client) -> None:
    attempt("k", at=timezone.now() - timedelta(hours=1), outcome=Attempt.LOST, reason="the session is over")
    hold = hold_lock("k", seconds=60, reason="deploy", by="anna")
    attempt("k", at=timezone.now() + timedelta(hours=1), outcome=Attempt.TIMED_OUT, token=None, held=None)
    assert shown(operator, "k/history/") == [
        ["Waited, and not granted", "web-3 · pid 812 GET /buy/", "code", "", "0.5 s"],
        ["Held by an operator for 1 min 0 s", "anna", "code", "deploy", ""],
        ["Held and lost", "web-3 · pid 812 GET /buy/", "code", "the session is over", "2.0 s"],
    ]
    zoo.client.delete(hold.path)


def test_without_zookeeper_the_rest_of_the_history_is_shown(zoo: Zoo, operator: Client) -> None:
    attempt("k")
    (port,) = free_ports(1)
    with zoo.configured(f"127.0.0.1:{port}"):
        page = operator.get(f"{LIST}history/").content.decode()
    assert "ZooKeeper does not answer." in page
    assert "Held and released" in page


@pytest.mark.parametrize("path", ["history/", "k/history/"])
def test_the_history_needs_a_permission(zoo: Zoo, path: str) -> None:
    assert user_with("break_lock").get(f"{LIST}{path}").status_code == 403


def test_texts_in_the_list_of_actions_are_escaped(zoo: Zoo, operator: Client) -> None:
    """Anyone with access to ZooKeeper can write them."""
    hostile = "<script>alert(1)</script>"
    action = action_list.Action(what=hostile, key=hostile, by=hostile, reason=hostile, via=hostile, at=1e9)
    zoo.client.create(action_list.node_path(zoo.base), action_list.appended(b"", action), makepath=True)
    page = operator.get(f"{LIST}history/").content.decode()
    assert "alert(1)" in page
    assert hostile not in page


def test_the_page_of_a_lock_has_its_last_grants(zoo: Zoo, operator: Client) -> None:
    """Who had it, for how long, and how that ended; and pictures of the holds and the waits, with a text."""
    for seconds in (1, 2, 9):
        attempt(held=seconds, at=timezone.now() - timedelta(hours=10 - seconds))
    attempt(outcome=Attempt.LOST, reason="the session is over", at=timezone.now() - timedelta(minutes=2))
    attempt(outcome=Attempt.TIMED_OUT, held=None, token=None)
    with zk_lock("k") as hold:
        attempt(outcome=Attempt.HELD, held=None, token=hold.token - 1, at=timezone.now() - timedelta(minutes=1))
        attempt(outcome=Attempt.HELD, held=None, token=hold.token)
        response = operator.get(f"{LIST}k/change/")
    found = response.context["past"]
    assert [grant.end for grant in found.grants] == [
        "Still held",
        "No end was recorded",
        "Lost: the session is over",
        *["Released"] * 3,
    ]
    assert (found.grants[-1].who, found.grants[-1].waited, found.grants[-1].held) == (
        "web-3 · pid 812",
        "0.5 s",
        "1.0 s",
    )
    page = response.content.decode()
    assert 'role="img" aria-label="Hold: The last 6: median 1.5 s, longest 9.0 s"' in page
    hold_chart, wait_chart = found.charts
    assert len(hold_chart.bars) == 6
    assert max(hold_chart.bars, key=lambda bar: bar.height) == hold_chart.bars[2]
    assert [bar.hollow for bar in hold_chart.bars] == [False] * 3 + [True] * 3
    assert len({bar.height for bar in wait_chart.bars}) == 1
    assert "style=" not in page.partition("zklock-past")[2].partition("</section>")[0]


def test_a_hold_is_compared_with_the_usual_one(zoo: Zoo, operator: Client) -> None:
    """In the list and on its page, if it lasts longer. A short hold is nothing special."""
    for _ in range(5):
        attempt(held=100.0)
    with zk_lock("k"), zk_lock("short"):
        assert "its usual time" not in operator.get(LIST).content.decode()
        assert past.times_usual(1250, "k") == "12 x its usual time"
        assert past.times_usual(60, "short") == past.times_usual(60, "") == ""
        past._usual["k"] = past._usual["k"][0], 1e-6
        assert past.times_usual(0.9, "k") == ""
        for path in ("", "k/change/"):
            eventually(lambda path=path: "its usual time" in operator.get(f"{LIST}{path}").content.decode())  # type: ignore[misc]


def test_without_the_app_there_is_no_past(zoo: Zoo, operator: Client) -> None:
    """The page of a lock has no such section. The history has the actions of operators."""
    attempt("k")
    set_limit("k", 2, reason="r", by="anna")
    with modify_settings(INSTALLED_APPS={"remove": EVENTS}):
        assert past.last_grants("k") == []
        assert past.usual_hold("k") is None
        response = operator.get(f"{LIST}k/change/")
        assert response.context["past"] is None
        assert "Last grants" not in response.content.decode()
        assert [row[0] for row in shown(operator, "k/history/")] == ["Limit set to 2"]
    assert len(past.last_grants("k")) == 1
    clear_limit("k", reason="r", by="anna")


def test_a_table_that_cannot_be_read_breaks_no_page(
    zoo: Zoo, operator: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor the transaction of the request."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE zklock_events_attempt RENAME TO elsewhere")
    for path in ("history/", "k/history/", "k/change/"):
        assert operator.get(f"{LIST}{path}").status_code == 200
    assert "the table of events cannot be read" in caplog.text
    assert LogEntry.objects.count() == 0


def test_a_host_that_loses_its_locks_again_and_again_is_named(zoo: Zoo, operator: Client) -> None:
    """On the page of the health. One loss, or those of an earlier day, are nothing to report."""
    for number in range(4):
        attempt(host="worker-3", token=number, outcome=Attempt.LOST, reason="the ZooKeeper session is over")
    attempt(host="worker-4", outcome=Attempt.LOST)
    for number in range(4):
        attempt(host="worker-5", token=number, outcome=Attempt.LOST, at=timezone.now() - timedelta(days=1))
    page = operator.get(f"{LIST}health/").content.decode()
    assert "worker-3 has lost 4 locks within 30 min 0 s." in page
    assert "worker-4" not in page
    assert "worker-5" not in page
