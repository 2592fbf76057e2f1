"""Staged incidents: cause and remedy on the page, by the doctor and in JSON; `test_incident_drill` has processes."""

import json
import time
import uuid
from datetime import datetime, timedelta
from datetime import timezone as zones

import pytest
from django.db import connection
from django.db.models import F
from django.test import Client
from django.utils import timezone
from kazoo.security import make_digest_acl
from support.adminsite import LIST, user_with
from support.browser.actors import Part
from support.faults import within
from support.locking import ending
from support.texts import assert_shows
from support.zoo import eventually

from django_zklock import inspection, operations
from django_zklock.contrib.events import facts, table
from django_zklock.contrib.events.models import Attempt, OperatorAction
from django_zklock.core.queue import nodes
from django_zklock.core.zk import troubles
from django_zklock.management.exit_codes import ExitCode
from django_zklock.report import facts as report_facts
from django_zklock.report import holders

pytestmark = [pytest.mark.django_db, pytest.mark.timeout(120), pytest.mark.usefixtures("zoo")]

PROBE = "/incidents.json"
LONG_AGO = datetime(2020, 1, 1, tzinfo=zones.utc)
LINES = 25
HUNG = 3.0  # seconds from which on a holder may be hung; 10 in production


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(report_facts, "LEAST_SECONDS", HUNG)
    monkeypatch.setattr(facts, "LATE", 2.0)


@pytest.fixture
def contend(contend):
    """Have contenders of tasks that have said when they got the lock."""

    def join(key, host="worker-1", pid=77, **more):
        return contend(key, host=host, pid=pid, **{"what": "shop.tasks.charge", "waited": 1, **more})

    return join


def attempts(rows, outcome, **more):
    for number in range(rows):
        given = {"key": f"orders/{number}", "host": "worker-1", "pid": 77, "held": 1.0, "waited": 0.0}
        given |= {"at": timezone.now() - timedelta(seconds=60), "token": number + 1, "session": number, **more}
        Attempt(outcome=outcome, **given).save()


def doctor(*arguments):
    status, printed, _ = ending("doctor", "--incident", *arguments)
    return printed, status


def cards(operator):
    inspection.snapshot(max_age=0, max_waiters=1)
    return list(operator.get(LIST).context.get("cards", []))


def await_cause(operator, cause):
    """Wait until the first card has this cause: a holder is hung after `HUNG` seconds at the earliest."""
    eventually(lambda: [card["cause"] for card in cards(operator)][:1] == [cause], 30)


def assert_named(operator, cause, status, *texts, options=()):
    """Fail unless the first card, and the first lines of the doctor as text and as JSON, have these texts."""
    (first, *_) = cards(operator)
    printed, returned = doctor(*options)
    as_json, returned_with_json = doctor("--json", *options)
    shown = f"{first['title']} {first['explanation']} {first['remedy']}"
    for text in texts:
        assert text in shown
        assert text in "\n".join(printed.splitlines()[:LINES])
        assert text in "\n".join(as_json.splitlines()[:LINES])
    assert first["cause"] == json.loads(as_json)["incidents"][0]["cause"] == cause
    assert returned == returned_with_json == status
    probe = operator.get(PROBE)
    assert (probe.status_code, probe.json()["incidents"][0]["cause"]) == (503, cause)


def test_the_doctor_waits_only_if_a_host_may_have_died(monkeypatch):
    monkeypatch.setattr(facts, "LATE", 50.0)
    attempts(2, Attempt.HELD, held=None)
    attempts(2, Attempt.HELD, held=None, host="worker-2")
    with within(20):
        assert doctor() == ("Nothing needs attention. Looked at: 0 of 0 locks, 1 of 1 servers.\n", 0)


def test_locks_that_were_just_released_are_no_incident(operator, monkeypatch):
    """Their rows have no end yet, for a second or so."""
    monkeypatch.setattr(facts, "LATE", 50.0)
    attempts(3, Attempt.HELD, held=None)
    assert cards(operator) == []
    assert Attempt.objects.filter(missed_at__isnull=False).count() == 3
    Attempt.objects.update(outcome=Attempt.RELEASED)
    table.past_unfinished.clear()
    assert cards(operator) == []
    assert "Nothing needs attention." in operator.get(LIST).content.decode()


