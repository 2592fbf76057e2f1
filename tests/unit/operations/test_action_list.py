"""The list of operators' actions: its bounds, and what other releases or hostile clients write."""

from __future__ import annotations

import json
from typing import Any

import pytest

from django_zklock.operations.action_list import MOST_ACTIONS, MOST_BYTES, Action, appended, decode


def action(**more: Any) -> Action:
    given: dict[str, Any] = {"what": "broken", "key": "k", "by": "anna", "reason": "r", "via": "admin", "at": 1.5}
    return Action(**{**given, **more})


def test_an_action_is_read_as_it_was_written() -> None:
    written = action(host="web-3", pid=812, work="buy", token=2**62, sure=False, limit=3, seconds=60.0)
    assert decode(appended(b"", written)) == (written,)


def test_only_the_last_actions_are_kept() -> None:
    data = b""
    for number in range(MOST_ACTIONS + 3):
        data = appended(data, action(token=number))
    assert [each.token for each in decode(data)] == list(range(3, MOST_ACTIONS + 3))


def test_long_texts_leave_room_for_fewer_actions() -> None:
    """The newest ones."""
    data = b""
    for number in range(MOST_ACTIONS):
        data = appended(data, action(token=number, reason="é" * 500))
    assert len(data) <= MOST_BYTES
    tokens = [each.token for each in decode(data)]
    assert 10 < len(tokens) < MOST_ACTIONS
    assert tokens[-1] == MOST_ACTIONS - 1


def test_what_another_release_has_written_is_kept() -> None:
    """A field that this release does not know is ignored, and so is an action without a field that it needs."""
    theirs = {"what": "moved", "key": "k", "by": "b", "reason": "", "via": "robot", "at": 1, "colour": "red"}
    strange = {"what": "moved", "colour": "blue"}
    data = appended(json.dumps([theirs, strange]).encode(), action())
    assert [each.what for each in decode(data)] == ["moved", "broken"]
    assert [each.get("colour") for each in json.loads(data)] == ["red", "blue", None]


@pytest.mark.parametrize(
    "data", [b"\xff", b"[" * 100_000, b"null", b'{"what": 1}', b"[1, null]", b'[{"at": 1e999}]', b"[" + b"9" * 5000]
)
def test_damaged_data_are_replaced(data: bytes) -> None:
    assert decode(data) == ()
    assert len(decode(appended(data, action()))) == 1


@pytest.mark.parametrize(
    "field",
    [
        {"at": 1e11},
        {"at": float("nan")},
        {"at": "now"},
        {"pid": -1},
        {"pid": True},
        {"pid": 10**400},
        {"key": None},
        {"sure": 1},
    ],
)
def test_an_action_with_an_invalid_value_is_not_shown(field: dict[str, Any]) -> None:
    given = {"what": "w", "key": "k", "by": "b", "reason": "", "via": "code", "at": 1}
    assert decode(json.dumps([{**given, **field}, given]).encode())[0].at == 1
    assert len(decode(json.dumps([{**given, **field}, given]).encode())) == 1


def test_a_forged_list_is_not_read_beyond_its_newest_entries() -> None:
    """Else the page of the history would have any number of rows."""
    given = {"what": "w", "key": "k", "by": "b", "reason": "", "via": "code"}
    data = json.dumps([{**given, "at": number} for number in range(MOST_ACTIONS + 5)]).encode()
    assert [each.at for each in decode(data)] == list(range(5, MOST_ACTIONS + 5))


def test_texts_are_made_printable() -> None:
    (found,) = decode(appended(b"", action(reason="\x1b[31m\u202e" + "x" * 5000)))
    assert found.reason.isprintable()
    assert len(found.reason) <= 1000
