"""The past in the admin: the history of a lock and of all, and the last grants on the page of a lock."""

import csv
import html
import io
import itertools
import json
import re
from datetime import timedelta
from types import SimpleNamespace
from urllib.parse import urlencode

import pytest
from asgiref.sync import async_to_sync
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote
from django.contrib.auth.models import User
from django.db import connection
from django.test import AsyncClient, override_settings
from django.utils import timezone
from support.adminsite import LIST, user_with
from support.faults import within
from support.locking import as_json, ending, zklock
from support.texts import assert_shows
from support.zoo import eventually

from django_zklock import operations, zk_lock
from django_zklock.contrib.events import facts, table
from django_zklock.contrib.events.models import Attempt, OperatorAction
from django_zklock.core.zk import troubles
from django_zklock.management.exit_codes import ExitCode
from django_zklock.operations import clear_limit
from django_zklock.report import formatting, incident, past

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("zoo")]

JUERGEN = "kunden/J%C3%BCrgen"


def shown(client, path):
    page = client.get(f"{LIST}{path}").content.decode()
    rows = re.findall(r"<tr role=\"row\">(.*?)</tr>", page.partition("<tbody")[2], re.DOTALL)
    cells = [re.findall(r"<td.*?>(.*?)</td>", row, re.DOTALL) for row in rows]
    return [[" ".join(re.sub(r"<.*?>", "", cell).split()) for cell in row] for row in cells]


def attempt(key="k", **more):
    given = {"template": key, "host": "web-3", "pid": 812, "work": "GET /buy/", "token": 7}
    given |= {"at": timezone.now(), "waited": 0.5, "held": 2.0, "outcome": Attempt.RELEASED, **more}
    made = Attempt(key=key, **given)
    made.save()
    return made


def action(key="k", **more):
    given = {"what": "broken", "by": "anna", "reason": "worker hangs", "via": "command", "token": 7}
    made = OperatorAction(key=key, **{"at": timezone.now(), "holder": "web-3 · pid 812", **given, **more})
    made.save()
    return made


def test_the_history_has_actions_and_grants_by_their_time(operator):
    ago = timezone.now() - timedelta(minutes=1)
    attempt("k", at=ago - timedelta(hours=1), outcome=Attempt.LOST, reason="the session is over")
    action(at=ago)
    action(what="held", via="code", seconds=60.0, reason="deploy", at=ago + timedelta(seconds=1))
    action(what="limit set", via="admin", limit=3, sure=False, at=ago + timedelta(seconds=2))
    attempt("k", outcome=Attempt.TIMED_OUT, token=None, held=None)
    assert shown(operator, "k/history/") == [
        ["Waited, and not granted", "web-3 · pid 812 GET /buy/", "0.5 s"],
        ["Limit set to 3 (perhaps: the answer was lost) worker hangs", "anna (admin)", ""],
        ["Held by an operator for 1 min 0 s deploy", "anna (code)", ""],
        ["Broken; it was held by web-3 · pid 812 worker hangs", "anna (command)", ""],
        ["Held and lost the session is over", "web-3 · pid 812 GET /buy/", "2.0 s"],
    ]
    assert [row[0] for row in shown(operator, "history/")] == ["k"] * 5
    assert shown(operator, "other/history/") == []
    assert "Nothing is recorded of this lock." in operator.get(f"{LIST}other/history/").content.decode()


def test_equal_successes_of_a_lock_are_one_row_of_their_day(operator):
    noon = timezone.localtime().replace(hour=12, minute=0, second=0, microsecond=0) - timedelta(days=1)
    for seconds, held, outcome in ((1, 2.0, "lost"), (2, 2.0, "released"), (3, 2.0, "released"), (4, 5.0, "released")):
        attempt(at=noon - timedelta(seconds=seconds), held=held, outcome=outcome)
    attempt(at=noon - timedelta(days=1), host="web-4")
    rows = shown(operator, "history/")
    assert [row[1][:27] for row in rows] == ["Held and lost", "Held and released ×3 since ", "Held and released"]
    assert rows[1][2:] == ["web-3 · pid 812", "2.0 s – 5.0 s"]
    assert rows[1][1].count("GET /buy/") == 3
    assert operator.get(f"{LIST}history/").content.decode().count('class="zklock-day"') == 2


