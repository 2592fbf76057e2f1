"""A wrong call of an operator is refused before anything is sent, and the error says what to pass instead."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from support.zoo import Zoo

from django_zklock.operations import (
    break_lock,
    clear_limit,
    end_hold,
    hold_lock,
    limit_of,
    request_release,
    set_limit,
    show_stacks,
)

pytestmark = pytest.mark.zookeeper

CALLS: dict[Callable[..., Any], dict[str, Any]] = {
    break_lock: {"guid": "x", "token": 1, "reason": "r", "by": "anna"},
    request_release: {"reason": "r", "by": "anna", "guid": "x", "token": 1},
    show_stacks: {"by": "anna"},
    hold_lock: {"seconds": 1, "reason": "r", "by": "anna", "wait": 0},
    end_hold: {"token": 1, "by": "anna", "reason": ""},
    set_limit: {"limit": 1, "reason": "r", "by": "anna"},
    clear_limit: {"reason": "r", "by": "anna"},
    limit_of: {},
}
WRONG: dict[str, list[Any]] = {
    "by": [None, 3, b"anna"],
    "reason": [None, 3, b"r"],
    "seconds": [None, "3", timedelta(seconds=3), True],
    "wait": [None, "3", timedelta(seconds=3), float("nan"), -1],
    "token": [None, "1", 1.0],
    "guid": [None, 3],
    "limit": [None, "3"],
    "reply_timeout": [None, "3", timedelta(seconds=3), float("nan"), float("inf"), -1],
}


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_an_invalid_argument_of_an_operation_is_named(zoo: Zoo, call: Callable[..., Any]) -> None:
    """With what it is instead, and what was given."""
    for name in (*CALLS[call], "reply_timeout"):
        for value in WRONG[name]:
            kind = ValueError if name == "limit" or value in (-1, math.inf) or value != value else TypeError
            with pytest.raises(kind, match=f"^{name} is .*, not ") as caught:
                call("k", **{**CALLS[call], name: value})
            assert str(caught.value).endswith(f", not {value!r}.")
    assert zoo.contenders() == []


@pytest.mark.parametrize("call", [call for call in CALLS if "by" in CALLS[call]], ids=lambda call: call.__name__)
def test_operations_need_a_user_and_a_reason(zoo: Zoo, call: Callable[..., Any]) -> None:
    """Others will ask. The end of a hold and a look at a stack need no reason."""
    for name in ("by",) if call in (end_hold, show_stacks) else ("by", "reason"):
        for value in ("", " "):
            with pytest.raises(ValueError, match=f"^{name} .*empty"):
                call("k", **{**CALLS[call], name: value})
    assert zoo.contenders() == []
