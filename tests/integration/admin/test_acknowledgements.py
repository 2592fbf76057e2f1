"""The acknowledgement of an incident: a note that all processes show, and that changes no verdict."""

import json
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlencode

import pytest
from django.contrib.admin.models import LogEntry
from support.adminsite import LIST, user_with
from support.faults import within
from support.locking import ending
from support.zoo import eventually

from django_zklock import inspection, operations
from django_zklock.core.queue import acknowledgement
from django_zklock.core.queue.acknowledgement import Acknowledgement
from django_zklock.report import verdict

pytestmark = [pytest.mark.django_db, pytest.mark.timeout(60)]

FORM = f"{LIST}acknowledge/"
PROBE = "/incidents.json"


def report():
    result = json.loads(ending("doctor", "--incident", "--json")[1])
    return result


def make_incident(zoo, key):
    """Put a znode into the queue of a key that no contender has made; return its path."""
    path = zoo.client.create(f"{zoo.base}/{key}/mine-", sequence=True, makepath=True)
    return path


@pytest.fixture
def card(zoo):
    path = make_incident(zoo, "a/b")
    (incident,) = eventually(lambda: report()["incidents"])
    yield incident
    zoo.client.delete(path)


def acknowledge(client, card, minutes=60):
    given = {"identity": card["identity"], "minutes": minutes, "reason": "a disk is on its way"}
    assert client.post(FORM, given).status_code == 302


def write(zoo, identity, ends):
    """Write an acknowledgement as another program may write it; return its path."""
    data = Acknowledgement(title="t", by="other", reason="r", ends=ends).encode()
    path = zoo.client.create(f"{acknowledgement.directory(zoo.base)}/{identity}", data, makepath=True)
    return path


def page(client):
    inspection.snapshot(max_age=0.0, max_waiters=1)
    return client.get(LIST).content.decode()


def test_an_acknowledgement_changes_no_verdict(operator, card):
    before, status = page(operator), ending("doctor", "--incident")[0]
    acknowledge(operator, card)
    assert ending("doctor", "--incident")[0] == status != 0
    assert not report()["healthy"]
    assert operator.get(PROBE).status_code == 503
    for sign in ('class="zklock-strip zklock-error"', "1 thing needs attention"):
        assert sign in before
        assert sign in page(operator)


def test_all_show_who_looks_after_an_incident_and_why(operator, card):
    assert "Acknowledge…" in page(operator)
    acknowledge(operator, card)
    assert [lock.key for lock in inspection.snapshot(max_age=0.0).locks] == ["a/b"], "the directory is no lock"
    (listed,) = report()["acknowledged"]
    assert (listed["identity"], listed["reason"]) == (card["identity"], "a disk is on its way")
    written = ending("doctor", "--incident")[1]
    for shown in (page(operator), written):
        assert "Acknowledged by olga until " in shown
        assert "a disk is on its way" in shown


def test_an_acknowledged_card_is_below_the_others(zoo, operator, card):
    acknowledge(operator, card)
    path = make_incident(zoo, "another")
    eventually(lambda: len(report()["incidents"]) == 2)
    shown, written = page(operator), ending("doctor", "--incident")[1]
    assert shown.index("another") < shown.index("a disk is on its way")
    assert written.index("another") < written.index("a disk is on its way")
    zoo.client.delete(path)


def test_an_acknowledgement_ends_with_its_incident(zoo, operator):
    """A later incident of the same queue may have the same identity. It is as new."""
    directory, identity = acknowledgement.directory(zoo.base), "crowded-0123456789abcdef"
    write(zoo, identity, time.time() + 3600)
    kept = write(zoo, "hung-0123456789abcdef", time.time() + 3600)  # not every look finds it
    assert report()["healthy"]
    eventually(lambda: zoo.client.get_children(directory) == [kept.rpartition("/")[2]])


def test_a_look_at_a_part_ends_no_acknowledgement(zoo, card):
    kept, other = write(zoo, "crowded-0123456789abcdef", time.time() + 3600), make_incident(zoo, "another")
    assert not verdict.now(10.0, max_age=0.0, max_locks=1).verdict.complete
    zoo.client.sync("/")
    assert zoo.client.exists(kept)
    zoo.client.delete(other)


def test_an_acknowledgement_ends_and_the_next_look_deletes_it(zoo, operator, card):
    over = "hung-0123456789abcdef"
    operations.acknowledge(over, title="old", seconds=0.2, reason="short", by="anna")
    operations.acknowledge(card["identity"], title="b", seconds=0.2, reason="short", by="anna")
    eventually(lambda: report()["incidents"])
    acknowledge(operator, card)
    parent = acknowledgement.directory(zoo.base)
    eventually(lambda: report()["acknowledged"] and zoo.client.get_children(parent) == [card["identity"]])


