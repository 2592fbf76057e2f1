"""Payloads that were written to harm the reader of a page."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest
from support.browser.actors import Part, Stage
from support.browser.pages import Visitor

from django_zklock.core.queue import nodes

Visit = Callable[..., Visitor]
pytestmark = pytest.mark.zookeeper

SCRIPT = "<script>alert(1)</script>"
IMAGE = '"><img src=x onerror=alert(1)>'
TERMINAL = "\x1b]0;owned\x07\x1b[2J\x1b[31mred"
REVERSED = "\u202egnp.exe"
KEY = "hostile/<b onmouseover=alert(1)>&amp;'\"{{ 7|add:7 }}"


def name() -> str:
    return nodes.prefix(str(uuid.uuid4()))


@pytest.fixture
def hostile(stage: Stage) -> Stage:
    """A lock whose every contender lies."""
    about = {"task": IMAGE, "id": 'javascript:alert(1)"', "request": SCRIPT, SCRIPT: IMAGE}
    stage.join_queue(KEY, Part(IMAGE, 1, SCRIPT, f"{SCRIPT}{TERMINAL}{REVERSED}", about, "{% debug %}"))
    stage.join_queue(KEY, Part("a" * 2000, 2**40, what="\U0001f600" * 1000))
    stage.join_queue_raw(KEY, name(), b"\xff\xfe" + b"\x00" * 100)
    stage.join_queue_raw(
        KEY, name(), b'{"guid": "\\ud800", "pid": 1e999, "what": "\\ud83d", "host": {"a": []}, "about": [1]'
    )
    stage.join_queue_raw(KEY, name(), b'{"guid": "x", "pid": ' + b"9" * 5000 + b"}")
    stage.join_queue_raw(KEY, name(), b"[" * 60_000)
    stage.join_queue_raw(KEY, name(), SCRIPT.encode() * 30_000)
    stage.join_queue_raw("foreign", "<script>alert(2)</script>-", b"who made this?")
    return stage


def test_a_refresh_keeps_hostile_payloads_harmless(hostile: Stage, visitor: Visit) -> None:
    operator = visitor("operator")
    operator.install_clock()
    operator.open()
    operator.refresh_every(2)
    operator.await_refresh(2)
    assert operator.page.locator("#result_list img, #result_list script, #result_list b[onmouseover]").count() == 0