def test_the_first_look_is_stored_for_all_processes(operator, monkeypatch):
    """The drills in `chaos/admin` have real ones. Here, another process is one that has read nothing yet."""

    def seen():
        table.past_unfinished.clear()
        return [(card["cause"], card["identity"]) for card in cards(operator)]

    monkeypatch.setattr(facts, "LATE", 600.0)
    attempts(5, Attempt.HELD, held=None, at=timezone.now() - timedelta(minutes=11))
    verdict = str(operator.get(LIST).context["verdict"])
    assert " First look: processes on worker-1 may have ended with 5 locks. Look again in " in verdict
    assert seen() == []
    Attempt.objects.update(missed_at=F("missed_at") - timedelta(seconds=700))
    first = seen()
    assert [cause for cause, _identity in first] == ["ended"]
    assert first == seen()


def test_broken_work_is_an_incident_until_it_ends(operator):
    attempts(1, Attempt.HELD, held=None)
    given = {"what": "broken", "by": "anna", "via": "command", "reason": "hung", "token": 1, "sure": True}
    OperatorAction(key="orders/0", at=timezone.now(), **given).save()
    (card,) = cards(operator)
    assert card["cause"] == "broken"
    assert card["title"].startswith("Broken by anna")
    assert "its work has not ended yet: orders/0" in card["title"]
    assert "may still run" in card["explanation"]
    assert "killed" not in str(card)
    Attempt.objects.update(outcome=Attempt.LOST, held=1.0)
    table.past_unfinished.clear()
    assert cards(operator) == []


def test_a_slow_task_can_be_broken_or_asked_which_the_card_tells(operator, contend, monkeypatch):
    attempts(5, Attempt.RELEASED, template="orders/1")
    contend("orders/1")
    contend("orders/1", "worker-2", 5)
    with monkeypatch.context() as patch:
        patch.setattr(report_facts, "LEAST_SECONDS", 600.0)
        assert cards(operator) == [], "so far it is not slow"
    await_cause(operator, "hung")
    (before,) = cards(operator)
    assert "Asked by" not in before["explanation"]
    texts = ("worker-1", "orders/1", "x its usual time", "work that looks for requests finishes", "1 caller waits.")
    assert_named(operator, "hung", ExitCode.HUNG, *texts, "The holder runs shop.tasks.charge.")
    assert doctor()[0].index("zklock show --stack -- ") < doctor()[0].index("zklock request-release --token=")
    page = operator.get(LIST).content.decode()
    assert_shows(page, "break/?key=orders%2F1", "Connected", "1 thing needs attention", "1 caller is behind it, for ")
    assert page.index("Show its stack…") < page.index("Request release…")
    page = user_with("view_lock").get(LIST).content.decode()
    assert_shows(page, "You lack the permission to break locks.", hides=["break/?key"])
    operations.request_release("orders/1", by="anna", reason="deploy")
    time.sleep(1)  # until then it may show what it has seen before
    assert_named(operator, "hung", ExitCode.HUNG, "Asked by anna", "s ago: deploy.")
    assert cards(operator)[0]["identity"] == before["identity"]