def test_rows_of_another_release_are_shown(operator):
    """It may know more outcomes, and a table may hold any number."""
    action(what="defrosted", via="drone", seconds=1e308)
    attempt(outcome="frozen\x1b", held=1e308, waited=float("inf"))
    texts = [row[0] for row in shown(operator, "k/history/")]
    assert texts == [r"frozen\x1b", "defrosted worker hangs"]
    assert operator.get(f"{LIST}k/change/").status_code == 200
    assert "frozen" in zklock("history", "k")


def test_the_page_of_a_lock_has_its_last_grants(operator):
    for seconds in (1, 2, 9):
        attempt(held=seconds, at=timezone.now() - timedelta(hours=10 - seconds))
    attempt(outcome=Attempt.LOST, reason="the session is over", at=timezone.now() - timedelta(minutes=2))
    attempt(outcome=Attempt.TIMED_OUT, held=None, token=None)
    with zk_lock("k") as held:
        ago = timezone.now() - timedelta(minutes=1)
        for token, at in ((held.token - 1, ago), (held.token, timezone.now())):
            attempt(outcome=Attempt.HELD, held=None, waited=None, token=token, at=at)
        response = operator.get(f"{LIST}k/change/")
    past = response.context["panel"].content
    assert [grant.what for grant in past.grants] == [
        "Held since then",
        "Process ended, no end is recorded",
        "Held and lost",
        *["Held and released"] * 3,
    ]
    assert_shows(response.content.decode(), "3 held and released", "lost: the session is over", past.summaries[1][1])
    assert [bar.is_bad for bar in past.bars] == [True, True, False, False, False]
    first = past.grants[-1]
    assert (first.who, first.waited, first.lasted) == ("web-3 · pid 812", 0.5, 1.0)
    hold, wait = "The last 4: median 2.0 s, longest 9.0 s", "The last 4: median 0.5 s, longest 0.5 s"
    assert past.summaries == (("Hold", hold), ("Wait", wait)), "what has no end would count as 0 s"


def test_a_hold_is_compared_with_the_usual_duration(operator):
    for _ in range(5):
        attempt(held=100.0)
    times_usual = incident.times_usual
    with zk_lock("k"), zk_lock("short"):
        assert "its usual time" not in operator.get(f"{LIST}?q=").content.decode()
        assert times_usual(1250, "k") == "12 x its usual time"
        assert times_usual(60, "short") == times_usual(60, "") == ""
        for template, held in (("k", 1e-6), ("short", 1e-6)):
            for _ in range(table.USUAL_OF):
                attempt(template, held=held)
        table.usual.clear()
        assert times_usual(0.9, "k") == ""
        for path in ("?q=", "k/change/"):
            eventually(lambda path=path: "its usual time" in operator.get(f"{LIST}{path}").content.decode())


def test_without_the_app_the_history_is_that_of_this_admin(operator, monkeypatch):
    attempt("k")
    action()
    monkeypatch.setattr(past, "source", None)
    operator.post(f"{LIST}limit/", {"key": "k", "permits": "3", "reason": "rush hour"})
    clear_limit("k", reason="r", by="anna")
    response = operator.get(f"{LIST}k/change/")
    assert response.context["panel"] is None
    assert "Last grants" not in response.content.decode()
    page = operator.get(f"{LIST}k/history/").content.decode()
    assert page.count("Limit set to 3: rush hour") == 1
    assert "olga" in page
    assert "zklock.audit" in operator.get(f"{LIST}history/").content.decode()
    status, _, message = ending("history")
    assert (status, "Nothing is recorded" in message) == (ExitCode.FAILED, True)


