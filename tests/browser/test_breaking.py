"""An operator breaks and holds locks in a browser."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from support.browser.actors import Actor, acting
from support.browser.pages import Visitor, address
from support.zoo import Zoo

Visit = Callable[..., Visitor]
pytestmark = pytest.mark.zookeeper

KEY = "orders/1042"


def test_a_lock_is_broken_with_a_reason(swept: Zoo, actor: Actor, visitor: Visit) -> None:
    """
    From the lock's page to a confirmation that names the holder, and from there, with a reason, to a free lock.

    The holder learns that it lost the lock, the next in line gets it, and the history tells who did it and why.
    """
    token = actor.hold(KEY, "shop.views.buy", {"request": "POST /buy/"})
    with acting(swept) as other:
        other.acquire(KEY, "shop.views.refund")
        swept.wait_contenders(KEY, 2)
        operator = visitor("operator")
        operator.open_lock(KEY)
        operator.follow("Break…")
        confirmation = operator.page.locator("#content").inner_text()
        assert {str(actor.process.pid), "shop.views.buy"} <= set(confirmation.split())
        assert str(token) in confirmation
        operator.confirm("it hangs in the payment service")
        assert f"1 lock was broken: {KEY}." in operator.messages()
        assert int(other.hear("held", KEY)) > token
        actor.hear("lost", KEY)
        operator.open_lock(KEY)
        operator.follow("History")
        row = (
            operator.page.get_by_role("row").filter(has_text="it hangs in the payment service").filter(has_text="admin")
        )
        operator.wait_until(lambda: operator.open(address(KEY, "history"), refresh=False) and row.count())
        operator.picture("history-of-a-break")
        assert "operator" in row.inner_text()


@pytest.mark.chaos
def test_a_reason_is_required(swept: Zoo, actor: Actor, visitor: Visit) -> None:
    """Without one, no lock is broken. The error is at the field, which has the focus."""
    from playwright.sync_api import expect

    actor.hold(KEY)
    (node,) = swept.children(KEY)
    operator = visitor("operator")
    operator.open(address(KEY, "break"))
    for reason in ("", "   "):
        operator.confirm(reason)
        field = operator.page.get_by_label("Reason")
        expect(field).to_be_focused()
        expect(field).to_have_attribute("aria-invalid", "true")
        expect(field).to_have_accessible_description(re.compile("This field is required"))
    operator.picture("break-without-reason")
    operator.assert_accessible()
    assert swept.children(KEY) == [node]
