"""The chart and the acknowledged cards, on a desk, on a phone and in the dark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.browser.actors import Stage
from support.browser.pages import LIST, PHONE, Visitor, address
from support.browser.rows import ATTEMPTS, attempt, recorded
from support.browser.site import Site
from support.zoo import Zoo

Visit = Callable[..., Visitor]
pytestmark = [pytest.mark.zookeeper, pytest.mark.chaos]

KEY = "orders/1042"


@pytest.mark.parametrize(
    "look", [{"viewport": {"width": 1280, "height": 800}}, {"viewport": PHONE}], ids=["desk", "phone"]
)
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_the_chart_leaves_room_for_the_card_which_can_be_acknowledged(
    visitor: Visit, stage: Stage, site: Site, swept: Zoo, look: dict[str, object], colours: str, request: Any
) -> None:
    operator = visitor("operator", color_scheme=colours, **look)
    path = swept.client.create(f"{swept.base}/{KEY}/mine-", sequence=True, makepath=True)
    request.addfinalizer(lambda: swept.client.delete(path))
    refusals = [
        (ATTEMPTS, 60.0 * minute, attempt(KEY, "web-1", outcome="timed out", waited=5.0)) for minute in range(30)
    ]
    with recorded(site, *refusals):
        operator.open(LIST)
        operator.page.get_by_text("Last hour").click(timeout=30_000)  # the site keeps what it has read
        operator.page.get_by_text("Hour: 30; the first at").wait_for()
        card = operator.page.locator(".zklock-card h2").first.bounding_box()
        chart = operator.page.locator(".zklock-chart").bounding_box()
        button = operator.page.locator(".zklock-card a.button").first.bounding_box()
        assert card is not None
        assert chart is not None
        assert button is not None
        assert card["y"] < button["y"] < chart["y"]
        assert button["y"] + button["height"] <= 600
        operator.assert_accessible()
        operator.assert_fits()
        name = f"chart-{colours}-{operator.page.evaluate('innerWidth')}"
        operator.picture(name, full_page=False)
        operator.page.get_by_role("link", name="Acknowledge…").click()
        operator.page.get_by_label("Reason").fill("a disk is on its way")
        operator.assert_accessible()
        operator.page.get_by_role("button", name="For 1 h").click()
        operator.page.get_by_text("Nothing else needs attention; acknowledged: 1.").wait_for()
        assert operator.page.locator(".messagelist, #main").get_by_role("link", name="Withdraw…").count()
        operator.assert_accessible()
        operator.picture(f"acknowledged-{name}", full_page=False)
        operator.open(address(KEY))
        operator.assert_accessible()
        operator.assert_fits()
        operator.picture(f"lock-{name}")
