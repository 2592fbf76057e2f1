"""The list in a browser: contents, search, filters and order, on screens of all sizes, and from right to left."""

from urllib.parse import quote

import pytest
from playwright.sync_api import expect
from support.browser.actors import Part
from support.browser.pages import LIGHT, LIST
from support.browser.policy import THEMED

from django_zklock.core.queue.nodes import Kind
from django_zklock.report.formatting import STATE_LABELS

own_rows = pytest.mark.skipif(THEMED, reason="a theme has its own rows")

CHARGE = Part.task("shop.tasks.charge", "worker-3", 812)
REFUND = Part.view("POST /orders/{pk}/refund", "shop.views.refund", "web-1", 77)
REPORT = Part("cron-1", 9, what="manage.py nightly_report")


CONTRASTS = f"""states => {{{LIGHT}
    const ratios = [];
    for (const label of document.querySelectorAll('#result_list .zklock-state')) for (const state of states) {{
        label.className = `zklock-state zklock-${{state}}`;
        ratios.push([ratio(getComputedStyle(label, '::before').color, background(label)), state]);
    }}
    return ratios.sort((one, other) => one[0] - other[0]);
}}"""


@own_rows
@pytest.mark.parametrize("width", [*(pytest.param(width, marks=pytest.mark.chaos) for width in (1280, 800)), 390])
def test_a_long_key_leaves_room_for_the_holders(stage, visitor, width):
    stage.join_queue("imports/" + "x" * 120 + "/" + "y" * 121, CHARGE)
    stage.join_queue("orders/42", CHARGE)
    stage.join_queue("orders/42", REPORT)
    viewer = visitor("viewer", viewport={"width": width, "height": 844})
    viewer.open()
    viewer.picture(f"long-key-{width}", full_page=False)
    table = viewer.page.locator("#result_list").bounding_box()
    holders = [cell.bounding_box() for cell in viewer.page.locator("#result_list td.field-holder").all()]
    waits = [cell.bounding_box() for cell in viewer.page.locator("#result_list td.field-waited").all()]
    assert table is not None
    assert len(holders) == len(waits) == 2
    assert all(box is not None and box["width"] >= table["width"] / 5 for box in holders)
    assert all(box is not None and box["x"] + box["width"] <= width for box in waits)


@pytest.mark.chaos
@own_rows
def test_a_key_is_shown_and_found_as_it_is_written(stage, visitor):
    stage.join_queue("kunden/J%C3%BCrgen%20Gro%C3%9F", CHARGE)
    stage.join_queue("orders/42", REFUND)
    operator = visitor()
    for words in ("jürgen", "Jürgen Groß", "gro%C3%9F", "kunden/Jürgen"):
        operator.open(f"{LIST}?q={quote(words)}")
        assert operator.shown_keys() == ["kunden/Jürgen Groß"]
    operator.page.get_by_role("link", name="kunden/Jürgen Groß").click()
    assert "Jürgen Groß" in operator.page.title()
    operator.page.get_by_role("link", name="Break…").click()
    expect(operator.page.get_by_role("link", name="kunden/Jürgen Groß")).to_be_visible()


@pytest.mark.skipif(THEMED, reason="the filters of this theme are behind a button")
def test_filters_and_search_work_by_click_and_key(stage, visitor):
    for key, part in (("orders/42", CHARGE), ("orders/42", REFUND), ("orders/42", REPORT), ("invoice/2026-11", REFUND)):
        stage.join_queue(key, part)
    for part in (REPORT, CHARGE):
        stage.join_queue("report", part, Kind.READ)
    viewer = visitor("viewer")
    viewer.open()
    viewer.page.locator("#zklock-filters > summary").click()
    viewer.page.locator("#changelist-filter").get_by_role("link", name="Contended", exact=True).click()
    viewer.page.wait_for_url("**/?*state=contended")
    assert viewer.shown_keys() == ["orders/42"]
    viewer.open()
    viewer.page.locator("#searchbar").fill("invoice")
    viewer.page.locator("#searchbar").press("Enter")
    viewer.page.wait_for_url("**/?q=invoice*")
    assert viewer.shown_keys() == ["invoice/2026-11"]


@pytest.mark.chaos
def test_an_empty_list_is_shown(swept, visitor):
    viewer = visitor("viewer")
    assert viewer.open().status == 200
    assert viewer.shown_keys() == []
    viewer.assert_accessible()


@pytest.mark.chaos
@own_rows
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_symbols_of_the_states_have_enough_contrast(day, visitor, scheme):
    """3:1 at least on even and odd rows, as WCAG 1.4.11 asks."""
    viewer = visitor("operator", color_scheme=scheme)
    viewer.open()
    worst, state = viewer.page.evaluate(CONTRASTS, list(STATE_LABELS))[0]
    assert worst >= 3, state
    viewer.page.locator("#result_list .action-select").first.check()
    worst, state = viewer.page.evaluate(CONTRASTS, list(STATE_LABELS))[0]
    assert worst >= 3, f"{state} in a selected row"


@pytest.mark.chaos
@own_rows
def test_escape_closes_the_filters(day, visitor):
    viewer = visitor("viewer")
    viewer.open()
    viewer.page.locator("#zklock-filters > summary").click()
    viewer.page.locator("#changelist-filter a").first.focus()
    viewer.page.keyboard.press("Escape")
    assert viewer.page.locator("#zklock-filters").get_attribute("open") is None
    assert viewer.page.evaluate("document.activeElement.parentElement.id") == "zklock-filters"