def test_the_causes_of_a_whole_night_fit_into_the_first_lines(operator, contend, zoo, monkeypatch):
    """Each with its remedy and a command. The ages are certain, or null: a hold without a grant time may be younger."""
    monkeypatch.setattr(holders, "FORGOTTEN", 0.0)
    attempts(5, Attempt.RELEASED, template="orders/{number}")
    attempts(3, Attempt.LOST, host="web-77", reason="the ZooKeeper session is over")
    for number in range(50):
        contend(f"orders/{number:03}", pid=70, template="orders/{number}")
    contend("orders/000", "worker-2", 5)
    contend("slow", "worker-3", 9, template="orders/{number}")
    for key, host, more in (("a", "w1", {}), ("b", "w2", {"waited": 0}), ("b", "w1", {}), ("a", "w2", {"waited": 0})):
        contend(key, host, 1, owner=1, **more)
    foreign = f"{zoo.base}/x/{nodes.prefix(str(uuid.uuid4()))}"
    foreign = zoo.client.create(foreign, b"10.0.0.7", ephemeral=True, sequence=True, makepath=True)
    worn = f"{zoo.base}/orders/9/{nodes.prefix(str(uuid.uuid4()))}-000000005"
    zoo.client.create(worn, ephemeral=True, makepath=True)
    hold = operations.hold_lock("stock", seconds=600, reason="maintenance", by="alice")
    for key in ("slow", "x", "stock"):
        contend(key, "worker-2", 5)
    causes = ["deadlock", "counter", "host", "foreign", "hung", "operator", "flapping"]
    eventually(lambda: [card["cause"] for card in cards(operator)] == causes, 30)
    printed, status = doctor()
    first = "\n".join(printed.splitlines()[:LINES])
    for card in cards(operator):
        assert card["title"].partition(" for ")[0] in first  # the times go on
        assert card["remedy"] in first
        assert card["commands"][0] in first
    assert status == ExitCode.DEADLOCK
    ages = {incident["cause"]: incident["age"] for incident in json.loads(doctor("--json")[0])["incidents"]}
    assert ages["foreign"] is ages["flapping"] is ages["counter"] is None
    assert ages["hung"] > HUNG
    operations.end_hold("stock", token=hold.token, by="alice", reason="done")
    for path in (foreign, worn):
        zoo.client.delete(path)


def test_an_unknown_znode_says_what_to_look_for(operator, zoo):
    path = zoo.client.create(f"{zoo.base}/orders/9/mine-", ephemeral=True, sequence=True, makepath=True)
    assert_named(operator, "unreadable", ExitCode.UNREADABLE, "orders/9", "Find the program that made the znode")
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
    assert_named(operator, "orphan", ExitCode.ORPHAN, *texts, "1 caller waits.")
    assert len(cards(operator)) == 1
    assert_shows(doctor()[0], f"zklock break --token={token} --reason='' -- orders/1", hides=["request-release"])
    page = operator.get(f"{LIST}orders_2F1/change/").content.decode()
    assert_shows(page, "If its program is gone, break the lock.", hides=["Request release…"])
    for path in restored:
        zoo.client.delete(path)
    assert cards(operator) == []


def test_a_restored_waiter_is_named_and_cannot_be_broken(operator, contend, zoo):
    contend("orders/1")
    path = f"{zoo.base}/orders/1/{nodes.prefix(str(uuid.uuid4()))}"
    path = zoo.client.create(path, b"10.0.0.7", sequence=True)
    assert_named(operator, "orphan", ExitCode.ORPHAN, "orders/1", "delete its znode")
    assert "zklock break" not in doctor()[0]
    zoo.client.delete(path)


def test_a_restored_waiter_behind_others_is_named_in_all_places(operator, contend, zoo):
    for host in ("worker-1", "worker-2"):
        contend("orders/1", host)
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
    inspection.snapshot(max_age=0, max_waiters=1)
    printed, status = doctor()
    assert (printed, status) == ("", ExitCode.PARTIAL)
    verdict = json.loads(doctor("--json")[0])["verdict"]
    assert "secret: It is not known who holds it. Its directory cannot be listed: ZooKeeper refused" in verdict
    assert ending("status")[0] == ending("list")[0] == ExitCode.PARTIAL
    page = operator.get(f"{LIST}secret/change/").content.decode()
    assert_shows(page, "Unknown", hides=["Free", "This lock is free.", "ZooKeeper does not answer."])
    assert ending("show", "secret")[0] == ending("show", "secret", "--json")[0] == ExitCode.PARTIAL
    chosen = operator.get(f"{LIST}break/?key=secret").content.decode()
    assert_shows(chosen, "It is not known who holds it.", hides=["Nobody holds it now."])
    assert operator.get(PROBE).status_code == 503
    assert "Nothing needs attention." not in operator.get(LIST).content.decode()
    zoo.client.delete(f"{zoo.base}/secret")


