"""Staged incidents: cause and remedy on the page, by `status` and in JSON; `test_incident_drill` has processes."""

import json
import re
import time
import uuid
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone
from support.adminsite import LIST, user_with
from support.browser.actors import Part
from support.locking import ending
from support.texts import assert_shows
from support.zoo import eventually

from django_zklock import inspection, operations
from django_zklock.contrib.events import table
from django_zklock.contrib.events.models import Event
from django_zklock.core.queue import nodes
from django_zklock.management.exit_codes import ExitCode
from django_zklock.report import facts as report_facts

pytestmark = [pytest.mark.django_db, pytest.mark.timeout(120), pytest.mark.usefixtures("zoo")]

PROBE = "/incidents.json"
LINES = 25
HUNG = 3.0  # seconds from which on a holder may be hung


@pytest.fixture(autouse=True)
def short_waits(zoo, monkeypatch):
    monkeypatch.setattr(report_facts, "LEAST_SECONDS", HUNG)
    with zoo.configured(DEFAULTS={"warn_after": HUNG}):
        yield


@pytest.fixture
def contend(contend):
    """Have contenders of tasks that have said when they got the lock."""

    def join(key, host="worker-1", pid=77, **more):
        return contend(key, host=host, pid=pid, **{"what": "shop.tasks.charge", "waited": 1, **more})

    return join


def record(rows, outcome, host="worker-1", ago=0, **more):
    now = timezone.now() - timedelta(seconds=ago)
    for number in range(rows):
        fields = {"pid": 77, "at": now, "token": number + 1, "session": number, **more}
        Event(key="orders/1", outcome=outcome, host=host, **fields).save()


def status(*arguments):
    code, printed, _ = ending("status", *arguments)
    return printed, code


def cards(operator):
    inspection.snapshot(max_age=0)
    return list(operator.get(LIST).context.get("cards", []))


def await_cause(operator, cause):
    """Wait until the first card has this cause: a holder is hung after `HUNG` seconds at the earliest."""
    eventually(lambda: [card["cause"] for card in cards(operator)][:1] == [cause], 30)


def assert_named(operator, cause, *texts):
    """Fail unless the first card, and the first lines of `status` as text and as JSON, have these texts."""
    (first, *_) = cards(operator)
    printed, returned = status()
    as_json, returned_with_json = status("--json")
    shown = f"{first['title']} {first['explanation']} {first['remedy']}"
    for text in texts:
        assert text in shown
        assert text in "\n".join(printed.splitlines()[:LINES])
        assert text in "\n".join(as_json.splitlines()[:LINES])
    assert first["cause"] == json.loads(as_json)["incidents"][0]["cause"] == cause
    assert returned == returned_with_json == ExitCode.INCIDENT
    probe = operator.get(PROBE)
    assert (probe.status_code, probe.json()["incidents"][0]["cause"]) == (503, cause)


def test_a_slow_task_can_be_broken_or_asked_which_the_card_tells(operator, contend):
    contend("orders/1")
    contend("orders/1", "worker-2", 5)
    assert cards(operator) == [], "so far it is not slow"
    await_cause(operator, "hung")
    (before,) = cards(operator)
    assert "Asked by" not in before["explanation"]
    texts = ("worker-1", "orders/1", "work that looks for requests finishes", "1 caller waits.")
    assert_named(operator, "hung", *texts, "The holder runs shop.tasks.charge.")
    assert "zklock request-release --token=" in status()[0]
    page = operator.get(LIST).content.decode()
    assert_shows(page, "act/break/?key=orders%2F1", "Connected", "1 thing needs attention")
    assert "/act/" not in user_with("view_lock").get(LIST).content.decode()
    operations.request_release("orders/1", by="anna", reason="deploy")
    time.sleep(1)  # until then it may show what it has seen before
    assert_named(operator, "hung", "Asked by anna: deploy (")
    assert cards(operator)[0]["identity"] == before["identity"]


@pytest.mark.parametrize("outcome", [Event.TRIED, Event.TIMED_OUT])
def test_a_holder_that_hangs_is_named_if_callers_were_refused_since_its_grant(operator, contend, outcome):
    """A periodic task that is skipped, or a view that answers 409: nobody waits."""
    contend("orders/1")
    record(1, outcome, ago=100)
    eventually(lambda: "zklock-state zklock-long" in operator.get(f"{LIST}?q=").content.decode(), 30)
    assert cards(operator) == [], "nobody has wanted it since"
    record(20, outcome)
    assert_named(operator, "hung", "worker-1", "The last caller was refused, or skipped its work")
    assert [(card["cause"], card["blocked"]) for card in cards(operator)] == [("hung", 0)], "no second incident"


def test_callers_that_an_operator_keeps_out_lead_to_the_operator(operator):
    hold = operations.hold_lock("orders/1", seconds=600, reason="deploy 42", by="anna")
    record(20, Event.TIMED_OUT)
    assert_named(operator, "hot", "20 callers were refused", "anna holds it until", "deploy 42", "before that ends")
    assert f"zklock end-hold --token={hold.token}" in status()[0]
    assert "act/end/?key=orders%2F1" in operator.get(LIST).content.decode()
    operations.end_hold("orders/1", token=hold.token, by="anna", reason="done")


@pytest.mark.parametrize(("lasts", "remedy"), [("run", "before that ends"), ("", "Hold it for a shorter time")])
def test_callers_that_one_holder_keeps_out_learn_its_name(operator, contend, lasts, remedy):
    contend("orders/1", lasts=lasts)
    record(20, Event.TIMED_OUT)
    assert_named(operator, "hot", "20 callers were refused", "pid 77 has held it", remedy)


