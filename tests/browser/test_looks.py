"""The list on screens of all sizes, in light and dark, and from right to left."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.browser.actors import Stage
from support.browser.pages import LIGHT, Visitor, address
from support.browser.policy import THEMED
from support.browser.scene import busy_shop

from django_zklock.report.formatting import STATE_LABELS

Visit = Callable[..., Visitor]
pytestmark = [pytest.mark.zookeeper, pytest.mark.chaos]
own_rows = pytest.mark.skipif(THEMED, reason="a theme has its own rows")

CONTRASTS = f"""states => {{{LIGHT}
    const ratios = [];
    for (const label of document.querySelectorAll('#result_list .zklock-state')) for (const state of states) {{
        label.className = `zklock-state zklock-${{state}}`;
        ratios.push([ratio(getComputedStyle(label, '::before').color, background(label)), state]);
    }}
    return ratios.sort((one, other) => one[0] - other[0]);
}}"""


@pytest.fixture
def shop(stage: Stage) -> Stage:
    busy_shop(stage)
    return stage


@own_rows
@pytest.mark.parametrize("width", [1280, 768, 390, 320])
@pytest.mark.parametrize("language", ["en", "ar"])
def test_the_table_is_as_wide_as_the_content(shop: Stage, visitor: Visit, width: int, language: str) -> None:
    """No version of Django leaves space for the filters, which are behind a button. No row is cut."""
    viewer = visitor("operator", viewport={"width": width, "height": 844}, locale=language)
    viewer.open()
    viewer.picture(f"looks-{width}-{language}", full_page=False)
    edges = """element => {
        const box = element.getBoundingClientRect(), style = getComputedStyle(element);
        return [box.left + parseFloat(style.paddingLeft), box.right - parseFloat(style.paddingRight)];
    }"""
    content = viewer.page.locator("#content").evaluate(edges)
    table = viewer.page.locator("#result_list").evaluate(edges)
    assert table == pytest.approx(content, abs=2)
    row = viewer.page.locator("#result_list tbody tr").first.evaluate("row => [row.scrollWidth, row.clientWidth]")
    assert row[0] <= row[1] + 1
    holder = viewer.page.locator("#result_list .field-holder").first.bounding_box()
    assert holder is not None
    assert holder["width"] >= 100
    assert holder["height"] <= 80


@own_rows
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_symbols_of_the_states_have_enough_contrast(shop: Stage, visitor: Visit, scheme: str) -> None:
    """3:1 at least on even and odd rows, as WCAG 1.4.11 asks."""
    viewer = visitor("operator", color_scheme=scheme)
    viewer.open()
    worst, state = viewer.page.evaluate(CONTRASTS, list(STATE_LABELS))[0]
    assert worst >= 3, state
    viewer.page.locator("#result_list .action-select").first.check()
    worst, state = viewer.page.evaluate(CONTRASTS, list(STATE_LABELS))[0]
    assert worst >= 3, f"{state} in a selected row"


@own_rows
def test_escape_closes_the_filters(shop: Stage, visitor: Visit) -> None:
    """The button that opened them has the focus again."""
    viewer = visitor("viewer")
    viewer.open()
    viewer.page.locator("#zklock-filters > summary").click()
    viewer.page.locator("#changelist-filter a").first.focus()
    viewer.page.keyboard.press("Escape")
    assert viewer.page.locator("#zklock-filters").get_attribute("open") is None
    assert viewer.page.evaluate("document.activeElement.parentElement.id") == "zklock-filters"


@own_rows
@pytest.mark.parametrize("width", [1280, 768, 390])
def test_the_filter_button_covers_nothing(shop: Stage, visitor: Visit, width: int) -> None:
    """From right to left, the field of the search is where the button is in other languages."""
    viewer = visitor("viewer", viewport={"width": width, "height": 844}, locale="ar")
    viewer.open()
    button = viewer.page.locator("#zklock-filters > summary").bounding_box()
    field = viewer.page.locator("#searchbar").bounding_box()
    assert button is not None
    assert field is not None
    apart = button["x"] + button["width"] <= field["x"] or field["x"] + field["width"] <= button["x"]
    assert apart or button["y"] >= field["y"] + field["height"] or field["y"] >= button["y"] + button["height"]


@own_rows
def test_a_duration_keeps_its_order_from_right_to_left(shop: Stage, visitor: Visit) -> None:
    """The number of minutes is left of the word, as in all texts that read from left to right."""
    viewer = visitor("operator", locale="ar")
    for path, selector in ((None, ".field-held time"), (address("orders/1042"), ".zklock-facts time.zklock-age")):
        viewer.open(path) if path else viewer.open()
        ends = viewer.page.locator(selector).first.evaluate(
            """time => {
                time.textContent = '13 min 46 s';
                const left = (from, to) => {
                    const range = document.createRange();
                    range.setStart(time.firstChild, from);
                    range.setEnd(time.firstChild, to);
                    return range.getBoundingClientRect().left;
                };
                return [left(0, 2), left(3, 6), left(7, 9)];
            }"""
        )
        assert ends == sorted(ends)


@own_rows
def test_texts_of_buttons_are_not_underlined(shop: Stage, visitor: Visit) -> None:
    viewer = visitor("operator")
    viewer.open()
    decorations = viewer.page.locator("#content a.button").evaluate_all(
        "links => links.map(link => getComputedStyle(link).textDecorationLine)"
    )
    assert decorations
    assert set(decorations) == {"none"}