def test_no_process_has_ended_for_a_look_that_did_not_see_all_holders(operator, zoo):
    """Its session may be that of the holder of the queue that may not be listed."""
    zoo.client.ensure_path(zoo.base)
    zoo.client.create(f"{zoo.base}/secret", acl=[make_digest_acl("alice", "pw", all=True)])
    attempts(3, Attempt.HELD, held=None)
    assert cards(operator) == []
    assert not Attempt.objects.filter(missed_at__isnull=False).exists()
    zoo.client.delete(f"{zoo.base}/secret")


@pytest.mark.parametrize(
    ("rows", "causes"),
    [
        ([("w1", "a"), ("w1", "b"), ("w1", "c")], [("ended", ["a", "b", "c"])]),
        ([("w1", "a"), ("w1", "a"), ("w1", "b"), ("w1", "c")], [("ended", ["a", "b", "c"])]),
        ([("w1", "a")] * 3, [("dying", ["a"])]),
        ([("w1", "a"), ("w2", "a"), ("w3", "a"), ("w3", "b")], [("dying", ["a"])]),
        ([("w1", "a"), ("w1", "a"), ("w1", "b"), ("w2", "c")], []),
    ],
    ids=["three locks", "one of them twice", "one lock thrice", "one lock on three hosts", "two locks of a host"],
)
def test_ended_processes_count_their_locks_once(operator, rows, causes):
    ended(rows)
    present = cards(operator)
    assert [(card["cause"], sorted(card["keys"])) for card in present] == causes
    assert [card["title"] for card in present if card["cause"] == "ended" and "with 3 locks" not in card["title"]] == []


def ended(rows):
    """Record holds, each of a host and a key, whose processes have ended."""
    for number, (host, key) in enumerate(rows):
        missed = timezone.now() - timedelta(seconds=20 + number)
        attempts(1, Attempt.HELD, held=None, host=host, key=key, token=number + 1, missed_at=missed, work="charge")


def test_processes_that_ended_without_an_alarm_are_told_below_the_cards(operator):
    ended([("w1", "a"), ("w1", "a"), ("w1", "b"), ("w2", "c")])
    printed, status = doctor("--json")
    lines = [f"held {key} (charge)" for key in "abc"]
    assert_shows(" ".join(json.loads(printed)["recently_ended"]), *lines)
    assert_shows(operator.get(LIST).content.decode(), *lines)
    assert status == 0


def test_processes_of_an_incident_are_not_told_a_second_time(operator):
    ended([("w1", "a")] * 3)
    assert json.loads(doctor("--json")[0])["recently_ended"] == []
    assert "held a (charge)" not in operator.get(LIST).content.decode()


@pytest.mark.parametrize("ahead", [timedelta(minutes=-1), timedelta(minutes=10)], ids=["clock right", "clock ahead"])
def test_a_restarted_container_does_not_hide_its_deaths(operator, contend, ahead):
    """It has the same host name and pid in each life, so a life is its session."""
    contend("orders/7")
    for number in range(3):
        given = {"key": "orders/7", "at": timezone.now() + ahead, "token": number + 1, "session": number + 1}
        attempts(1, Attempt.HELD, held=None, **given)
    await_cause(operator, "dying")


def test_a_holder_that_is_not_the_first_waiter_elsewhere_is_no_cause(operator, contend):
    """A page reads first waiters, and the names of all others."""
    attempts(5, Attempt.RELEASED, template="slow")
    contend("root", template="slow", owner=1)
    for number in (2, 3):
        contend("mid", f"other-{number}", number, template="slow", owner=number)
        contend("root", "other-9", 9, owner=9)
        contend("root", f"other-{number}", number, owner=number)
    await_cause(operator, "hung")
    (card,) = cards(operator)
    assert (card["keys"], card["blocked"]) == (["root"], 5)
    page = operator.get(f"{LIST}mid/change/").content.decode()
    assert_shows(page, "It waits for root. Only that one helps.", hides=["do=break"])
    assert "do=break" in operator.get(f"{LIST}root/change/").content.decode()


