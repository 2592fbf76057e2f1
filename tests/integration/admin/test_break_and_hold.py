"""The pages that break a lock, hold one, end a hold, set a limit and request a release."""

import logging

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import DatabaseError
from django.test import Client
from support.adminsite import LIST, user_with
from support.faults import acquired_by_many
from support.texts import assert_shows
from support.zoo import eventually

from django_zklock import zk_lock
from django_zklock.exceptions import LockBusy, LockLost
from django_zklock.operations import clear_limit, limit_of, set_limit
from django_zklock.report.formatting import kind_text, role_text

pytestmark = pytest.mark.django_db


def target_of(client):
    """Return whom the confirmation is about, as its form would send it."""
    ((_lock, row, _is_ticked),) = client.get(f"{LIST}act/break/?key=k").context["rows"]
    return str(row.target)


def test_a_lock_is_broken_with_a_reason(zoo, operator, caplog):
    with zoo.hold_elsewhere("k") as path:
        form = {"break": "1", "target": target_of(operator), "reason": "worker hangs"}
        with caplog.at_level(logging.INFO, "zklock.audit"):
            response = operator.post(f"{LIST}act/break/", form)
        assert response["Location"] == f"{LIST}k/change/"
        assert not zoo.client.exists(path)
    audited = " ".join(record.getMessage() for record in caplog.records if record.name == "zklock.audit")
    assert_shows(audited, "olga", "worker hangs")
    entry = LogEntry.objects.get()
    assert (entry.object_id, str(entry.user)) == ("k", "olga")
    assert "worker hangs" in entry.get_change_message()


def test_only_a_post_breaks_a_lock(zoo, operator):
    with zoo.hold_elsewhere("k") as path:
        response = operator.post(LIST, {"action": "break_selected", "_selected_action": ["k"]})
        assert 'name="target"' in response.content.decode()
        assert 'name="target"' in operator.get(f"{LIST}act/break/?key=k").content.decode()
        assert zoo.client.exists(path)


def test_without_a_ticked_holder_nothing_is_broken(zoo, operator):
    with zoo.hold_elsewhere("k") as path:
        response = operator.post(f"{LIST}act/break/?key=k", {"break": "1", "target": "x", "reason": "r"})
        assert "No holder was chosen, so nothing was done." in response.content.decode()
        assert zoo.client.exists(path)


def test_a_lock_is_broken_even_if_the_history_fails(zoo, operator, monkeypatch, caplog):
    def fail(*args, **kwargs):
        raise DatabaseError("disk full")

    with zoo.hold_elsewhere("k") as path:
        target = target_of(operator)
        monkeypatch.setattr(type(LogEntry.objects), "log_actions", fail)
        assert operator.post(f"{LIST}act/break/", {"break": "1", "target": target, "reason": "r"}).status_code == 302
        assert not zoo.client.exists(path)
    assert "is not in the history" in caplog.text


def test_a_form_without_a_csrf_token_is_refused(zoo):
    """Another site cannot make an operator's browser break or hold a lock."""
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.create_superuser("root"))
    for act in ("break", "hold"):
        assert client.post(f"{LIST}act/{act}/", {"reason": "r"}).status_code == 403


def hold_by_form(client, **more):
    given = {"hold": "1", "key": "k", "minutes": "5", "wait": "0", "reason": "deploy of 2.3", **more}
    return client.post(f"{LIST}act/hold/", given)


def test_an_operator_holds_a_lock_and_ends_it(zoo, operator):
    assert hold_by_form(operator).status_code == 302
    with pytest.raises(LockBusy, match="olga"), zk_lock("k", timeout=0):
        pytest.fail("granted while an operator held it")
    response = operator.get(f"{LIST}k/change/")
    assert_shows(
        response.content.decode(), "olga holds it until", "deploy of 2.3", "act/end/?key=k", hides=["act/break"]
    )
    assert "operator olga" in operator.get(f"{LIST}?state=operator").content.decode()
    form = {"target": response.context["lock"].holders[0].target, "reason": "over", "end": "1"}
    assert operator.post(f"{LIST}act/end/", form).status_code == 302
    eventually(lambda: not zoo.children("k"))
    response = operator.post(f"{LIST}act/end/", form)
    assert response.status_code == 409
    assert "Nothing was done: k. " in response.content.decode()
    held, _ended = LogEntry.objects.order_by("pk")
    assert "deploy of 2.3" in held.change_message


def test_a_held_lock_cannot_be_held_by_an_operator(zoo, operator):
    with zoo.hold_elsewhere("k"):
        assert hold_by_form(operator).status_code == 409
    assert zoo.children("k") == []


@pytest.mark.parametrize(
    "wrong", [{"minutes": "0"}, {"minutes": "nan"}, {"minutes": "1e9"}, {"wait": "99"}, {"reason": " "}, {"key": "/x"}]
)
def test_an_invalid_form_is_shown_again(zoo, operator, wrong):
    response = hold_by_form(operator, **wrong)
    assert response.status_code == 200
    assert "errornote" in response.content.decode()
    assert zoo.children("k") == []


@pytest.mark.timed
def test_without_zookeeper_the_forms_report_it(zoo, operator):
    with zoo.configured(hosts="127.0.0.1:1"):
        target = "aaaaaaaa-0000-4000-8000-000000000001:5:k"
        assert operator.post(f"{LIST}act/break/", {"break": "1", "target": target, "reason": "r"}).status_code == 503
        assert operator.get(f"{LIST}act/limit/?key=k").status_code == 503


