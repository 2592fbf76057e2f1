"""The past in the admin: the list of events, and the last grants on the page of a lock as a timeline and a table."""

import html
import re
from datetime import timedelta
from urllib.parse import urlencode

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote
from django.db import connection
from django.test import override_settings
from django.utils import timezone
from support.adminsite import LIST, user_with
from support.locking import as_json, ending, zklock
from support.texts import assert_shows

from django_zklock import operations, zk_lock
from django_zklock.contrib.events import admin
from django_zklock.contrib.events.models import LATE, Event
from django_zklock.operations import clear_limit
from django_zklock.report import formatting, past

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("zoo")]

EVENTS = "/admin/zklock_events/event/"
JUERGEN = "kunden/J%C3%BCrgen"


def ago(seconds):
    return timezone.now() - timedelta(seconds=seconds)


def event(key="k", *, seconds=1.0, **more):
    """Write a grant of some seconds ago."""
    given = {"host": "web-3", "pid": 812, "work": "GET /buy/", "token": 7, "kind": "lock", "session": 1}
    given |= {"at": ago(seconds), "waited": 0.5, "held": 2.0, "outcome": Event.RELEASED, **more}
    return Event.objects.create(key=key, **given)


def open_hold(key="k", **more):
    return event(key, outcome=Event.HELD, held=None, **more)


def listed(client, **given):
    """Return the cells of the rows of the list."""
    response = client.get(EVENTS, given)
    assert response.status_code == 200, response
    body = response.content.decode().partition("<tbody")[2].partition("</tbody")[0]
    rows = re.findall(r"<tr.*?>(.*?)</tr>", body, re.DOTALL)
    cells = [re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]
    return [[html.unescape(re.sub(r"<.*?>", "", cell)).strip() for cell in row] for row in cells]


def keys(client, **given):
    return sorted(row[1] for row in listed(client, **given))


def timeline(client, key="k"):
    return client.get(f"{LIST}{quote(key)}/change/").context["past"]


# --- The list -------------------------------------------------------------------------------------------------------


def test_the_list_has_grants_refusals_and_actions_by_their_time(operator):
    event(outcome=Event.LOST, reason="the session is over", seconds=60)
    event(outcome=Event.ACTION, by="anna (admin)", work="Broken", reason="it hangs", token=None, held=None, waited=None)
    event(outcome=Event.TIMED_OUT, token=None, held=None, count=3, seconds=30)
    assert [row[1:] for row in listed(operator)] == [
        ["k", "Operator's action", "1", "anna (admin)", "Broken", "-", "-", "it hangs"],
        ["k", "Waited, and not granted", "3", "web-3 · pid 812", "GET /buy/", "0.5 s", "-", "-"],
        ["k", "Held and lost", "1", "web-3 · pid 812", "GET /buy/", "0.5 s", "2.0 s", "the session is over"],
    ]


def test_a_row_leads_to_the_page_of_its_lock(operator):
    event(JUERGEN)
    assert f'<a href="{LIST}{quote(JUERGEN)}/change/">kunden/Jürgen</a>' in operator.get(EVENTS).content.decode()


@pytest.mark.parametrize(("permissions", "status"), [((), 403), (("view_lock",), 200), (("break_lock",), 403)])
def test_the_list_needs_the_permission_to_see_locks(permissions, status):
    assert user_with(*permissions).get(EVENTS).status_code == status


def test_nothing_can_be_changed(operator):
    row = event()
    for path in (f"{EVENTS}add/", f"{EVENTS}{row.pk}/delete/"):
        assert operator.post(path).status_code == 403
    operator.post(f"{EVENTS}{row.pk}/change/", {"key": "other"})
    operator.post(EVENTS, {"action": "delete_selected", "_selected_action": [row.pk], "post": "yes"})
    assert Event.objects.get().key == "k"


def test_the_list_is_filtered(operator):
    event("a/1", work="task charge", host="web-1")
    event("a/2", outcome=Event.LOST, host="web-2", seconds=3 * 3600)
    event("b/1", outcome=Event.ACTION, by="anna (code)", seconds=8 * 86400)
    for given, expected in (
        ({"key": "a/1"}, ["a/1"]),
        ({"key": "b/1"}, ["b/1"]),
        ({"outcome__exact": "lost"}, ["a/2"]),
        ({"host": "web-2"}, ["a/2"]),
        ({"at__gte": ago(3600).isoformat()}, ["a/1"]),
        ({"at__lt": ago(3600).isoformat()}, ["a/2", "b/1"]),
        ({"q": "a/"}, ["a/1", "a/2"]),
        ({"q": "CHARGE"}, ["a/1"]),
    ):
        assert keys(operator, **given) == expected, given


def test_a_part_of_a_text_is_searched_in_the_last_day_or_in_the_time_of_the_filter(operator):
    event("a/1", seconds=3 * 86400)
    assert keys(operator, q="a/") == []
    assert keys(operator, q="a/", at__gte=ago(4 * 86400).isoformat()) == ["a/1"]


def test_a_list_counts_no_more_rows_than_it_has_pages_for(operator, monkeypatch):
    """To count all rows of a large table would take minutes."""
    monkeypatch.setattr(admin, "MOST_COUNTED", 5)
    for seconds in range(8):
        event(seconds=seconds)
    assert operator.get(EVENTS).context["cl"].result_count == 5


# --- The page of a lock ---------------------------------------------------------------------------------------------


def test_the_page_of_a_lock_has_its_last_grants(operator):
    for number in range(25):
        event(seconds=number, token=100 - number)
    event(outcome=Event.TIMED_OUT, token=None, held=None)
    event("other")
    assert [grant.token for grant in timeline(operator).grants] == list(range(100, 80, -1))
    page = operator.get(f"{LIST}k/change/").content.decode()
    assert_shows(page, "Timeline", "Last grants", "Held and released", f'{EVENTS}?key=k">History</a>')