def test_a_table_that_cannot_be_read_breaks_no_page(operator, caplog):
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE zklock_events_attempt RENAME TO elsewhere")
    for path in ("history/", "k/history/"):
        response = operator.get(f"{LIST}{path}")
        assert (response.status_code, "Run manage.py migrate" in response.content.decode()) == (503, True)
        assert operator.get(f"{LIST}k/change/").status_code == 200
    assert "the table of events cannot be read" in caplog.text
    assert LogEntry.objects.count() == 0


def test_a_host_that_loses_its_locks_again_and_again_needs_attention(operator):
    for number in range(4):
        for key in "ab":
            attempt(key, host="worker-3", session=number, outcome=Attempt.LOST, reason=troubles.SESSION_OVER)
    for number, reason in enumerate(("it was broken by anna: hangs", "it was held for longer than max_hold, 5 s") * 3):
        attempt(host="worker-6", session=number, outcome=Attempt.LOST, reason=reason)
    attempt(host="worker-4", outcome=Attempt.LOST, reason=troubles.SESSION_OVER)
    for number in range(4):
        at = timezone.now() - timedelta(days=1)
        attempt(host="worker-5", session=number, outcome=Attempt.LOST, reason=troubles.SESSION_OVER, at=at)
    page = operator.get(LIST).content.decode()
    assert "worker-3 has lost its locks 4 times in the last 30 minutes" in page
    assert not re.search("worker-[456]", page)


@pytest.mark.parametrize("held", [2.0, 20.0])
def test_a_release_is_no_crash_before_its_end_is_written(operator, held, monkeypatch):
    """The end of a hold is written a moment after it. A look at an older row waits for that, the first time."""
    row = attempt(outcome=Attempt.HELD, held=None, at=timezone.now() - timedelta(seconds=held))
    if held < facts.LATE:
        assert shown(operator, "k/history/")[0][0] == "Released a moment ago"
        return

    def write(seconds):  # as the writer of its process does meanwhile
        Attempt.objects.filter(pk=row.pk).update(outcome=Attempt.RELEASED, held=held)

    monkeypatch.setattr(facts, "time", SimpleNamespace(sleep=write))
    assert shown(operator, "k/history/")[0][0] == "Held and released"
    killed = attempt(outcome=Attempt.HELD, held=None, at=timezone.now() - timedelta(minutes=5))
    for _ in "12":
        assert shown(operator, "k/history/")[1][0] == "Process ended, no end is recorded"
    killed.refresh_from_db()
    assert killed.missed_at


def test_the_page_of_a_host_has_its_losses(operator):
    attempt("orders/1", host="worker-3", outcome=Attempt.LOST, reason=troubles.SESSION_OVER)
    ago = timezone.now() - timedelta(minutes=1)
    attempt("orders/2", host="worker-3", outcome=Attempt.HELD, held=None, at=ago, missed_at=ago)
    attempt("orders/5", host="worker-3", outcome=Attempt.HELD, held=None)
    attempt("orders/3", host="worker-3")
    attempt("orders/4", host="worker-4", outcome=Attempt.LOST, reason=troubles.SESSION_OVER)
    rows = shown(operator, "host/?host=worker-3")
    assert sorted(row[:2] for row in rows) == [
        ["orders/1", "Held and lost the ZooKeeper session is over"],
        ["orders/2", "Process ended, no end is recorded"],
    ]
    assert "None is recorded." in operator.get(f"{LIST}host/?host=worker-5").content.decode()


