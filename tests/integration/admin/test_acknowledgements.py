"""The acknowledgement of an incident: all processes see it until its end, and a new incident is new."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from support.adminsite import user_with
from support.ensemble import free_ports
from support.faults import within
from support.locking import ending
from support.zoo import Zoo, eventually

from django_zklock import inspection, operations
from django_zklock.core.queue import acknowledgement

pytestmark = [pytest.mark.zookeeper, pytest.mark.django_db, pytest.mark.timeout(60)]

LIST = "/admin/zklock/lock/"
FORM = f"{LIST}acknowledge/"
PROBE = "/incidents.json"


@pytest.fixture
def operator() -> Client:
    return user_with("view_lock", "break_lock")


def report() -> dict[str, Any]:
    result: dict[str, Any] = json.loads(ending("doctor", "--incident", "--json")[1])
    return result


def make_incident(zoo: Zoo, key: str) -> str:
    """Put a znode into the queue of a key that no contender has made; return its path."""
    path: str = zoo.client.create(f"{zoo.base}/{key}/mine-", sequence=True, makepath=True)
    return path


@pytest.fixture
def card(zoo: Zoo) -> Iterator[dict[str, Any]]:
    """Have one incident."""
    path = make_incident(zoo, "a/b")
    (incident,) = eventually(lambda: report()["incidents"])
    yield incident
    zoo.client.delete(path)


def acknowledge(client: Client, card: dict[str, Any], minutes: float = 60) -> None:
    given = {"identity": card["identity"], "title": card["title"], "minutes": minutes, "reason": "a disk is on its way"}
    assert client.post(FORM, given).status_code == 302


def page(client: Client) -> str:
    inspection.snapshot(max_age=0.0, max_waiters=1)
    return client.get(LIST).content.decode()


def test_another_process_sees_an_acknowledgement(zoo: Zoo, operator: Client, card: dict[str, Any]) -> None:
    acknowledge(operator, card)
    environment = {**os.environ, **zoo.environment()}
    command = [sys.executable, "-m", "django", "zklock", "doctor", "--incident", "--json"]
    other = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50, check=False)
    seen = json.loads(other.stdout)
    assert seen["incidents"] == []
    assert [(of["identity"], of["keys"], of["reason"]) for of in seen["acknowledged"]] == [
        (card["identity"], ["a/b"], "a disk is on its way")
    ]


def test_the_doctor_names_what_is_acknowledged(operator: Client, card: dict[str, Any]) -> None:
    acknowledge(operator, card)
    status, written, _failure = ending("doctor", "--incident")
    assert status == 0
    assert "Unknown znode in the queue: a/b. Acknowledged by u-view_lock-break_lock until " in written
    assert "Nothing else needs attention; acknowledged: 1." in written


def test_an_acknowledged_card_is_below_the_others_and_healthy(zoo: Zoo, operator: Client, card: dict[str, Any]) -> None:
    assert "Acknowledge…" in page(operator)
    acknowledge(operator, card)
    shown = page(operator)
    assert "Nothing else needs attention; acknowledged: 1." in shown
    assert "a disk is on its way" in shown
    assert operator.get(PROBE).status_code == 200
    (listed,) = report()["acknowledged"]
    assert (listed["identity"], listed["reason"]) == (card["identity"], "a disk is on its way")
    path = make_incident(zoo, "another")
    eventually(lambda: [incident["keys"] for incident in report()["incidents"]] == [["another"]])
    shown = page(operator)
    assert shown.index("another") < shown.index("a disk is on its way")
    assert "Nothing else needs attention" not in shown
    zoo.client.delete(path)


def test_a_withdrawn_acknowledgement_does_not_count(operator: Client, card: dict[str, Any]) -> None:
    acknowledge(operator, card)
    acknowledge(operator, card, minutes=0)
    assert [incident["identity"] for incident in report()["incidents"]] == [card["identity"]]
    assert report()["acknowledged"] == []


def test_an_acknowledgement_ends_and_the_next_one_deletes_it(zoo: Zoo, operator: Client, card: dict[str, Any]) -> None:
    over = "hung-0123456789abcdef"
    operations.acknowledge(over, title="old", seconds=0.2, reason="short", by="anna")
    operations.acknowledge(card["identity"], title="b", seconds=0.2, reason="short", by="anna")
    eventually(lambda: report()["incidents"])
    acknowledge(operator, card)
    assert zoo.client.get_children(acknowledgement.directory(zoo.base)) == [card["identity"]]


def test_an_acknowledgement_is_audited_and_in_the_history(
    operator: Client, card: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "zklock.audit"):
        acknowledge(operator, card)
        acknowledge(operator, card, minutes=0)
    assert [("acknowledged by" in text, "withdrawn by" in text) for text in caplog.messages] == [
        (True, False),
        (False, True),
    ]
    messages = list(LogEntry.objects.order_by("pk").values_list("change_message", flat=True))
    assert messages == [
        f"Acknowledged for 1 h 0 min: {card['title']}: a disk is on its way",
        f"Acknowledgement withdrawn: {card['title']}: a disk is on its way",
    ]


def test_an_acknowledgement_needs_the_permission_to_break_and_a_reason(card: dict[str, Any], operator: Client) -> None:
    assert user_with("view_lock", "request_release_lock").get(FORM).status_code == 403
    assert operator.post(FORM, {"identity": card["identity"], "minutes": 5, "reason": " "}).status_code == 200
    assert report()["acknowledged"] == []


@pytest.mark.parametrize(
    "data", [b"", b"{", b'{"title":1}', b'{"title":"","by":"","reason":"","ends":1e999}', b"x" * 9000]
)
def test_invalid_data_acknowledge_nothing(zoo: Zoo, card: dict[str, Any], data: bytes) -> None:
    zoo.client.create(f"{acknowledgement.directory(zoo.base)}/{card['identity']}", data, makepath=True)
    assert [incident["identity"] for incident in report()["incidents"]] == [card["identity"]]


def test_the_directory_is_no_lock(zoo: Zoo, operator: Client, card: dict[str, Any]) -> None:
    acknowledge(operator, card)
    assert [lock.key for lock in inspection.snapshot(max_age=0.0).locks] == ["a/b"]


def test_no_page_fails_while_zookeeper_is_away(zoo: Zoo, operator: Client, card: dict[str, Any]) -> None:
    (port,) = free_ports(1)
    with zoo.configured(f"127.0.0.1:{port}"), within(15):
        assert operator.get(LIST).status_code == 200
        given = {"identity": card["identity"], "title": "t", "minutes": 5, "reason": "r"}
        assert operator.post(FORM, given).status_code == 503