def test_a_lock_that_is_refused_to_many_is_named(operator, contend):
    now = timezone.now()
    attempts(19, Attempt.TIMED_OUT, key="few", token=None, at=now)
    attempts(100, Attempt.TIMED_OUT, key="before", token=None)
    attempts(19, Attempt.TIMED_OUT, key="pay/7", token=None, at=now)
    attempts(1, Attempt.TIMED_OUT, key="pay/7", token=None, at=now, waited=0.0, count=200)
    attempts(84, Attempt.RELEASED, key="pay/7", at=now)
    attempts(30, Attempt.TIMED_OUT, key="rarely", token=None, at=now)
    attempts(70, Attempt.RELEASED, key="rarely", at=now)
    texts = ("219 of 303 callers were refused in the last minute: pay/7", "timeout", "on_conflict")
    assert_named(operator, "hot", ExitCode.HOT, *texts)
    assert len(cards(operator)) == 1
    assert "pay_2F7/change/" in operator.get(LIST).content.decode()


def test_a_process_that_hangs_with_many_locks_offers_its_stack(operator, contend):
    for number in range(4):
        contend(f"stock/{number}", owner=1)
        contend(f"stock/{number}", f"web-{number}", number, owner=1)
    attempts(5, Attempt.RELEASED, template="stock/0")
    await_cause(operator, "host")
    page = operator.get(LIST).content.decode()
    assert f'formaction="{LIST}stack/" name="key" value="stock/' in page


def test_callers_that_are_refused_behind_a_holder_that_hangs_are_no_second_incident(operator, contend):
    attempts(5, Attempt.RELEASED, template="slow")
    contend("pay/7", template="slow")
    contend("pay/7", "other-2", 2)
    attempts(1, Attempt.TIMED_OUT, key="pay/7", token=None, at=timezone.now(), waited=0.0, count=200)
    await_cause(operator, "hung")
    assert [card["cause"] for card in cards(operator)] == ["hung"]


def test_refused_writes_of_holders_are_named(operator):
    """They have the lock, but the rows have higher tokens: ZooKeeper was restored."""
    attempts(2, Attempt.STALE, template="orders/{pk}", token=None)
    assert cards(operator) == []
    table.past_stale.clear()
    attempts(3, Attempt.STALE, template="orders/{pk}", token=None)
    texts = ("5 fenced writes were refused", "orders/1, orders/0", "After ZooKeeper has lost its data")
    assert_named(operator, "stale", ExitCode.STALE, *texts)
    assert "Fenced write refused" in operator.get(f"{LIST}history/").content.decode()


def test_deadlocks_that_have_ended_name_the_order_of_the_locks(operator):
    def deadlock(minutes_ago, *waits, **more):
        at = timezone.now() - timedelta(minutes=minutes_ago)
        for number, (work, reason, key) in enumerate(waits, start=1):
            ended = {"waited": 1.0 if number == len(waits) else None, "held": None, "token": None, **more}
            names = {"key": key, "template": key.split("/")[0] + "/{id}", "reason": reason, "work": work}
            attempts(1, Attempt.DEADLOCK, at=at, host=f"web-{number}", **names, **ended)
        table.past_deadlocks.clear()

    deadlock(45, ("old", "a/1", "b/1"), ("old", "b/1", "a/1"))
    assert cards(operator) == []
    deadlock(9, ("ship", "stock/1", "orders/1"), ("sell", "orders/1", "stock/1"))
    (first,) = cards(operator)
    ship = f"task ship {uuid.uuid4()}"
    deadlock(3, ("sell", "orders/2", "stock/2"), (ship, "stock/2", "orders/2"))
    texts = (
        "which has ended by itself: stock/2, orders/2",
        "2 in the last 30 minutes",
        "pid 77 (sell) held orders/2 and waited for stock/2; web-2",
        f"pid 77 ({ship}) held stock/2 and waited for orders/2 until its wait was ended.",
        "Always lock orders/{id} before stock/{id}, or all at once with `zk_locks`. To change: task ship.",
    )
    assert_named(operator, "order", ExitCode.ORDER, *texts)
    (card,) = cards(operator)
    assert (card["identity"], card["severity"]) == (first["identity"], "warning")
    assert "zklock history --what=deadlock\n" in doctor()[0]

    deadlock(2, ("move", "orders/8", "orders/9"), ("swap", "orders/9", "orders/8"))
    assert len({card["identity"] for card in cards(operator)}) == 2
    assert_shows(doctor()[0], "Always lock orders/{id} in the order of the keys, or all at once", "To change: swap.")


