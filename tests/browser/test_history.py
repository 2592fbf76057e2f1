"""The history: readable on a desk and on a phone, filtered, and in pages."""

import pytest
from support.browser.pages import LIST, PHONE
from support.browser.rows import ACTIONS, ATTEMPTS, attempt, recorded

HISTORY = f"{LIST}history/"
ROWS = ".zklock-history tbody tr:not(.zklock-day)"
TASK = "shop.tasks.process_order"
LINES = """(cells, word) => cells.map(cell => {
    const node = cell.firstChild, range = document.createRange(), at = node.data.indexOf(word);
    range.setStart(node, Math.max(at, 0));
    range.setEnd(node, at < 0 ? 0 : at + word.length);
    return range.getClientRects().length;
})"""
"""In how many lines a word is that these elements contain."""


@pytest.fixture
def past(site, swept):
    work = f"task {TASK} 1b68d6cb-24cb-4041-8ce1-1dd19c9c43fb"
    late = {"work": work, "outcome": "timed out", "held": None}
    grants = [attempt(f"orders/{1000 + number}", "worker-31", **late) for number in range(60)]
    reason = "the lease is over: no quorum has confirmed the session in time"
    lost = attempt("stock/import", "worker-4", held=61.0, outcome="lost", work="POST /stock/", reason=reason)
    text = "its worker hangs in the payment provider, which is known to be down"
    action = {"key": "orders/1042", "what": "broken", "by": "admin", "via": "command", "sure": True, "reason": text}
    holder = f"'{TASK}[1b68d6cb-24cb-4041-8ce1-1dd19c9c43fb]' on worker-3.example.org, process 812"
    asked = {**action, "what": "release requested", "via": "admin", "reason": "it hangs", "holder": holder, "token": 8}
    rows = [(ATTEMPTS, 10.0 + number, grant) for number, grant in enumerate(grants)]
    actions = [(ACTIONS, 3600, {**action, "holder": "worker-3", "token": 7}), (ACTIONS, 4, asked)]
    with recorded(site, *rows, (ATTEMPTS, 5, lost), *actions):
        yield


@pytest.mark.chaos
def test_each_field_of_the_filter_has_a_box(visitor):
    """A theme may draw none around fields that it does not know."""
    operator = visitor("operator")
    operator.open(HISTORY)
    fields = operator.page.locator(".zklock-filter :is(input, select):visible, #zklock-interval:visible")
    widths = fields.evaluate_all("fields => fields.map(field => getComputedStyle(field).borderTopWidth)")
    assert widths
    assert "0px" not in widths


@pytest.mark.usefixtures("past")
@pytest.mark.parametrize("width", [*(pytest.param(width, marks=pytest.mark.chaos) for width in (1280, 700)), 390])
def test_no_cell_of_the_history_breaks_a_word_into_letters(visitor, width):
    look = PHONE if width == PHONE["width"] else {"width": width, "height": 900}
    operator = visitor("operator", viewport=look)
    operator.open(HISTORY)
    operator.picture(f"history-rows-{width}", full_page=False)
    page = operator.page
    assert page.locator(ROWS).count() == 50
    widths = page.locator(".zklock-history tbody td").evaluate_all(
        "cells => cells.filter(cell => cell.textContent.trim()).map(cell => cell.getBoundingClientRect().width)"
    )
    assert min(widths) >= 80
    assert max(page.locator(".zklock-history td .zklock-work").evaluate_all(LINES, TASK)) == 1
    asked = page.locator(".zklock-history td").filter(has_text=f"Release requested of '{TASK}")
    assert asked.evaluate_all(LINES, TASK) == [1]
    keys = page.get_by_role("link", name="orders/1001", exact=True)
    assert keys.evaluate_all(LINES, "orders/1001") == [1]
    heights = page.locator(".zklock-history tbody tr").evaluate_all(
        "rows => rows.filter(row => row.textContent.includes('worker-'))"  # other tests leave rows, too
        ".map(row => row.getBoundingClientRect().height)"
    )
    assert max(heights) <= 220
    operator.assert_accessible()
    operator.assert_fits()
    if look == PHONE:
        page.locator(".zklock-folds > summary").click()
    operator.follow("Operators' actions")
    if look == PHONE:
        page.locator(".zklock-folds > summary").click()
    page.get_by_label("Who, or which work").fill("admin")
    operator.press("Filter")
    assert page.get_by_text("its worker hangs in the payment provider").is_visible()


@pytest.mark.chaos
@pytest.mark.usefixtures("past")
def test_the_history_is_filtered_and_turned_by_an_operator(visitor):
    operator = visitor("operator")
    operator.open(f"{HISTORY}?host=worker-31")
    operator.follow("Older")
    operator.picture("history-older")
    rows = operator.page.locator(ROWS)
    assert rows.count() == 10, rows.all_inner_texts()
    operator.follow("Newest")
    operator.page.get_by_label("Host").fill("worker-4")
    operator.press("Filter")
    operator.follow("Held and lost")
    rows = operator.page.locator(ROWS)
    assert rows.count() == 1
    assert "stock/import" in rows.first.inner_text()
    operator.page.get_by_label("Host").fill("nobody")
    operator.press("Filter")
    assert operator.page.get_by_text("No row has these values.").is_visible()
    operator.picture("history-filtered")


@pytest.mark.chaos
@pytest.mark.usefixtures("past")
def test_on_a_phone_the_history_begins_with_its_rows(visitor):
    operator = visitor("operator", viewport=PHONE)
    operator.open(HISTORY)
    box = operator.page.locator(ROWS).first.bounding_box()
    assert box is not None
    assert box["y"] < 600
    operator.page.locator(".zklock-folds > summary").press("Enter")
    operator.page.get_by_label("Host").wait_for()


@pytest.mark.chaos
@pytest.mark.usefixtures("past")
def test_a_filter_with_an_error_is_not_folded(visitor):
    operator = visitor("operator", viewport=PHONE)
    operator.open(f"{HISTORY}?since=9999-12-31T23:59")
    assert operator.page.get_by_label("Host").is_visible()
