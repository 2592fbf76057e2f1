"""Payloads that were written to harm the reader of a page."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest
from support.browser.actors import Part, Stage
from support.browser.pages import LIST, Visitor, address
from support.browser.site import Site

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


@pytest.mark.parametrize(
    "path",
    [
        LIST,
        f"{LIST}?q=",
        address(KEY),
        pytest.param(address(KEY, "break"), marks=pytest.mark.chaos),
        pytest.param(address(KEY, "hold"), marks=pytest.mark.chaos),
    ],
)
def test_hostile_payloads_are_harmless(hostile: Stage, visitor: Visit, site: Site, path: str) -> None:
    """No text from ZooKeeper becomes markup, a script, an address or a control character in a page or in the log."""
    operator = visitor("operator")
    assert operator.open(path).status == 200
    page = operator.page
    assert page.locator("img[src='x'], #content script:not([src^='/static/admin/']), b[onmouseover]").count() == 0
    assert (
        page.evaluate(
            "[...document.querySelectorAll('*')].flatMap(e => [...e.attributes])"
            ".filter(a => /^on/.test(a.name) || /^javascript:/i.test(a.value)).length"
        )
        == 0
    )
    shown = page.get_by_label("Lock").input_value() if "hold" in path else page.locator("body").inner_text()
    expected = {LIST: "<script>alert(2)<", address(KEY, "hold"): "<b onmouseover"}
    assert expected.get(path, SCRIPT) in shown
    assert not set(page.content()) & set("\x1b\x07\x00\u202e")
    assert len(page.content()) < 200_000
    assert "\x1b" not in site.log.read_text()
    operator.picture(f"hostile-{path.strip('/?q=').rpartition('/')[2]}")
    operator.assert_accessible()
    operator.assert_fits()


def test_a_refresh_keeps_hostile_payloads_harmless(hostile: Stage, visitor: Visit) -> None:
    operator = visitor("operator")
    operator.install_clock()
    operator.open()
    operator.refresh_every(2)
    operator.await_refresh(2)
    assert operator.page.locator("#result_list img, #result_list script, #result_list b[onmouseover]").count() == 0