def test_the_history_tells_live_holds_from_others(zoo, operator):
    ago = timezone.now() - timedelta(minutes=1)
    with zk_lock("k") as hold:
        attempt("k", outcome=Attempt.HELD, held=None, token=hold.token, at=ago)
        attempt("k", outcome=Attempt.HELD, held=None, token=hold.token - 1, at=ago - timedelta(seconds=1))
        attempt("free", outcome=Attempt.HELD, held=None, at=ago - timedelta(seconds=2))
        eventually(lambda: "Held since then" in operator.get(f"{LIST}history/").content.decode())
        ended = "Process ended, no end is recorded"
        assert [row[1] for row in shown(operator, "history/")] == ["Held since then", ended, ended]
        assert [row["what"] for row in as_json("history", "k")["events"]] == ["Held since then", ended]
    with zoo.configured("127.0.0.1:1"), within(5):
        assert {row[1] for row in shown(operator, "history/")} == {"Granted; its end is not known"}


def keys(client, **given):
    return sorted(row[0] for row in shown(client, f"history/?{urlencode(given)}"))


def test_the_history_is_filtered(operator):
    ago = timezone.now() - timedelta(hours=3)
    attempt("a/1", work="task charge", host="web-1")
    attempt("a/2", outcome=Attempt.LOST, host="web-2", at=ago)
    action("b/1", by="anna", holder="'the count' on web-2, process 7")
    action("b/2", by="bert", at=ago)
    hour = (timezone.localtime() - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M")
    for name, value, expected in (
        ("part", "a/", ["a/1", "a/2"]),
        ("what", "actions", ["b/1", "b/2"]),
        ("what", "lost", ["a/2"]),
        ("who", "ann", ["b/1"]),
        ("who", "CHARGE", ["a/1"]),
        ("who", "WEB-2", ["a/2", "b/1"]),
        ("who", "812", ["a/1", "a/2", "b/2"]),
        ("host", "web-2", ["a/2", "b/1"]),
        ("since", hour, ["a/1", "b/1"]),
        ("until", hour, ["a/2", "b/2"]),
    ):
        assert keys(operator, **{name: value}) == expected, f"{name}={value}"


@pytest.mark.parametrize(
    ("part", "rows"), [("Jürgen Groß", 1), ("J%C3%BCrgen", 1), ("kunden/J", 2), ("Jörg", 1)], ids=str
)
def test_a_key_is_found_as_it_is_written(operator, part, rows):
    for key in ("kunden/J%C3%BCrgen%20Gro%C3%9F", "kunden/Jörg", "other"):
        attempt(key, outcome=Attempt.LOST)  # ordinary releases are folded
    assert len(keys(operator, part=part)) == rows


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("since", "yesterday"),
        ("what", "x"),
        ("part", "\0"),
        ("since", "9999-12-31T23:59"),
        ("until", "0001-01-01T00:00"),
        ("before", "0001-01-01T00:00"),
    ],
)
def test_a_wrong_filter_is_refused(operator, name, value):
    assert operator.get(f"{LIST}history/?{urlencode({name: value})}").status_code == 400


def pages_of(client, query):
    """Yield the keys of each page of the history, which leads to the next one."""
    while query:
        page = client.get(f"{LIST}history/{query}")
        yield [event.key for _day, rows in page.context["days"] for row in rows for event in row.events]
        older = re.search(r'rel="next" href="(.*?)"', page.content.decode())
        query = html.unescape(older[1]) if older else ""


def test_the_history_has_pages_and_none_misses_a_row(operator):
    now = timezone.now()
    action("k/acted", at=now - timedelta(hours=1))
    attempt("other", at=now - timedelta(minutes=30))
    for number in range(60):
        attempt(f"k/{number:03}", outcome=Attempt.LOST, at=now)
        action(f"k/{number + 60:03}", at=now)
    pages = list(itertools.islice(pages_of(operator, "?part=k/"), 5))
    seen = list(itertools.chain(*pages))
    assert len(pages) == 3
    assert set(seen) == {f"k/{number:03}" for number in range(120)} | {"k/acted"}
    assert len(seen) <= 121 + 2, "one row of each table may have the same time and number"


