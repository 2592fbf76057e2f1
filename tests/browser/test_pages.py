"""All pages: in dark and light, on narrow and wide windows, by keyboard and screen reader, in all languages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from support.browser.actors import Stage
from support.browser.pages import ALL, LIST, PHONE, Visitor, address
from support.browser.policy import THEMED
from support.browser.scene import busy_shop

Visit = Callable[..., Visitor]
pytestmark = pytest.mark.zookeeper

KEY = "orders/1042"
PAGES = {
    "attention": LIST,
    "list": ALL,
    "groups": f"{LIST}groups/",
    "health": f"{LIST}health/",
    "detail": address(KEY),
    "history": address(KEY, "history"),
    "all-history": f"{LIST}history/",
    "break": f"{address(KEY, 'break')}&do=break",
    "hold": address(KEY, "hold"),
    "semaphore": address("printers"),
    "limit": address("printers", "limit"),
    "reservations": f"{LIST}unique/",
    "reservation": f"{LIST}unique/?key=task/shop.tasks.update_feed/feed/shoes",
}
TITLES = {
    "attention": "Attention",
    "list": "Locks",
    "groups": "Groups of locks",
    "health": "Health of ZooKeeper",
    "detail": KEY,
    "history": f"History of {KEY}",
    "all-history": "History of all locks",
    "break": f"Break {KEY}?",
    "hold": f"Hold {KEY}?",
    "semaphore": "printers",
    "limit": "Set the limit of printers?",
    "reservations": "Reservations of unique tasks",
    "reservation": "Reservations of unique tasks",
}
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "phone": {"color_scheme": "light", "viewport": PHONE},
    "phone-dark": {"color_scheme": "dark", "viewport": PHONE},
}


@pytest.fixture
def shop(stage: Stage) -> Stage:
    busy_shop(stage)
    return stage


def assert_good(visitor: Visit, look: str, pages: Iterable[str]) -> None:
    """
    axe-core finds no violation on any page, nor the browser one of the policy. Each page has its title, and nobody
    scrolls sideways, on a phone not even a table.
    """
    operator = visitor("operator", **LOOKS[look])
    for name in pages:
        assert operator.open(PAGES[name]).status == 200, name
        operator.picture(f"{name}-{look}")
        title = operator.page.get_by_role("heading", level=1).filter(has_text=TITLES[name])
        assert title.count() == 1, name
        operator.assert_accessible()
        operator.assert_fits()
        if "phone" in look:
            scrolled = operator.page.locator(".zklock-scroll")
            assert scrolled.evaluate_all("all => all.every(part => part.scrollWidth <= part.clientWidth)"), name


def test_the_main_pages_are_accessible_and_fit(shop: Stage, visitor: Visit) -> None:
    assert_good(visitor, "light", ["list", "detail", "history", "break"])


def test_a_search_leads_to_a_reservation_and_deletes_it(shop: Stage, visitor: Visit) -> None:
    """From the list of locks, on a phone, with no more than links and one form."""
    operator = visitor("operator", viewport=PHONE)
    operator.open(f"{LIST}?q=feed")
    operator.follow("1 reservation of a unique task has these words.")
    operator.follow("shop.tasks.update_feed")
    operator.page.get_by_label("Reason").fill("the queue was purged")
    operator.press("Delete the reservation")
    assert operator.page.get_by_text("The next call sends the task.").first.is_visible()
    assert operator.page.get_by_text("1 shown, 1 found, of 1.").is_visible()
    operator.assert_accessible()
    operator.assert_fits()


@pytest.mark.chaos
@pytest.mark.parametrize("look", LOOKS)
def test_every_page_is_accessible_and_fits(shop: Stage, visitor: Visit, look: str) -> None:
    """In light and dark, on a desk and on a phone."""
    assert_good(visitor, look, PAGES)


@pytest.mark.chaos
@pytest.mark.parametrize("language", ["de", "fr"])
def test_every_page_is_translated(shop: Stage, visitor: Visit, language: str) -> None:
    operator = visitor("operator", locale=language)
    english = visitor("operator")
    for name, path in PAGES.items():
        operator.open(path)
        english.open(path)
        operator.picture(f"{name}-{language}")
        assert operator.page.locator("html").get_attribute("lang") == language
        labels = "#content :is(h2, dt, label, th, .column-state, [type=submit])"
        said = [set(reader.page.locator(labels).all_inner_texts()) for reader in (operator, english)]
        assert said[0] != said[1] or name == "history", name
        operator.assert_accessible()
        operator.assert_fits()


@pytest.mark.skipif(THEMED, reason="this theme shows nothing without its own scripts")
def test_the_list_is_complete_without_scripts(shop: Stage, visitor: Visit) -> None:
    """With all locks and their ages."""
    viewer = visitor("viewer", java_script_enabled=False)
    viewer.open()
    assert KEY in viewer.shown_keys()
    assert viewer.row(KEY).locator("time").first.inner_text()
