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
from kazoo.security import make_digest_acl
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
from django_zklock.report import holders

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


def test_callers_that_many_holders_keep_out_name_none(operator, contend):
    record(20, Event.TIMED_OUT, ago=30)
    contend("orders/1")
    assert_named(operator, "hot", "20 callers were refused", "Hold it for a shorter time")
    assert "worker-1" not in cards(operator)[0]["explanation"]


def test_the_list_the_page_and_the_terminal_have_the_word_of_the_card(operator, contend):
    contend("orders/1")
    contend("orders/1", "worker-2", 5)
    await_cause(operator, "hung")
    word = '<span class="zklock-state zklock-slow">Slow</span>'
    for path in ("?q=", "?state=slow", "orders_2F1/change/"):
        assert word in operator.get(f"{LIST}{path}").content.decode(), path
    assert re.search(r"^orders/1 +slow ", ending("list", "--state=slow")[1], re.MULTILINE)
    assert "\nSlow.\n" in ending("show", "orders/1")[1]


def test_the_causes_of_a_whole_night_fit_into_the_first_lines(operator, contend, zoo, monkeypatch):
    """Each with its remedy and a command. The ages are certain, or null: a hold without a grant time may be younger."""
    monkeypatch.setattr(holders, "FORGOTTEN", 0.0)
    for number in range(50):
        contend(f"orders/{number:03}", pid=70)
    contend("orders/000", "worker-2", 5)
    contend("slow", "worker-3", 9)
    for key, host, more in (("a", "w1", {}), ("b", "w2", {"waited": 0}), ("b", "w1", {}), ("a", "w2", {"waited": 0})):
        contend(key, host, 1, owner=1, **more)
    foreign = f"{zoo.base}/x/{nodes.prefix(str(uuid.uuid4()))}"
    foreign = zoo.client.create(foreign, b"10.0.0.7", ephemeral=True, sequence=True, makepath=True)
    worn = f"{zoo.base}/orders/9/{nodes.prefix(str(uuid.uuid4()))}-000000005"
    zoo.client.create(worn, ephemeral=True, makepath=True)
    hold = operations.hold_lock("stock", seconds=600, reason="maintenance", by="alice")
    for key in ("slow", "x", "stock"):
        contend(key, "worker-2", 5)
    causes = ["deadlock", "unreadable", "host", "foreign", "hung", "operator"]
    eventually(lambda: [card["cause"] for card in cards(operator)] == causes, 30)
    assert 'lock/?host=worker-1">All locks of this host</a>' in operator.get(LIST).content.decode()
    printed, code = status()
    first = "\n".join(printed.splitlines()[:LINES])
    for card in cards(operator):
        assert card["title"].partition(" for ")[0] in first  # the times go on
        assert card["remedy"] in first
        assert card["commands"][0] in first
    assert code == ExitCode.INCIDENT
    ages = {incident["cause"]: incident["age"] for incident in json.loads(status("--json")[0])["incidents"]}
    assert ages["foreign"] is ages["unreadable"] is None
    assert ages["hung"] > HUNG
    operations.end_hold("stock", token=hold.token, by="alice", reason="done")
    for path in (foreign, worn):
        zoo.client.delete(path)


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


def test_a_restored_waiter_is_the_same_incident_in_all_places(operator, contend, zoo):
    contend("orders/1")
    path = f"{zoo.base}/orders/1/{nodes.prefix(str(uuid.uuid4()))}"
    path = zoo.client.create(path, b"10.0.0.7", sequence=True)
    (card,) = cards(operator)
    (of_probe,) = operator.get(PROBE).json()["incidents"]
    (of_status,) = json.loads(ending("status", "--json")[1])["incidents"]
    assert {card["identity"]} == {of_probe["identity"], of_status["identity"]}
    zoo.client.delete(path)


