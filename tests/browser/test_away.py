"""The pages while ZooKeeper does not answer: that is when people open them."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from support.browser.actors import Stage
from support.browser.pages import LIST, Visitor
from support.browser.scene import busy_shop
from support.proxy import Proxy

Visit = Callable[..., Visitor]
pytestmark = [pytest.mark.zookeeper, pytest.mark.chaos]

KEY = "orders/1042"
DEADLINE = 3.5  # seconds for a whole page: the 1.5 that a snapshot may take, and room for a busy machine


def opened_in_time(visitor: Visitor, path: str) -> None:
    began = time.monotonic()
    assert visitor.open(path, refresh=False).status == 200
    took = time.monotonic() - began
    assert took < DEADLINE, f"{path} took {took:.1f} s"


@pytest.mark.parametrize("outage", ["refuse", "hang"])
def test_the_list_shows_the_last_locks_and_their_age(stage: Stage, wire: Proxy, visitor: Visit, outage: str) -> None:
    """A banner says so, in time, whether ZooKeeper is frozen or gone."""
    busy_shop(stage)
    viewer = visitor("viewer")
    viewer.open()
    before = viewer.shown_keys()
    assert KEY in before
    setattr(wire, outage, True)
    if outage == "refuse":
        wire.cut_all()
    time.sleep(1.1)  # the snapshot that the pages share is too old now
    opened_in_time(viewer, LIST)
    banner = viewer.page.get_by_role("alert")
    assert "ZooKeeper" in banner.inner_text()
    assert "This state is" in viewer.page.locator("#zklock-status").inner_text()
    assert viewer.shown_keys() == before
    viewer.picture(f"away-{outage}")
    viewer.assert_accessible()
    viewer.assert_fits()
    opened_in_time(viewer, LIST)
    wire.heal()
    viewer.wait_until(lambda: viewer.open() and viewer.page.get_by_role("alert").count() == 0)


def test_an_open_list_shows_when_an_outage_begins_and_ends(stage: Stage, wire: Proxy, visitor: Visit) -> None:
    """The banner comes and goes without a reload."""
    busy_shop(stage)
    viewer = visitor("viewer")
    viewer.open()
    viewer.refresh_every(2)
    wire.refuse = True
    wire.cut_all()
    viewer.page.get_by_role("alert").wait_for(timeout=10_000)
    assert KEY in viewer.shown_keys()
    wire.heal()
    viewer.page.get_by_role("alert").wait_for(state="detached", timeout=15_000)
    assert KEY in viewer.shown_keys()