def test_a_lock_without_grants_has_no_timeline(operator):
    assert timeline(operator) is None
    assert "Last grants" not in operator.get(f"{LIST}k/change/").content.decode()


def places(bars):
    """Return the kinds of the bars, and where they are, in percent."""
    return [(bar.what, round(float(bar.x[:-1])), round(float(bar.width[:-1]))) for bar in bars]


def test_holds_and_waits_have_their_place_and_length(operator):
    event(seconds=50, waited=50.0, held=25.0, token=1)
    event(seconds=20, waited=0.0, held=10.0, token=2)
    past = timeline(operator)
    assert places(past.holds) == [("hold", 80, 10), ("hold", 50, 25)]
    assert places(past.waits) == [("wait", 0, 50)]
    assert [share for share, _text in past.ticks] == ["25%", "50%", "75%"]


def test_a_holder_and_a_waiter_of_now_reach_to_the_right_edge(operator, contend):
    with zk_lock("k") as hold:
        open_hold(seconds=100, waited=0.0, token=hold.token)
        contend("k", since=ago(50).isoformat())
        past = timeline(operator)
        page = operator.get(f"{LIST}k/change/").content.decode()
    assert places(past.holds) == [("hold", 0, 100)]
    (wait,) = places(past.waits)
    assert wait[0] == "wait"
    assert wait[1] + wait[2] == 100
    assert "no end recorded</td>" not in page


@pytest.mark.parametrize("outcome", [Event.LOST, Event.CUT_OFF, Event.REFUSED])
def test_a_hold_that_was_lost_is_red(operator, outcome):
    event(outcome=outcome, seconds=10)
    assert [bar.what for bar in timeline(operator).holds] == ["lost"]


def test_a_killed_holder_is_red_until_the_next_grant(operator):
    open_hold(seconds=100, waited=0.0, token=1)
    event(seconds=50, waited=0.0, held=25.0, token=2)
    Event.objects.update(recorded=ago(LATE + 1))
    assert places(timeline(operator).holds) == [("hold", 50, 25), ("lost", 0, 50)]


def test_a_release_whose_row_is_not_yet_written_is_no_loss(operator):
    open_hold(seconds=100, waited=0.0, token=1)
    open_hold(seconds=1, waited=0.0, token=2)
    assert [bar.what for bar in timeline(operator).holds] == ["hold", "hold"]


# --- Without the table ----------------------------------------------------------------------------------------------


def test_without_the_app_a_page_has_no_timeline(operator, monkeypatch):
    event()
    monkeypatch.setattr(past, "source", None)
    assert timeline(operator) is None


def test_a_site_without_the_list_has_the_actions_in_djangos_own_log(operator):
    operator.post(f"{LIST}act/limit/?key=k", {"limit": "1", "permits": "3", "reason": "rush hour"})
    clear_limit("k", reason="r", by="anna")
    page = operator.get("/own/zklock/lock/k/history/").content.decode()
    assert page.count("rush hour") == 1


def test_a_table_that_cannot_be_read_breaks_no_page(operator, caplog):
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE zklock_events_event RENAME TO elsewhere")
    assert operator.get(f"{LIST}k/change/").status_code == 200
    assert "the table of events cannot be read" in caplog.text
    assert LogEntry.objects.count() == 0


# --- Commands, and times ---------------------------------------------------------------------------------------------


def test_show_has_the_last_grants_of_a_lock_that_is_held_or_free():
    event("k", held=1.25, waited=None, work="", seconds=60)
    known = {"host": "web-3", "pid": 812, "token": "7", "waited": None, "held": 1.25, "work": None}
    with zk_lock("k"):
        (grant,) = as_json("show", "k")["grants"]
        assert known.items() <= grant.items()
        assert "web-3 · pid 812" in zklock("show", "k")
    assert "web-3 · pid 812" in ending("show", "k")[1]


@pytest.fixture(params=[True, False], ids=["aware", "naive"])
def in_shanghai(request):
    """An operator holds a lock of Jürgen in a project whose times are aware or naive."""
    with override_settings(TIME_ZONE="Asia/Shanghai", USE_TZ=request.param):
        hold = operations.hold_lock(JUERGEN, seconds=600, reason="deploy", by="anna")
        event(JUERGEN)
        yield hold
        for left in as_json("list")["locks"]:
            operations.end_hold(left["key"], token=int(left["holders"][0]["token"]), by="anna")


def test_all_times_are_in_the_time_zone_of_the_project(in_shanghai):
    operator = user_with("view_lock", "break_lock", "hold_lock", "limit_lock", "request_release_lock")
    until = f"{in_shanghai.until + timedelta(hours=8):%Y-%m-%d %H:%M:%S} CST"
    assert formatting.time_text(in_shanghai.until) == until
    pages = [f"{LIST}{quote(JUERGEN)}/change/", EVENTS, f"{LIST}act/break/?{urlencode({'key': JUERGEN})}", LIST]
    texts = [html.unescape(operator.get(page).content.decode()) for page in (*pages, f"{LIST}?q=")]
    command = zklock("show", "kunden/Jürgen")
    times = re.findall(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d.{4}", "\n".join([*texts, command]))
    assert len(times) >= 5
    assert {time[-4:] for time in times} == {" CST"}
    assert until in texts[0]
    assert until in command


def test_times_in_json_are_utc(in_shanghai):
    shown = as_json("show", JUERGEN)
    (holder,), (grant,) = shown["holders"], shown["grants"]
    assert holder["operator"]["until"].endswith("+00:00")
    assert grant["at"].endswith("+00:00")