def test_the_list_the_page_and_the_terminal_have_the_word_of_the_card(operator, contend):
    contend("orders/1")
    contend("orders/1", "worker-2", 5)
    await_cause(operator, "hung")
    word = '<span class="zklock-state zklock-slow">Slow</span>'
    for path in ("?q=", "?state=slow", "orders_2F1/change/"):
        assert word in operator.get(f"{LIST}{path}").content.decode(), path
    assert re.search(r"^orders/1 +slow ", ending("list", "--state=slow")[1], re.MULTILINE)
    assert "\nSlow.\n" in ending("show", "orders/1")[1]


def test_an_unknown_znode_says_what_to_look_for(operator, zoo):
    path = zoo.client.create(f"{zoo.base}/orders/9/mine-", ephemeral=True, sequence=True, makepath=True)
    assert_named(operator, "unreadable", "orders/9", "Do what this text says.")
    zoo.client.delete(path)


def test_a_contender_without_a_session_is_named_at_once(operator, contend, zoo):
    """A restored or copied contender is persistent. All of them are one card, whether anybody waits or not."""
    guids = [str(uuid.uuid4()), str(uuid.uuid4())]
    payloads = (Part.task("shop.tasks.charge", "worker-1", 77).data(guids[0]), b"10.0.0.7")
    restored = [
        zoo.client.create(f"{zoo.base}/orders/{number}/{nodes.prefix(guid)}", data, sequence=True, makepath=True)
        for number, guid, data in zip((1, 2), guids, payloads, strict=True)
    ]
    token = zoo.client.get(restored[0])[1].czxid
    contend("orders/1", "worker-2", 5)
    texts = ("Contender without a session: orders/1, orders/2", "restored from a backup", "break the lock")
    assert_named(operator, "orphan", *texts, "1 caller waits.")
    assert len(cards(operator)) == 1
    assert_shows(status()[0], f"zklock break --token={token} --reason='' -- orders/1", hides=["request-release"])
    page = operator.get(f"{LIST}orders_2F1/change/").content.decode()
    assert_shows(page, "If its program is gone, break the lock.", hides=["Request release…"])
    for path in restored:
        zoo.client.delete(path)
    assert cards(operator) == []


def test_a_restored_waiter_is_named_and_cannot_be_broken(operator, contend, zoo):
    contend("orders/1")
    path = f"{zoo.base}/orders/1/{nodes.prefix(str(uuid.uuid4()))}"
    path = zoo.client.create(path, b"10.0.0.7", sequence=True)
    assert_named(operator, "orphan", "orders/1", "delete its znode")
    assert "zklock break" not in status()[0]
    zoo.client.delete(path)


def test_recent_causes_are_named_and_lead_to_their_history(operator):
    """They have the lock, but the rows have higher tokens: ZooKeeper was restored."""
    record(2, Event.STALE)
    assert cards(operator) == []
    table._recent.clear()
    record(3, Event.STALE)
    assert_named(operator, "stale", "5 fenced writes were refused", "orders/1", "After ZooKeeper has lost its data")
    assert '/admin/zklock_events/event/?key=orders%2F1">History</a>' in operator.get(LIST).content.decode()


def test_callers_that_get_no_lock_are_one_incident_of_all_hosts(operator):
    record(2, Event.FAILED)
    assert cards(operator) == []
    table._recent.clear()
    record(1, Event.FAILED, host="web-2", reason="NoAuthError")
    assert_named(operator, "denied", "3 callers in 5 minutes, on web-2, worker-1: NoAuthError", "`AUTH`")


def kill(*deaths):
    """Write holds without an end, each with a later hold by which its death is known."""
    long_ago = timezone.now() - timedelta(minutes=5)
    for session, key in enumerate(deaths):
        common = {"key": key, "at": long_ago, "kind": "lock", "pid": session + 1, "session": session}
        Event(**common, outcome=Event.HELD, host="worker-1", token=session).save()
        Event(**common, outcome=Event.RELEASED, host="web-1", held=1.0, token=100).save()
    Event.objects.update(recorded=long_ago)


def test_deaths_of_the_holders_of_one_lock_are_a_matter_of_that_lock(operator):
    kill("pay", "pay", "pay")
    assert [(card["cause"], card["keys"]) for card in cards(operator)] == [("dying", ["pay"])]


def test_deaths_of_processes_with_several_locks_are_a_matter_of_their_host(operator):
    kill("a", "b", "c")
    assert [(card["cause"], card["host"]) for card in cards(operator)] == [("ended", "worker-1")]


def test_tables_that_cannot_be_read_are_not_green(operator):
    record(5, Event.STALE)
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE zklock_events_event RENAME TO elsewhere")
    page = operator.get(LIST).content.decode()
    assert_shows(page, "Losses, refusals and ended processes were not looked at", hides=["zklock-calm"])
    assert status()[1] == ExitCode.PARTIAL
    assert operator.get(PROBE).status_code == 503


def test_calm_is_one_green_sentence(operator):
    sentence = "Nothing needs attention. Looked at: 0 of 0 locks, 1 of 1 servers."
    assert_shows(operator.get(LIST).content.decode(), sentence, "No lock is held now.")
    assert status() == (f"0 held, 0 waiting. {sentence}\n", 0)
    calm = json.loads(status("--json")[0])
    assert (calm["healthy"], calm["incidents"], calm["verdict"]) == (True, [], sentence)
    probe = operator.get(PROBE)
    assert (probe.status_code, probe.json()) == (200, calm)


def test_the_probe_of_incidents_needs_the_permission():
    assert user_with().get(PROBE).status_code == 403
    assert Client().get(PROBE).status_code in {302, 403}
