"""The page of a host in a browser: fifty locks are broken at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.browser.actors import Part, Stage
from support.browser.pages import LIST, PHONE, Visitor, address

Visit = Callable[..., Visitor]
pytestmark = pytest.mark.zookeeper


def test_all_fifty_locks_of_a_host_are_broken_with_its_name_typed(stage: Stage, visitor: Visit) -> None:
    """From the page of one of its locks."""
    for number in range(50):
        stage.join_queue(f"orders/{number:03}", Part("worker-7", 812, what="shop.tasks.charge"))
    stage.join_queue("stock/lamp", Part("worker-4", 911))
    stage.join_queue("stock/lamp", Part("worker-7", 812))
    operator = visitor("operator")
    operator.open(address("orders/000"))
    operator.follow("worker-7 · pid 812")
    operator.assert_accessible()
    operator.picture("host")
    operator.page.get_by_label("Reason").fill("it hangs")
    operator.press("Break the ticked locks")
    assert "Nothing was broken. Type: worker-7" in operator.page.locator("#content").inner_text()
    operator.picture("host-not-confirmed", full_page=True)
    operator.page.get_by_label("Confirmation").fill("worker-7")
    operator.press("Break the ticked locks")
    assert "50 locks were broken: orders/" in operator.messages()
    operator.picture("host-after")
    phone = visitor("operator", viewport=PHONE)
    phone.open(f"{LIST}host/?host=worker-7")
    phone.assert_accessible()
    phone.picture("host-phone")