def test_an_acknowledgement_is_audited_and_in_the_history_and_may_be_withdrawn(operator, card, caplog):
    with caplog.at_level(logging.WARNING, "zklock.audit"):
        acknowledge(operator, card)
        acknowledge(operator, card, minutes=0)
    assert [incident["identity"] for incident in report()["incidents"]] == [card["identity"]]
    assert report()["acknowledged"] == []
    acknowledged, withdrawn = caplog.messages
    assert ("acknowledged by" in acknowledged, "withdrawn by" in withdrawn) == (True, True)
    assert list(LogEntry.objects.order_by("pk").values_list("change_message", flat=True)) == [
        f"Acknowledged for 1 h 0 min: {card['title']}: a disk is on its way",
        f"Acknowledgement withdrawn: {card['title']}: a disk is on its way",
    ]


def test_an_acknowledgement_needs_the_permission_to_break_and_a_reason(card, operator):
    assert user_with("view_lock", "request_release_lock").get(FORM).status_code == 403
    assert operator.post(FORM, {"identity": card["identity"], "minutes": 5, "reason": " "}).status_code == 200
    assert report()["acknowledged"] == []


@pytest.mark.parametrize(
    "data", [b"", b"{", b'{"title":1}', b'{"title":"","by":"","reason":"","ends":1e999}', b"x" * 9000]
)
def test_invalid_data_acknowledge_nothing(zoo, card, data):
    zoo.client.create(f"{acknowledgement.directory(zoo.base)}/{card['identity']}", data, makepath=True)
    assert [incident["identity"] for incident in report()["incidents"]] == [card["identity"]]


@pytest.mark.timed
def test_no_page_fails_while_zookeeper_is_away(zoo, operator, card):
    with zoo.configured("127.0.0.1:1"), within(25):
        assert operator.get(LIST).status_code == 200
        given = {"identity": card["identity"], "minutes": 5, "reason": "r"}
        assert operator.post(FORM, given).status_code == operator.get(FORM, given).status_code == 503


@pytest.mark.parametrize("identity", ["", "quorum-0123456789abcdef", "unreadable-", "../x", "a\x00b", "x" * 5000])
def test_only_what_is_there_is_acknowledged(zoo, operator, card, identity):
    given = {"identity": identity, "title": "Only a test", "minutes": "10080", "reason": "ok"}
    for answer in (operator.get(FORM, given), operator.post(FORM, given), operator.post(f"{FORM}?{urlencode(given)}")):
        assert answer.status_code == 409
        assert "This incident is over. Nothing was recorded." in answer.content.decode()
    assert not LogEntry.objects.exists()
    assert operations.acknowledgements() == {}


def test_the_title_is_that_of_the_incident(operator, card):
    more = {"title": "Only a test", "identity": card["identity"]}
    shown = operator.get(FORM, more).content.decode()
    assert card["title"] in shown
    assert "Only a test" not in shown
    operator.post(f"{FORM}?{urlencode({**more, 'identity': 'x'})}", {**more, "minutes": 5, "reason": "r"})
    assert [known.title for known in operations.acknowledgements().values()] == [card["title"]]
    assert card["title"] in LogEntry.objects.get().change_message


def test_an_incident_that_has_ended_meanwhile_is_not_acknowledged(zoo, operator):
    path = make_incident(zoo, "a/b")
    (card,) = eventually(lambda: report()["incidents"])
    assert card["title"] in operator.get(FORM, {"identity": card["identity"]}).content.decode()
    zoo.client.delete(path)
    answer = operator.post(FORM, {"identity": card["identity"], "minutes": 5, "reason": "r"})
    assert answer.status_code == 409
    assert not LogEntry.objects.exists()
    path = make_incident(zoo, "a/b")
    eventually(lambda: {incident["identity"] for incident in report()["incidents"]} - {card["identity"]})
    zoo.client.delete(path)


def test_of_two_at_once_one_counts_and_both_are_recorded(zoo, card, caplog):
    names = [f"operator-{number}" for number in range(6)]
    more = {"title": card["title"], "seconds": 60, "reason": "r"}
    with caplog.at_level(logging.WARNING, "zklock.audit"), ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda by: operations.acknowledge(card["identity"], by=by, **more), names))
    (known,) = operations.acknowledgements().values()
    assert known.by in names
    assert len(caplog.messages) == 6
    assert zoo.client.get_children(acknowledgement.directory(zoo.base)) == [card["identity"]]


def test_an_acknowledgement_counts_for_a_week_at_most(zoo, card):
    """The clock of the process that wrote it may be wrong, or it may be an enemy."""
    path = write(zoo, card["identity"], time.time() + 40 * 365 * 86400)
    written = zoo.client.exists(path).mtime / 1000
    (known,) = eventually(operations.acknowledgements).values()
    assert known.until.timestamp() == pytest.approx(written + 7 * 86400, abs=5)


def test_all_are_read_and_those_that_are_over_are_deleted_by_a_look(zoo, card):
    """However many there are. One that a process cannot read may be of a newer version, for a week."""
    parent = acknowledgement.directory(zoo.base)
    for number in range(250):
        write(zoo, f"hung-{number:015x}f", time.time() - 3600 if number % 2 else time.time() + 3600)
    zoo.client.create(f"{parent}/hung-{'f' * 16}", b"?")
    write(zoo, card["identity"], time.time() + 3600)
    assert eventually(lambda: len(operations.acknowledgements())) == 126
    eventually(lambda: report()["acknowledged"] and len(zoo.client.get_children(parent)) == 127)
