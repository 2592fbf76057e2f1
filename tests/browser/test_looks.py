"""The list on screens of all sizes, in light and dark, and from right to left."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.browser.actors import Part, Stage
from support.browser.pages import LIGHT, LIST, PHONE, Visitor, address
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
RINGS = f"""async selector => {{{LIGHT}
    const ratios = [];
    for (const one of document.querySelectorAll(selector)) if (one.checkVisibility({{visibilityProperty: true}})) {{
        one.focus();
        await Promise.all(one.getAnimations().map(animation => animation.finished));
        const style = getComputedStyle(one), is_there = style.outlineStyle !== 'none' && style.outlineWidth !== '0px';
        ratios.push([is_there ? ratio(style.outlineColor, background(one.parentElement)) : 0, one.outerHTML]);
    }}
    return ratios.sort((one, other) => one[0] - other[0]);
}}"""
CUT = """table => {
    const {left, right} = (table.closest('.results') ?? table.parentElement).getBoundingClientRect();
    return [...table.querySelectorAll('th, td')].filter(cell => {
        const box = cell.getBoundingClientRect(), may_end_early = cell.matches('tbody th, .field-holder');
        const is_wide = cell.scrollWidth > cell.clientWidth + 1 && !may_end_early;
        return cell.checkVisibility() && (box.left < left - 1 || box.right > right + 1 || is_wide);
    }).map(cell => `${cell.className}: ${cell.textContent.trim()}`);
}"""
LONG = "orders/" + "a-very-long-key-" * 7


@pytest.fixture
def shop(stage: Stage) -> Stage:
    busy_shop(stage)
    return stage


@pytest.mark.parametrize("width", [1280, 640, 390, 320])
@pytest.mark.parametrize("language", ["en", "de", "fr", "ar"])
def test_no_cell_of_the_list_is_cut(shop: Stage, visitor: Visit, width: int, language: str) -> None:
    """In both themes, with a long key: only it and its holder may end in an ellipsis. Rows can be ticked at 200 %."""
    shop.join_queue(LONG, Part.task("shop.tasks.charge_the_card_of_a_customer", "worker-with-a-long-name-3", 812))
    viewer = visitor("operator", viewport={"width": width, "height": 844}, locale=language)
    viewer.open(f"{LIST}?q=")
    viewer.picture(f"whole-{width}-{language}")
    table = viewer.page.locator("#result_list")
    assert table.evaluate(CUT) == []
    needed, shown = table.evaluate("table => [table.scrollWidth, table.parentElement.clientWidth]")
    assert needed <= shown + 1
    viewer.page.locator(".action-select").first.check()
    assert viewer.page.locator("select[name=action]").is_visible()
    viewer.assert_fits()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_ring_of_the_focus_has_enough_contrast(shop: Stage, visitor: Visit, scheme: str) -> None:
    """3:1 to what is around it, as WCAG 1.4.11 asks: on cards, tabs, tools and forms."""
    back = Part.task("shop.tasks.move_stock", "worker-4", 911)
    there = Part.task("shop.tasks.move_stock", "worker-3", 812)
    for key, part in (("a", back), ("b", there), ("a", there), ("b", back)):
        shop.join_queue(key, part)
    viewer = visitor("operator", color_scheme=scheme)
    for path in (LIST, f"{LIST}?q=", address("a"), address("a", "break"), address("a", "hold")):
        viewer.open(path)
        viewer.page.keyboard.press("Tab")  # the browser shows the focus of keyboards
        where = ":is(#zklock-frame, .zklock-page, .zklock-card, .submit-row, li.zklock-tool, #zklock-filters, form)"
        rings = viewer.page.evaluate(RINGS, f"#content {where} :is(a.button, li a, input[type=submit], summary)")
        assert rings or THEMED, path  # which has the buttons of forms outside of the content
        assert all(ratio >= 3 for ratio, _html in rings), (path, rings[0])


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
    viewer.assert_fits()
    viewer.assert_accessible()


@own_rows
@pytest.mark.parametrize("width", [390, 320])
def test_a_phone_shows_the_whole_text_of_a_lock(stage: Stage, visitor: Visit, width: int) -> None:
    """Its key, its state in words, and its holder are on the screen, however long."""
    key = "orders/" + "a-very-long-key-" * 6
    stage.join_queue(key, Part.task("shop.tasks.charge_the_card_of_a_customer", "worker-with-a-long-name-3", 812))
    viewer = visitor("viewer", viewport={**PHONE, "width": width})
    viewer.open()
    row = viewer.row(key)
    assert row.locator(".zklock-state").inner_text() == "Held"
    assert "worker-with-a-long-name-3 · pid 812" in row.locator(".field-holder").inner_text()
    for column in ("shown_key", "state", "holder", "held", "waiters", "waited"):
        cell = row.locator(f".field-{column}")
        shown, needed, right = cell.evaluate(
            "cell => [cell.clientWidth, cell.scrollWidth, cell.getBoundingClientRect().right]"
        )
        assert shown >= 60, column
        assert needed <= shown + 1, column
        assert right <= width, column
        assert float(cell.evaluate("cell => parseFloat(getComputedStyle(cell).fontSize)")) >= 10, column


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
