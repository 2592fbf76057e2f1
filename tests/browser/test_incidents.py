"""A drill: the incidents of a night. The first screen of a page names the cause and what to do."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.browser.actors import Part, Stage
from support.browser.pages import LIST, Visitor, address, visit
from support.browser.site import Site
from support.zoo import Zoo

from django_zklock.queue import nodes

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


def test_a_dead_host_with_fifty_locks_is_one_row(stage: Stage, operator: Visitor) -> None:
    """And its page says when ZooKeeper gives up on it."""
    for number in range(50):
        stage.join_queue(f"orders/{number:03}", Part("worker-1", 77, session_timeout=10_000))
    stage.join_queue("orders/000", RESTOCK)
    operator.open(f"{LIST}groups/?by=host")
    assert operator.page.locator(".zklock-queue tbody tr").first.inner_text().split()[:3] == ["worker-1", "50", "50"]
    operator.open(address("orders/000"))
    assert_first_screen(
        operator,
        "worker-1 · pid 77",
        "ZooKeeper has heard of its process within the last 10 s.",
        "Its process also holds",
    )


def test_a_slow_task_is_first_in_the_list_and_can_be_asked_or_broken(
    stage: Stage, den: Zoo, browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.join_queue("aaa", RESTOCK)
    stage.join_queue(KEY, CHARGE)
    stage.join_queue(KEY, RESTOCK)
    monkeypatch.setenv("SITE_LONG_HELD", "0.1")
    with Site(tmp_path, den.url()) as site:
        operator = visit(browser, site, "operator", viewport={"width": 1280, "height": 800})
        operator.open()
        assert operator.shown_keys()[0] == KEY
        assert_first_screen(operator, "Long held", "longest wait")
        operator.open(address(KEY))
        assert_first_screen(operator, "worker-3 · pid 812 has held it for", "1 waiter, first come, first served.")
        assert_first_screen(operator, "If that is too long, request its release, or break the lock.", "Request release")
        operator.page.context.close()


def test_a_deadlock_of_two_tasks_is_drawn(stage: Stage, operator: Visitor) -> None:
    stage.join_queue("stock/lamp", CHARGE)
    stage.join_queue(KEY, RESTOCK)
    stage.join_queue(KEY, CHARGE)
    stage.join_queue("stock/lamp", RESTOCK)
    operator.open()
    assert_first_screen(operator, "Deadlock:")
    operator.open(address(KEY))
    assert_first_screen(
        operator, "Deadlock: they wait for each other", "the circle is closed", "Break one of these locks"
    )
    operator.picture("incident-deadlock")


def test_an_exhausted_key_says_how_to_reset_it(stage: Stage, den: Zoo, operator: Visitor) -> None:
    stage.join_queue("aaa", CHARGE)
    path = f"{den.base}/{KEY}/{nodes.prefix(str(uuid.uuid4()))}-000000005"  # below zero: the counter has run over
    den.client.create(path, ephemeral=True, makepath=True)
    operator.open()
    assert operator.shown_keys()[0] == KEY
    operator.open(address(KEY))
    assert_first_screen(operator, "32-bit counter of this directory is exhausted")
    den.client.delete(path)


def test_a_forgotten_hold_names_the_operator_and_its_end(stage: Stage, operator: Visitor) -> None:
    operator.open(address(KEY, "hold"))
    operator.hold("maintenance of the warehouse", 60)
    stage.join_queue(KEY, CHARGE)
    operator.open(address(KEY))
    assert_first_screen(operator, "operator holds it until", "If the reason is gone, end this hold.", "End this hold")
    operator.follow("End this hold…")
    operator.page.get_by_label("Reason").fill("the work is done")
    operator.press("End the hold")