# --- semaphores and read-write locks: permits, limits and release requests --------------------------------------------


@pytest.fixture
def printing(zoo):
    """Three want one of two permits; the holds of those that have one."""
    with acquired_by_many("printers", 3, 2, forgiven=(LockLost,), limit=2) as holds:
        zoo.wait_contenders("printers", 3)
        yield holds
    clear_limit("printers", by="anna", reason="the test is over")


def said(client):
    return " ".join(str(message) for message in client.get(f"{LIST}act/limit/").context["messages"])


def targets(client):
    """Return by token whom the page of the lock is about, as its forms would send it."""
    return {row.info.token: row.target for row in client.get(f"{LIST}printers/change/").context["lock"].holders}


def ticked(response):
    return {row.target for _lock, row, is_ticked in response.context["rows"] if is_ticked}


def set_to(client, **form):
    given = {"limit": "1", "key": "printers", "permits": "1", "reason": "one is broken", **form}
    return client.post(f"{LIST}act/limit/", given)


def test_the_page_of_a_semaphore_shows_all_holders(zoo, printing, operator):
    shown = operator.get(f"{LIST}printers/change/").context["lock"]
    assert sorted(row.info.token for row in shown.holders) == sorted(hold.token for hold in printing)
    assert {role_text(row.info) for row in shown.holders} == {"holds 1 permit"}
    assert {role_text(row.info) for row in shown.rows if row.number} == {"wants a permit"}
    assert (kind_text(shown.info), shown.limit_set) == ("2 of 2 permits", "")
    assert "Permits in use: 2 of 2" in shown.reasons[0]
    set_limit("printers", 1, by="anna", reason="one is broken")
    page = operator.get(f"{LIST}printers/change/").content.decode()
    assert_shows(page, "at most 2 of 1 permits", "Permits in use: at most 2 of 1, as the limit was changed.")
    assert_shows(page, "Limit 1, set by anna at 20", "one is broken")


def test_a_limit_is_set_with_a_reason(zoo, printing, operator, caplog):
    with caplog.at_level(logging.INFO, "zklock.audit"):
        assert set_to(operator, permits="3", reason="a new one")["Location"] == f"{LIST}printers/change/"
    eventually(lambda: len(printing) == 3)
    assert (limit := limit_of("printers"))
    assert (limit.limit, limit.reason) == (3, "a new one")
    assert limit.by.rstrip("…") in caplog.text
    assert_shows(operator.get(f"{LIST}printers/change/").content.decode(), "Limit 3, set by olga at 20", "a new one")
    assert LogEntry.objects.get().get_change_message() == "Limit set to 3: a new one"


def test_a_limit_is_cleared_with_a_reason(zoo, operator):
    set_limit("printers", 3, by="anna", reason="a new one")
    assert set_to(operator, permits="", reason="it is gone")["Location"] == f"{LIST}printers/change/"
    assert limit_of("printers") is None
    assert "The limit of printers was changed." in said(operator)
    assert LogEntry.objects.get().get_change_message() == "Limit cleared: it is gone"


def test_a_release_is_requested_of_one_holder(zoo, printing, operator):
    asked, other = printing
    target = targets(operator)[asked.token]
    answer = operator.post(f"{LIST}act/ask/", {"ask": "1", "target": target, "reason": "paper jam"})
    assert answer["Location"] == f"{LIST}printers/change/"
    request = asked.wait_release_requested(10)
    assert request
    assert request.reason == "paper jam"
    assert other.release_requested is None
    assert "Asked to release: printers." in said(operator)
    assert "paper jam" in LogEntry.objects.get().get_change_message()
    assert "paper jam" in operator.get(f"{LIST}printers/change/").content.decode()


def test_a_request_needs_a_reason_and_the_present_holder(zoo, operator):
    with zk_lock("printers", limit=2) as hold:
        target = targets(operator)[hold.token]
        response = operator.post(f"{LIST}act/ask/?key=printers", {"ask": "1", "target": target, "reason": "  "})
        assert "This field is required" in response.content.decode()
        assert ticked(response) == {target}
    with zk_lock("printers", limit=2) as hold:
        response = operator.post(f"{LIST}act/ask/", {"ask": "1", "target": target, "reason": "x"})
        assert response.status_code == 409
        assert_shows(response.content.decode(), "Nothing was done: printers. ", hides=[" checked>"])
        assert hold.release_requested is None
    assert not LogEntry.objects.exists()


def test_the_form_to_break_keeps_its_ticks_after_an_error(zoo, printing):
    """So the second try breaks no holder that was left out of the first."""
    client = user_with("view_lock", "break_lock")
    chosen, other = targets(client).values()
    url = f"{LIST}act/break/?key=printers"
    assert ticked(client.get(url)) == {chosen, other}
    response = client.post(url, {"break": "1", "target": chosen, "reason": " "})
    assert "errornote" in response.content.decode()
    assert ticked(response) == {chosen}
    assert not any(hold.lost for hold in printing)


def test_a_queue_that_cannot_be_read_is_not_called_free(zoo, operator):
    zoo.client.create(f"{zoo.base}/odd/strange-0000000001", b"", makepath=True)
    try:
        page = operator.get(f"{LIST}act/break/?key=odd").content.decode()
        shown = operator.get(f"{LIST}odd/change/").content.decode()
    finally:
        zoo.client.delete(f"{zoo.base}/odd", recursive=True)
    assert_shows(page, "The queue cannot be read", hides=["Nobody holds it now.", 'name="target"'])
    assert_shows(shown, "The queue cannot be read", hides=["This lock is free.", "act/break"])