@pytest.mark.parametrize(
    ("cause", "more"),
    [
        ("flapping", {"outcome": Attempt.LOST, "reason": troubles.LEASE_OVER}),
        ("hot", {"outcome": Attempt.TIMED_OUT, "token": None, "key": "pay/7", "held": None}),
        ("dying", {"outcome": Attempt.HELD, "key": "pay/7", "held": None, "missed_at": LONG_AGO}),
    ],
)
def test_trouble_after_a_pause_is_another_incident(operator, cause, more):
    """So an acknowledgement of the first one is none of this one. Half an hour is a pause."""
    now = timezone.now()

    def identity(*minutes_ago):
        Attempt.objects.all().delete()
        for minutes in minutes_ago:
            attempts(1 if minutes else 25, at=now - timedelta(minutes=minutes), **more)
        table.past_losses.clear()
        table.past_refused.clear()
        table.past_unfinished.clear()
        (card,) = cards(operator)
        assert card["cause"] == cause
        return str(card["identity"])

    first = identity(45, 20, 0)
    assert identity(45, 30, 18, 5, 0) == identity(200, 45, 20, 0) == first, "the same, as long as it goes on"
    assert len({first, identity(45, 0), identity(20, 0)}) == 3
    days = [range(0, 24 * 60 * hours, 20) for hours in (2, 3)]
    assert identity(*days[0]) == identity(*days[1]) != first, "what lasts for more than a day is of that day"


READ_ONLY = "CREATE TRIGGER no BEFORE UPDATE ON zklock_events_attempt BEGIN SELECT RAISE(ABORT, 'read-only'); END"


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("ALTER TABLE zklock_events_attempt RENAME TO elsewhere", "Losses, refusals and ended processes were not"),
        (READ_ONLY, "ended processes were not"),  # whether it is the first look cannot be stored then
    ],
    ids=["read", "write"],
)
def test_tables_that_cannot_be_used_are_not_green(operator, statement, text):
    attempts(5, Attempt.HELD, held=None)
    with connection.cursor() as cursor:
        cursor.execute(statement)
    assert_shows(operator.get(LIST).content.decode(), f"{text} looked at", hides=["zklock-calm"])
    assert doctor()[1] == ExitCode.PARTIAL
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
    calm = "Nothing needs attention. Looked at: 1001 of 1001 locks, 1 of 1 servers.\n"
    assert doctor("--reply-timeout=20s") == (calm, 0)
    printed, _status = doctor("--reply-timeout=50ms", "--json")
    seen = json.loads(printed)
    assert {incident["cause"] for incident in seen["incidents"]} <= {"quorum"}, "no lock is unreadable"
    assert seen["complete"] or "time was too short" in printed or "did not answer" in printed
    for path in [zoo.client.delete_async(path) for path in paths]:
        path.get(30)


def test_calm_is_one_green_sentence(operator):
    page = operator.get(LIST).content.decode()
    assert_shows(page, "Nothing needs attention.", "0 locks and 1 server read ", "No lock is held now.")
    assert doctor() == ("Nothing needs attention. Looked at: 0 of 0 locks, 1 of 1 servers.\n", 0)
    looked_at = "0 of 0 locks, 1 of 1 servers"
    verdict = f"Nothing needs attention. Looked at: {looked_at}."
    calm = {"healthy": True, "problem": "", "complete": True, "looked_at": looked_at, "verdict": verdict, "locks": 0}
    calm |= {"incidents": [], "acknowledged": [], "recently_ended": []}
    assert json.loads(doctor("--json")[0]) == calm
    probe = operator.get(PROBE)
    assert (probe.status_code, probe.json()) == (200, calm)


def test_the_probe_of_incidents_needs_the_permission():
    assert user_with().get(PROBE).status_code == 403
    assert Client().get(PROBE).status_code in {302, 403}
