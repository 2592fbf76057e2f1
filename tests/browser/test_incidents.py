"""A drill: the incidents of a night. The first screen of a page names the cause and what to do."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.browser.actors import Part, Stage
from support.browser.pages import LIST, Visitor, address, visit
from support.browser.rows import ATTEMPTS, attempt, recorded
from support.browser.site import Site
from support.chaos.servers import repaired
from support.ensemble import Ensemble
from support.zoo import Zoo

from django_zklock.core.queue import nodes
from django_zklock.core.zk.troubles import SESSION_OVER

if TYPE_CHECKING:
    from playwright.sync_api import Browser

Visit = Callable[..., Visitor]
pytestmark = [pytest.mark.zookeeper, pytest.mark.chaos]

KEY = "orders/1042"
CHARGE = Part.task("shop.tasks.charge", "worker-3", 812)
BORDER = "card => getComputedStyle(card).borderInlineStartColor"
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
    hasty.open()
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
        "If its host dies, the lock is free about 10 s later.",
        "Its process also holds",
    )


def test_a_slow_task_is_first_and_can_be_asked_or_broken(stage: Stage, hasty: Visitor) -> None:
    stage.join_queue("aaa", RESTOCK)
    stage.join_queue(KEY, replace(CHARGE, waited=1))
    stage.join_queue(KEY, RESTOCK)
    hasty.open()
    remedy = "Too long? 1. Request release (work finishes). 2. Break (work is stopped)."
    assert_first_screen(hasty, "worker-3 · pid 812 has held orders/1042 for", remedy, "Break orders/1042…")
    hasty.picture("incident-slow")
    hasty.follow("All locks")
    assert hasty.shown_keys()[0] == KEY
    assert_first_screen(hasty, "Long held", "longest wait")
    hasty.open(address(KEY))
    assert_first_screen(hasty, "worker-3 · pid 812 has held it for", "1 waits.")
    assert_first_screen(hasty, remedy, "Request release…", "Break…")


def test_the_worst_cause_is_the_first_card(stage: Stage, hasty: Visitor) -> None:
    """A deadlock before a slow task that more contenders wait for. The picture is in `docs/images`."""
    stage.join_queue("stock/lamp", CHARGE)
    stage.join_queue("reports/nightly", RESTOCK)
    stage.join_queue("reports/nightly", CHARGE)
    stage.join_queue("stock/lamp", RESTOCK)
    for part in (Part("worker-1", 455, what="shop.tasks.import_prices", waited=1), *[Part("web-1", 77)] * 3):
        stage.join_queue(KEY, part)
    hasty.page.set_viewport_size({"width": 1240, "height": 640})
    hasty.open()
    titles = hasty.page.locator(".zklock-card h2").all_inner_texts()
    assert [title.split()[0] for title in titles] == ["Deadlock:", "worker-1"]
    hasty.picture("attention", full_page=False)


def test_another_client_that_blocks_others_is_named(stage: Stage, operator: Visitor) -> None:
    stage.join_queue_raw(KEY, nodes.prefix(str(uuid.uuid4())), b"10.0.0.7")
    stage.join_queue(KEY, RESTOCK)
    operator.open()
    assert_first_screen(operator, f"Another client blocks {KEY}", "End its program, or break the lock.")
    operator.follow(f"Break {KEY}…")
    operator.page.get_by_label("Reason").wait_for()


def test_calm_is_one_sentence_above_the_list(stage: Stage, operator: Visitor) -> None:
    stage.join_queue(KEY, RESTOCK)
    operator.open()
    assert_first_screen(operator, "Nothing needs attention.", "1 held", "0 contended", "0 waiting", "All locks")
    operator.picture("calm")
    operator.page.set_viewport_size({"width": 390, "height": 800})
    assert_first_screen(operator, "Nothing needs attention.", "All locks")
    operator.picture("calm-390", full_page=False)


def test_a_deadlock_of_two_tasks_is_drawn(stage: Stage, operator: Visitor) -> None:
    stage.join_queue("stock/lamp", CHARGE)
    stage.join_queue(KEY, RESTOCK)
    stage.join_queue(KEY, CHARGE)
    stage.join_queue("stock/lamp", RESTOCK)
    operator.open()
    assert_first_screen(
        operator, f"Deadlock: {KEY}, stock/lamp", "Break one of them", f"Break {KEY}…", "Break stock/lamp…"
    )
    operator.picture("incident-deadlock-card")
    operator.open(address(KEY))
    assert_first_screen(
        operator,
        "Deadlock: they wait for each other",
        "the circle is closed",
        "Nothing ends it by itself. Break one of these locks",
        f"Break {KEY}…",
        "Break stock/lamp…",
    )
    operator.picture("incident-deadlock")


def test_a_lost_quorum_says_which_servers_to_start(three: Ensemble, browser: Browser, tmp_path: Path) -> None:
    """The button leads to the health of the servers."""
    with repaired(three), Site(tmp_path, three.url("/quorum")) as site:
        operator = visit(browser, site, "operator", viewport={"width": 1280, "height": 800})
        operator.open()
        assert_first_screen(operator, "Nothing needs attention.")
        for server in (three.followers[0], three.leader):
            server.kill()
        operator.page.get_by_text("1 of 3 servers").wait_for(timeout=60_000)  # the open page refreshes itself
        assert_first_screen(operator, "ZooKeeper has no quorum", "2 are needed.", "Start the servers that are down")
        assert operator.page.locator(".zklock-card").evaluate(BORDER) == "rgb(186, 33, 33)", "it is no old state"
        operator.picture("incident-quorum")
        operator.follow("Health of ZooKeeper")
        assert_first_screen(operator, "No majority", "down")
        operator.page.context.close()
    assert not operator.complaints


def test_a_host_whose_sessions_flap_is_named(site: Site, swept: Zoo, operator: Visitor) -> None:
    """The button leads to what it has lost."""
    lost = [attempt(f"orders/{n}", "web-77", outcome="lost", session=n, reason=SESSION_OVER) for n in range(3)]
    with recorded(site, *[(ATTEMPTS, 60, row) for row in lost]):
        text = "web-77 has lost its locks 3 times in the last 30 minutes"
        operator.open()
        operator.page.get_by_text(text).wait_for(timeout=40_000)  # the page refreshes itself
        assert_first_screen(operator, text, "Look at its network, its load and its memory.")
        operator.picture("incident-flapping")
        operator.follow("All locks of web-77…")
        assert_first_screen(operator, "Held and lost", SESSION_OVER)
        operator.picture("incident-flapping-host")
    operator.open()
    operator.page.get_by_text(text).wait_for(state="detached", timeout=40_000)


def test_a_host_that_ended_with_its_locks_is_named(site: Site, swept: Zoo, operator: Visitor) -> None:
    """After its session, so the locks are free by then."""
    held = [attempt(f"orders/{n}", "worker-9", outcome="held", held=None, session=n, token=n) for n in range(50)]
    with recorded(site, *[(ATTEMPTS, 60, row) for row in held]):
        text = "Processes on worker-9 ended with 50 locks"
        operator.open()
        operator.page.get_by_text(text).wait_for(timeout=40_000)
        assert_first_screen(operator, text, "Its locks are free again", "Check the work of these locks.")
        operator.picture("incident-ended")
        operator.follow("All locks of worker-9…")
        assert_first_screen(operator, "no end is recorded")
    operator.open()
    operator.page.get_by_text(text).wait_for(state="detached", timeout=40_000)


def test_an_exhausted_key_says_how_to_reset_it(stage: Stage, den: Zoo, operator: Visitor) -> None:
    stage.join_queue("aaa", CHARGE)
    path = f"{den.base}/{KEY}/{nodes.prefix(str(uuid.uuid4()))}-000000005"  # below zero: the counter has run over
    den.client.create(path, ephemeral=True, makepath=True)
    operator.open()
    assert_first_screen(operator, f"Counter used up: {KEY}", "Then delete the empty directory")
    operator.picture("incident-counter")
    operator.follow("The commands for that…")
    assert operator.page.get_by_text(f"delete {den.base}/{KEY}").first.is_visible()
    operator.open(f"{LIST}?q=")
    assert operator.shown_keys()[0] == KEY
    operator.open(address(KEY))
    assert_first_screen(operator, "Blocked: counter used up", "32-bit counter of this directory is exhausted")
    den.client.delete(path)


def test_a_forgotten_hold_names_the_operator_and_its_end(stage: Stage, operator: Visitor) -> None:
    operator.open(address(KEY, "hold"))
    operator.hold("maintenance of the warehouse", 60)
    stage.join_queue(KEY, CHARGE)
    operator.open()
    assert_first_screen(operator, f"Forgotten hold? {KEY}", "maintenance of the warehouse", "If the reason is gone")
    operator.picture("incident-hold")
    operator.follow("End this hold…")
    operator.page.get_by_label("Reason").wait_for()
    operator.open(address(KEY))
    assert_first_screen(operator, "operator holds it until", "If the reason is gone, end this hold.", "End this hold")
    operator.follow("End this hold…")
    operator.page.get_by_label("Reason").fill("the work is done")
    operator.press("End the hold")