@pytest.mark.parametrize("row", ["-1", "9" * 30])
def test_a_page_after_no_row_is_a_page(operator, row):
    query = urlencode({"before": timezone.now().isoformat(), "row": row})
    assert operator.get(f"{LIST}history/?{query}").status_code == 200


def test_ordinary_releases_between_other_rows_are_folded(operator):
    """They take no room of the page, so that what is out of the ordinary is seen in a busy hour."""
    now = timezone.now()
    for number in range(200):
        attempt(f"k/{number % 7}", at=now - timedelta(seconds=number))
    attempt("k/lost", outcome=Attempt.LOST, at=now - timedelta(seconds=99.5))
    rows = [(row[0], row[1].partition(" since")[0]) for row in shown(operator, "history/")]
    assert rows == [
        ("7 locks", "Held and released ×100"),
        ("k/lost", "Held and lost"),
        ("7 locks", "Held and released ×100"),
    ]


def test_no_page_misses_folded_releases(operator):
    now = timezone.now()
    for number in range(120):
        outcome = Attempt.RELEASED if number % 2 else Attempt.LOST
        attempt(f"k/{number:03}", outcome=outcome, at=now - timedelta(seconds=number))
    query, seen, pages = "", [], 0
    while pages < 3:
        page = operator.get(f"{LIST}history/{query}")
        seen += [event.key for _day, rows in page.context["days"] for row in rows for event in row.events]
        older, pages = re.search(r'rel="next" href="(.*?)"', page.content.decode()), pages + 1
        if older is None:
            break
        query = html.unescape(older[1])
    assert (pages, seen) == (2, [f"k/{number:03}" for number in range(120)])


def test_releases_that_a_filter_selects_are_not_folded(operator):
    for number in range(3):
        attempt(f"k/{number}")
    assert [row[0] for row in shown(operator, "history/?what=released")] == ["k/2", "k/1", "k/0"]


def test_the_download_has_the_rows_of_the_filter_and_no_formula(operator):
    for number in range(60):
        attempt(f"k{number}", at=timezone.now() - timedelta(seconds=number), work="=cmd|' /C calc'!A0")
    attempt("other")
    response = operator.get(f"{LIST}history/?part=k&format=csv")
    rows = list(csv.DictReader(io.StringIO(response.content.decode())))
    assert [row["key"] for row in rows] == [f"k{number}" for number in range(60)]
    assert {row["work"] for row in rows} == {"'=cmd|' /C calc'!A0"}
    assert {(row["host"], row["pid"], row["lasted"], row["by"]) for row in rows} == {("web-3", "812", "2.0", "")}
    assert "locks.csv" in response["Content-Disposition"]


@pytest.mark.django_db(transaction=True)
def test_the_download_works_under_asgi():
    """Django warns of a streaming response with an iterator that is not asynchronous."""
    attempt("k")
    client = AsyncClient()
    client.force_login(User.objects.create_superuser("asgi"))
    response = async_to_sync(client.get)(f"{LIST}history/?format=csv")
    assert not response.streaming
    assert b"web-3" in response.content


def test_figures_are_numbers_in_json():
    attempt("k", held=1.25, waited=None, work="", at=timezone.now() - timedelta(minutes=1))
    attempt("k", outcome=Attempt.HELD, held=None, waited=float("inf"), token=9)
    action("k")
    of_action, is_open, released = as_json("history", "k")["events"]
    assert (of_action["host"], of_action["pid"], of_action["by"], of_action["lasted"]) == (None, None, "anna", None)
    assert (is_open["waited"], is_open["lasted"]) == (4e9, None)
    known = {name: released[name] for name in ("host", "pid", "by", "work", "via", "reason", "waited", "lasted")}
    absent = dict.fromkeys(("by", "work", "via", "reason", "waited"))
    assert known == {"host": "web-3", "pid": 812, **absent, "lasted": 1.25}
    with zk_lock("k"):
        shown = as_json("show", "k")
    assert released in shown["grants"]
    for answer in (shown, as_json("list"), as_json("status"), as_json("history")):
        assert '": ""' not in json.dumps(answer)
    assert as_json("status")["longest_wait"] is None


