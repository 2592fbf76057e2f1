"""The pages while ZooKeeper does not answer: that is when people open them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.browser.actors import Stage
from support.browser.pages import LIST, Visitor
from support.browser.scene import busy_shop
from support.proxy import Proxy

Visit = Callable[..., Visitor]
pytestmark = [pytest.mark.zookeeper, pytest.mark.chaos]

KEY = "orders/1042"


def test_ages_stop_and_rows_are_grey_during_an_outage(stage: Stage, wire: Proxy, visitor: Visit) -> None:
    """Nobody knows who holds what then. They go on afterwards."""
    busy_shop(stage)
    viewer = visitor("viewer")
    viewer.install_clock()
    viewer.open(f"{LIST}?q=")
    viewer.refresh_every(2)
    alert, ages = viewer.page.get_by_role("alert"), viewer.page.locator("#result_list time.zklock-age")

    def is_away() -> bool:
        with viewer.page.expect_event("requestfinished"):  # else time runs out for it
            viewer.put_forward(2)
        return alert.count() == 1

    wire.refuse = True
    wire.cut_all()
    viewer.wait_until(is_away, 20)
    shown = ages.all_inner_texts()
    viewer.put_forward(30)
    assert shown
    assert ages.all_inner_texts() == shown
    assert viewer.page.locator("#result_list").evaluate("table => getComputedStyle(table).filter") == "grayscale(1)"
    wire.heal()
    viewer.wait_until(lambda: not is_away(), 20)
    viewer.put_forward(30)
    assert ages.all_inner_texts() != shown
