"""The pages that break a lock, hold one, and end a hold."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import DatabaseError
from django.test import Client
from support.adminsite import LIST
from support.texts import assert_shows
from support.zoo import Zoo, eventually

from django_zklock import zk_lock
from django_zklock.exceptions import LockBusy

pytestmark = [pytest.mark.zookeeper, pytest.mark.django_db]


def target_of(client: Client) -> str:
    """Return whom the confirmation is about, as its form would send it."""
    ((_lock, row),) = client.get(f"{LIST}break/?key=k").context["holds"]
    return str(row.target)


def test_a_lock_is_broken_with_a_reason(zoo: Zoo, operator: Client, caplog: pytest.LogCaptureFixture) -> None:
    with zoo.hold_elsewhere("k") as path:
        form = {"break": "1", "target": target_of(operator), "reason": "worker hangs"}
        with caplog.at_level(logging.INFO, "zklock.audit"):
            response = operator.post(f"{LIST}break/", form)
        assert response["Location"] == f"{LIST}k/change/"
        assert not zoo.client.exists(path)
    audited = " ".join(record.getMessage() for record in caplog.records if record.name == "zklock.audit")
    assert_shows(audited, "olga", "worker hangs")
    entry = LogEntry.objects.get()
    assert (entry.object_id, str(entry.user)) == ("k", "olga")
    assert "worker hangs" in entry.get_change_message()


def test_only_a_post_breaks_a_lock(zoo: Zoo, operator: Client) -> None:
    with zoo.hold_elsewhere("k") as path:
        response = operator.post(LIST, {"action": "break_selected", "_selected_action": ["k"]})
        assert 'name="target"' in response.content.decode()
        assert 'name="target"' in operator.get(f"{LIST}break/?key=k").content.decode()
        assert zoo.client.exists(path)


@pytest.mark.parametrize("target", ["", ":::", "g:x:k", "g:1:../../up", "g:1:!waiting/k", "g:1:" + "k" * 5000, "g::k"])
def test_an_invalid_target_breaks_nothing(zoo: Zoo, operator: Client, target: str) -> None:
    response = operator.post(f"{LIST}break/", {"break": "1", "target": target, "reason": "r"})
    assert response["Location"] == LIST


def test_a_lock_is_broken_even_if_the_history_fails(
    zoo: Zoo, operator: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise DatabaseError("disk full")

    with zoo.hold_elsewhere("k") as path:
        target = target_of(operator)
        monkeypatch.setattr(type(LogEntry.objects), "log_actions", fail)
        assert operator.post(f"{LIST}break/", {"break": "1", "target": target, "reason": "r"}).status_code == 302
        assert not zoo.client.exists(path)
    assert "is not in the history" in caplog.text


def test_a_form_without_a_csrf_token_is_refused(zoo: Zoo) -> None:
    """Another site cannot make an operator's browser break or hold a lock."""
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.create_superuser("root"))
    for page in ("break/", "hold/", "host/"):
        assert client.post(LIST + page, {"reason": "r"}).status_code == 403


def hold_by_form(client: Client, **more: str) -> Any:
    given = {"key": "k", "minutes": "5", "wait": "0", "reason": "deploy of 2.3", **more}
    return client.post(f"{LIST}hold/", given)


def test_an_operator_holds_a_lock_and_ends_it(zoo: Zoo, operator: Client) -> None:
    assert hold_by_form(operator).status_code == 302
    with pytest.raises(LockBusy, match="olga"), zk_lock("k", timeout=0):
        pytest.fail("granted while an operator held it")
    response = operator.get(f"{LIST}k/change/")
    # it has no session
    assert_shows(response.content.decode(), "olga holds it until", "deploy of 2.3", hides=["Its session is alive"])
    assert "operator olga" in operator.get(f"{LIST}?state=operator").content.decode()
    form = {"target": response.context["lock"].holders[0].target, "reason": "over", "end": "1"}
    assert operator.post(f"{LIST}break/", form).status_code == 302
    eventually(lambda: not zoo.children("k"))
    response = operator.post(f"{LIST}break/", form)
    assert response.status_code == 409
    assert "k has no holder now." in response.content.decode()
    held, _ended = LogEntry.objects.order_by("pk")
    assert "deploy of 2.3" in held.change_message


def test_a_refresh_leaves_messages_to_the_page_that_is_opened(zoo: Zoo, operator: Client) -> None:
    """It shows none. The message would be lost if another tab refreshed before this one has opened its page."""
    assert hold_by_form(operator).status_code == 302
    for page in ("", "k/change/", "groups/", "health/"):
        assert "You hold the lock" not in operator.get(LIST + page, headers={"X-ZkLock-Refresh": "1"}).content.decode()
    assert "You hold the lock" in operator.get(f"{LIST}k/change/").content.decode()
    operator.post(f"{LIST}break/", {"break": "1", "target": target_of(operator), "reason": "over", "end": "1"})
    eventually(lambda: not zoo.children("k"))


def test_a_held_lock_cannot_be_held_by_an_operator(zoo: Zoo, operator: Client) -> None:
    with zoo.hold_elsewhere("k"):
        assert hold_by_form(operator).status_code == 409
    assert zoo.children("k") == []


@pytest.mark.parametrize(
    "wrong", [{"minutes": "0"}, {"minutes": "nan"}, {"minutes": "1e9"}, {"wait": "99"}, {"reason": " "}, {"key": "/x"}]
)
def test_an_invalid_form_is_shown_again(zoo: Zoo, operator: Client, wrong: dict[str, str]) -> None:
    response = hold_by_form(operator, **wrong)
    assert response.status_code == 200
    assert "errornote" in response.content.decode()
    assert zoo.children("k") == []


def test_without_zookeeper_the_forms_report_it(zoo: Zoo, operator: Client) -> None:
    with zoo.configured(hosts="127.0.0.1:1"):
        target = "aaaaaaaa-0000-4000-8000-000000000001:5:k"
        assert operator.post(f"{LIST}break/", {"break": "1", "target": target, "reason": "r"}).status_code == 503
        assert operator.get(f"{LIST}limit/?key=k").status_code == 503