def test_the_command_shows_the_rows_of_the_page():
    attempt("a")
    action("b", at=timezone.now() - timedelta(minutes=1))
    text = zklock("history")
    assert_shows(text, "Broken; it was held by web-3 · pid 812", "anna (command)")
    assert text.endswith("2 rows\n")
    assert as_json("history", "--limit=1")["more"] is True


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        (["--since=2h"], ["actions", "lost"]),
        (["b", "--what=lost"], ["lost"]),
        (["--who=anna", "--host=web-1"], []),
        (["--who=web-3", "--since=4h"], ["actions", "lost", "released"]),
        (["--who=812", "--since=4h", "--what=lost"], ["lost"]),
    ],
    ids=" ".join,
)
def test_the_command_has_the_filters_of_the_page(options, kinds):
    attempt("a", at=timezone.now() - timedelta(hours=3))
    attempt("b", outcome=Attempt.LOST, reason="the session is over", at=timezone.now() - timedelta(minutes=2))
    action("b", at=timezone.now() - timedelta(minutes=1))
    assert [row["kind"] for row in as_json("history", *options)["events"]] == kinds


@pytest.mark.parametrize("wrong", ["--limit=0", "--what=x", "--since=soon"])
def test_the_command_refuses_a_wrong_filter(wrong):
    assert ending("history", wrong)[0] != ExitCode.OK


@pytest.fixture(params=[True, False], ids=["aware", "naive"])
def in_shanghai(request):
    """An operator holds a lock of Jürgen in a project whose times are aware or naive."""
    with override_settings(TIME_ZONE="Asia/Shanghai", USE_TZ=request.param):
        hold = operations.hold_lock(JUERGEN, seconds=600, reason="deploy", by="anna")
        attempt(JUERGEN)
        yield hold
        for left in as_json("list")["locks"]:
            operations.end_hold(left["key"], token=int(left["holders"][0]["token"]), by="anna")


def test_all_times_are_in_the_time_zone_of_the_project(in_shanghai):
    operator = user_with("view_lock", "break_lock", "hold_lock", "limit_lock", "request_release_lock")
    until = f"{in_shanghai.until + timedelta(hours=8):%Y-%m-%d %H:%M:%S} CST"
    assert formatting.time_text(in_shanghai.until) == until
    pages = [f"{LIST}{quote(JUERGEN)}/change/", f"{LIST}{quote(JUERGEN)}/history/", f"{LIST}history/"]
    pages += [f"{LIST}break/?{urlencode({'key': JUERGEN})}", LIST, f"{LIST}?q="]
    texts = [html.unescape(operator.get(page).content.decode()) for page in pages]
    assert [page for page, text in zip(pages, texts, strict=True) if "Jürgen" not in text] == []
    form = {"key": "other", "minutes": "5", "wait": "0", "reason": "deploy"}
    texts.append(html.unescape(operator.post(f"{LIST}hold/", form, follow=True).content.decode()))
    command = zklock("show", "kunden/Jürgen")
    texts += [command, zklock("history"), zklock("limit", JUERGEN), *ending("show", "x")[1:]]
    times = re.findall(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d.{4}", "\n".join(texts))
    assert len(times) >= 10
    assert {time[-4:] for time in times} == {" CST"}
    assert until in texts[0]
    assert until in command


def test_times_in_json_are_utc(in_shanghai):
    (holder,) = as_json("show", JUERGEN)["holders"]
    assert holder["operator"]["until"].endswith("+00:00")
    assert {row["at"][-6:] for row in as_json("history")["events"]} == {"+00:00"}
