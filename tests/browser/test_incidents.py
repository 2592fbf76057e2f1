"""A drill: the incidents of a night. The first screen of a page names the cause and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.browser.actors import Part, Stage
from support.browser.pages import LIST, Visitor, address, visit
from support.browser.site import Site
from support.zoo import Zoo

if TYPE_CHECKING:
    from playwright.sync_api import Browser

Visit = Callable[..., Visitor]
pytestmark = [pytest.mark.zookeeper, pytest.mark.chaos]

KEY = "orders/1042"
CHARGE = Part.task("shop.tasks.charge", "worker-3", 812)
RESTOCK = Part.task("shop.tasks.restock", "worker-4", 911)


@pytest.fixture
def operator(visitor: Visit) -> Visitor:
    signed_in: Visitor = visitor("operator", viewport={"width": 1280, "height": 800})
    return signed_in


def assert_first_screen(operator: Visitor, *texts: str) -> None:
    """Fail unless these texts are visible without scrolling."""
    operator.assert_accessible()
    for text in texts:
        first_match = operator.page.locator("#content").get_by_text(text).locator("visible=true").first
        first_match.wait_for()
        box = first_match.bounding_box()
        assert box is not None, text
        assert box["y"] + box["height"] <= 800, text


@pytest.fixture
def hasty(
    stage: Stage, den: Zoo, browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Visitor]:
    """An operator of a site where a hold of a millisecond is long."""
    monkeypatch.setenv("SITE_LONG_HELD", "0.001")
    with Site(tmp_path, den.url()) as site:
        operator = visit(browser, site, "operator", viewport={"width": 1280, "height": 800})
        yield operator
        operator.page.context.close()


def test_a_dead_host_with_fifty_locks_is_one_card(stage: Stage, hasty: Visitor) -> None:
    """It leads to the page of the host. The page of a lock says when ZooKeeper gives up on it."""
    for number in range(50):
        stage.join_queue(f"orders/{number:03}", Part("worker-1", 77, session_timeout=10_000, waited=1))
    stage.join_queue("orders/000", RESTOCK)
    hasty.open(LIST)
    assert hasty.page.locator(".zklock-card").count() == 1
    assert_first_screen(hasty, "worker-1 · pid 77 hangs, with 50 locks", "Look at the host.", "and 45 more")
    hasty.picture("incident-host")
    hasty.page.set_viewport_size({"width": 390, "height": 800})
    assert_first_screen(hasty, "worker-1 · pid 77 hangs, with 50 locks", "Look at the host.")
    hasty.picture("incident-host-390", full_page=False)
    hasty.follow("All locks of worker-1…")
    hasty.page.get_by_role("button", name="Break the ticked locks").wait_for()
    hasty.page.set_viewport_size({"width": 1280, "height": 800})
    hasty.open(f"{LIST}groups/?by=host")
    assert hasty.page.locator(".zklock-queue tbody tr").first.inner_text().split()[:3] == ["worker-1", "50", "50"]
    hasty.open(address("orders/000"))
    assert_first_screen(
        hasty,
        "worker-1 · pid 77",
        "If its host dies, the lock is free 10 s later, or a little more.",
        "Its process also holds",
    )


def test_the_worst_cause_is_the_first_card(stage: Stage, hasty: Visitor) -> None:
    """A deadlock before a slow task that more contenders wait for."""
    stage.join_queue("stock/lamp", CHARGE)
    stage.join_queue("reports/nightly", RESTOCK)
    stage.join_queue("reports/nightly", CHARGE)
    stage.join_queue("stock/lamp", RESTOCK)
    for part in (Part("worker-1", 455, what="shop.tasks.import_prices", waited=1), *[Part("web-1", 77)] * 3):
        stage.join_queue(KEY, part)
    hasty.page.set_viewport_size({"width": 1240, "height": 640})
    hasty.open(LIST)
    titles = hasty.page.locator(".zklock-card h2 span:nth-child(2)").all_inner_texts()
    assert [title.split()[0] for title in titles] == ["Deadlock:", "worker-1"]
    hasty.picture("worst-first", full_page=False)


def test_a_deadlock_of_two_tasks_is_drawn(stage: Stage, operator: Visitor) -> None:
    stage.join_queue("stock/lamp", CHARGE)
    stage.join_queue(KEY, RESTOCK)
    stage.join_queue(KEY, CHARGE)
    stage.join_queue("stock/lamp", RESTOCK)
    operator.open(LIST)
    assert_first_screen(
        operator, f"Deadlock: {KEY}, stock/lamp", "Break one of them", f"Break {KEY}…", "Break stock/lamp…"
    )
    operator.picture("incident-deadlock-card")
    operator.open(address(KEY))
    assert_first_screen(
        operator,
        "Deadlock: they wait for each other",
        "the circle is closed",
        "Break one of them: its work is stopped",
        f"Break {KEY}…",
        "Break stock/lamp…",
    )
    operator.picture("incident-deadlock")