def test_a_verdict_without_a_directory_names_the_part_that_was_looked_at(operator, zoo):
    zoo.client.ensure_path(zoo.base)
    zoo.client.create(f"{zoo.base}/secret", acl=[make_digest_acl("alice", "pw", all=True)])
    inspection.snapshot(max_age=0)
    _printed, code = status()
    assert code == ExitCode.PARTIAL
    verdict = json.loads(status("--json")[0])["verdict"]
    assert "secret: It is not known who holds it. Its directory cannot be listed: ZooKeeper refused" in verdict
    assert ending("status")[0] == ending("list")[0] == ExitCode.PARTIAL
    page = operator.get(f"{LIST}secret/change/").content.decode()
    assert_shows(page, "Unknown", hides=["Free", "This lock is free.", "ZooKeeper does not answer."])
    assert ending("show", "secret")[0] == ending("show", "secret", "--json")[0] == ExitCode.PARTIAL
    chosen = operator.get(f"{LIST}act/break/?key=secret").content.decode()
    assert_shows(chosen, "It is not known who holds it.", hides=["Nobody holds it now."])
    assert operator.get(PROBE).status_code == 503
    assert "Nothing needs attention." not in operator.get(LIST).content.decode()
    zoo.client.delete(f"{zoo.base}/secret")


def test_a_holder_that_is_not_the_first_waiter_elsewhere_is_no_cause(operator, contend):
    """A page reads first waiters, and the names of all others."""
    contend("root", owner=1)
    for number in (2, 3):
        contend("mid", f"other-{number}", number, owner=number)
        contend("root", "other-9", 9, owner=9)
        contend("root", f"other-{number}", number, owner=number)
    await_cause(operator, "hung")
    (card,) = cards(operator)
    assert (card["keys"], card["blocked"]) == (["root"], 5)
    page = operator.get(f"{LIST}mid/change/").content.decode()
    assert_shows(page, "It waits for root. Only that one helps.", hides=["act/break"])
    assert "act/break/" in operator.get(f"{LIST}root/change/").content.decode()


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


def test_holds_from_before_an_outage_of_the_database_are_no_deaths(operator):
    """Their ends may have been lost. A row that was written late tells of the outage."""
    kill("pay", "pay", "pay", "a", "b", "c")
    before, later = timezone.now() - timedelta(minutes=6), timezone.now() - timedelta(minutes=2)
    Event(key="k", outcome=Event.TIMED_OUT, at=before).save()
    Event.objects.filter(key="k").update(recorded=later)
    assert cards(operator) == []
    Event.objects.filter(key="k").update(recorded=before)
    table._recent.clear()
    assert [card["cause"] for card in cards(operator)] == ["ended", "dying"]


def test_tables_that_cannot_be_read_are_not_green(operator):
    record(5, Event.STALE)
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE zklock_events_event RENAME TO elsewhere")
    page = operator.get(LIST).content.decode()
    assert_shows(page, "Losses, refusals and ended processes were not looked at", hides=["zklock-calm"])
    assert status()[1] == ExitCode.PARTIAL
    assert operator.get(PROBE).status_code == 503


def test_a_part_of_the_locks_is_not_green_on_the_page_and_the_doctor_reads_all(operator, zoo, monkeypatch):
    original = inspection.snapshot
    monkeypatch.setattr(inspection, "snapshot", lambda **more: original(**{"max_locks": 1000, "max_age": 0, **more}))
    zoo.client.ensure_path(f"{zoo.base}/orders")
    payload = Part("w", 7).data(guid := str(uuid.uuid4()))
    directories = [zoo.client.create_async(f"{zoo.base}/orders/{number}") for number in range(1001)]
    created = [
        zoo.client.create_async(f"{directory.get(30)}/{nodes.prefix(guid)}", payload, ephemeral=True, sequence=True)
        for directory in directories
    ]
    paths = [path.get(30) for path in created]
    page = operator.get(LIST).content.decode()
    assert_shows(page, "No known cause in 1,000 of 1,001 locks, 1 of 1 servers.", hides=["zklock-calm"])
    printed, code = status("--reply-timeout=20s")
    assert_shows(printed, "Nothing needs attention. Looked at: 1001 of 1001 locks, 1 of 1 servers.\n")
    assert code == 0
    printed, _code = status("--reply-timeout=50ms", "--json")
    seen = json.loads(printed)
    assert {incident["cause"] for incident in seen["incidents"]} <= {"quorum"}, "no lock is unreadable"
    assert seen["complete"] or "time was too short" in printed or "did not answer" in printed
    for path in [zoo.client.delete_async(path) for path in paths]:
        path.get(30)


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
