"""An act on many locks at once: those of a host, or all that are selected in the list."""

import logging
from itertools import chain, repeat
from types import SimpleNamespace

import pytest
from django.contrib.admin.models import LogEntry
from support.adminsite import LIST, user_with
from support.texts import assert_shows

from django_zklock import inspection
from django_zklock.dashboard import views

pytestmark = pytest.mark.django_db

BREAK = f"{LIST}act/break/"
MANY = 30


@pytest.fixture
def held(contend):
    """Thirty locks of one host, and one of another that it waits for."""
    paths = [contend(f"orders/{number:02}", host="worker-7", pid=7 + number % 2) for number in range(MANY)]
    return [*paths, contend("stock"), contend("stock", host="worker-7", pid=7)]


def select(client, keys, action="break_selected", **more):
    return client.post(LIST, {"action": action, "_selected_action": keys, **more})


def targets(response):
    return [row.target for _lock, row, _is_ticked in response.context["rows"]]


def of_host():
    return [f"orders/{number:02}" for number in range(MANY)]


def test_the_list_of_a_host_has_what_it_holds(zoo, held, operator):
    response = operator.get(f"{LIST}?host=worker-7")
    assert sorted(lock.key for lock in response.context["cl"].result_list) == of_host()
    link = "?host=worker-7"
    assert link in operator.get(f"{LIST}?q=").content.decode()
    assert link in operator.get(f"{LIST}orders_2F00/change/").content.decode()


def test_all_locks_of_a_host_are_broken_with_one_reason(zoo, held, operator, caplog):
    form = {"target": targets(select(operator, of_host())), "break": "1", "reason": "it hangs"}
    assert len(form["target"]) == MANY
    with caplog.at_level(logging.INFO, "zklock.audit"):
        response = operator.post(BREAK, form, follow=True)
    assert "Broken: orders/00, orders/01, orders/02 and 27 more." in response.content.decode()
    assert response.redirect_chain == [(LIST, 302)]
    assert [bool(zoo.client.exists(path)) for path in held] == [False] * MANY + [True, True]
    assert LogEntry.objects.count() == caplog.text.count("it hangs") == MANY


def test_many_holders_are_asked_with_one_reason(zoo, held, operator):
    response = select(operator, of_host(), "request_release_of_selected")
    form = {"target": targets(response), "ask": "1"}
    assert "required" in operator.post(f"{LIST}act/ask/", {**form, "reason": ""}).content.decode()
    page = operator.post(f"{LIST}act/ask/", {**form, "reason": "a deploy"}, follow=True).content.decode()
    assert "Asked to release: orders/00, " in page
    assert "a deploy" in operator.get(f"{LIST}orders_2F00/change/").content.decode()
    assert LogEntry.objects.count() == MANY


def test_a_holder_that_has_changed_is_left_out_of_many(zoo, contend, held, operator):
    chosen = targets(select(operator, of_host()))
    zoo.client.delete(held[3])
    successor = contend("orders/03", host="worker-7", pid=7)
    response = operator.post(BREAK, {"target": chosen, "break": "1", "reason": "it hangs"})
    assert response.status_code == 409
    page = response.content.decode()
    assert_shows(page, "and 26 more.", "Nothing was done: orders/03. ", hides=[" checked>"])
    assert len(targets(response)) == 1
    assert zoo.client.exists(successor)


def test_a_request_ends_before_a_web_server_ends_it(zoo, held, operator, monkeypatch):
    times = chain([0.0, 1.0, 14.0], repeat(16.0))  # at first, and before each lock
    chosen = targets(select(operator, of_host()))
    monkeypatch.setattr(views, "clock", SimpleNamespace(now=lambda: next(times)))
    response = operator.post(BREAK, {"target": chosen, "break": "1", "reason": "it hangs"})
    page = response.content.decode()
    assert response.status_code == 409
    assert_shows(page, "Broken: orders/00, orders/01.", "The time was too short, so nothing was done yet: ")
    assert page.count(" checked>") == MANY - 2
    assert 'value="it hangs"' in page
    assert LogEntry.objects.count() == MANY - len([path for path in held[:MANY] if zoo.client.exists(path)]) == 2


def test_no_more_than_fifty_holders_are_shown_and_broken_at_once(contend, operator):
    keys = [f"jobs/{number:02}" for number in range(52)]
    for key in keys:
        contend(key, host="worker-8")
    everything = {"select_across": "1", "index": "0"}
    response = select(operator, keys[:50], **everything)
    assert len(targets(response)) == response.content.decode().count(" checked>") == 50
    assert "and 2 more" in response.content.decode()
    form = {"target": targets(response), "break": "1", "reason": "it hangs"}
    assert operator.post(BREAK, form).status_code == 302
    assert [lock.key for lock in inspection.snapshot(max_age=0).locks] == keys[50:]


@pytest.mark.parametrize("action", ["break_selected", "request_release_of_selected"])
def test_bulk_actions_need_their_permission(zoo, held, action):
    other = {"break_selected": "request_release_lock", "request_release_of_selected": "break_lock"}[action]
    client = user_with("view_lock", other)
    assert action not in client.get(f"{LIST}?q=").content.decode()
    assert "rows" not in (select(client, of_host(), action).context or {})


def test_a_list_that_is_not_complete_says_so(contend, operator, monkeypatch):
    original = inspection.snapshot
    monkeypatch.setattr(inspection, "snapshot", lambda **more: original(**{"max_locks": 3, "max_age": 0, **more}))
    for key in ("k0", "k1", "k2", "k3") * 2:
        contend(key)
    contend("import/x", 2)
    assert "3 of 5 locks, those with the most waiters" in operator.get(f"{LIST}?q=").content.decode()
