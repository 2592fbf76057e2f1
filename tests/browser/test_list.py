"""The list of locks in a browser: what it shows, finds, filters and sorts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.browser.actors import Actor, Part, Stage
from support.browser.pages import Visitor
from support.browser.policy import THEMED
from support.zoo import Zoo

from django_zklock.queue.nodes import Kind

Visit = Callable[..., Visitor]
pytestmark = pytest.mark.zookeeper

CHARGE = Part.task("shop.tasks.charge", "worker-3", 812)
REFUND = Part.view("POST /orders/{pk}/refund", "shop.views.refund", "web-1", 77)
REPORT = Part("cron-1", 9, what="manage.py nightly_report")


@pytest.fixture
def shop(stage: Stage) -> Stage:
    """Three locks: a task with two behind it, a view, and a command that reads with another one."""
    stage.enter("orders/42", CHARGE)
    stage.enter("orders/42", REFUND)
    stage.enter("orders/42", REPORT)
    stage.enter("invoice/2026-11", REFUND)
    stage.enter("report", REPORT, Kind.READ)
    stage.enter("report", CHARGE, Kind.READ)
    return stage


def test_the_list_says_who_holds_what_for_whom(shop: Stage, visitor: Visit) -> None:
    """A row names the lock, its holder's host, process and work, and how many wait."""
    viewer = visitor("viewer")
    assert viewer.open().status == 200
    assert sorted(viewer.shown_keys()) == ["invoice/2026-11", "orders/42", "report"]
    row = viewer.row("orders/42").inner_text()
    assert {"worker-3", "812", "shop.tasks.charge", "2"} <= set(row.replace("[", " ").split())
    assert "Contended" in row


def test_those_who_hold_a_lock_have_room_in_the_list(shop: Stage, visitor: Visit) -> None:
    """A task with its id is on two lines beneath its host, beside the filters of a window of usual width."""
    viewer = visitor("viewer", viewport={"width": 1280, "height": 800})
    viewer.open()
    work = viewer.row("orders/42").locator(".zklock-holder .zklock-work").bounding_box()
    assert work is not None
    assert work["height"] < 60


def test_a_lock_that_a_real_process_took_is_in_the_list(actor: Actor, visitor: Visit) -> None:
    """What the library writes of a holder is what the page shows, its token too."""
    token = actor.hold("stock/lamp", "shop.views.buy", {"request": "POST /items/<sku>/buy/"})
    viewer = visitor("viewer")
    viewer.open()
    row = viewer.row("stock/lamp").inner_text()
    assert str(actor.process.pid) in row
    assert "shop.views.buy" in row
    assert str(token) in row


@pytest.mark.skipif(THEMED, reason="the filters of this theme are behind a button")
def test_filters_and_search_are_at_hand(shop: Stage, visitor: Visit) -> None:
    """What a visitor clicks and types does what the addresses say."""
    viewer = visitor("viewer")
    viewer.open()
    viewer.page.locator("#changelist-filter").get_by_role("link", name="Contended", exact=True).click()
    viewer.page.wait_for_url("**/?state=contended")
    assert viewer.shown_keys() == ["orders/42"]
    viewer.open()
    viewer.page.locator("#searchbar").fill("invoice")
    viewer.page.locator("#searchbar").press("Enter")
    viewer.page.wait_for_url("**/?q=invoice*")
    assert viewer.shown_keys() == ["invoice/2026-11"]


def test_columns_sort_both_ways(shop: Stage, visitor: Visit) -> None:
    """A click on a column's head sorts by it, and another one turns it round."""
    viewer = visitor("viewer")
    viewer.open()
    orders = [["invoice/2026-11", "orders/42", "report"], ["report", "orders/42", "invoice/2026-11"]]
    assert viewer.shown_keys() == orders[0]
    head = viewer.page.locator("#result_list thead th.column-shown_key")
    for order in (orders[1], orders[0]):
        with viewer.page.expect_navigation():
            head.locator(".text a").click()
        assert viewer.shown_keys() == order


def test_a_lock_has_a_page_with_its_queue_in_order(shop: Stage, visitor: Visit) -> None:
    """The page of a lock names holder and waiters, first come first, and says why somebody waits."""
    viewer = visitor("viewer")
    viewer.open()
    viewer.row("orders/42").get_by_role("link", name="orders/42").click()
    viewer.page.wait_for_load_state()
    text = viewer.page.locator("#content").inner_text()
    places = [text.index(part) for part in ("worker-3", "shop.views.refund", "manage.py nightly_report")]
    assert places == sorted(places)
    assert "has held it for" in text


def test_no_lock_at_all_is_said(swept: Zoo, visitor: Visit) -> None:
    """An empty list is a page like any other."""
    viewer = visitor("viewer")
    assert viewer.open().status == 200
    assert viewer.shown_keys() == []
    viewer.assert_accessible()
