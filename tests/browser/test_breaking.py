"""An operator breaks and holds locks in a browser."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from support.browser.actors import Actor
from support.browser.pages import Visitor, address
from support.zoo import Zoo

Visit = Callable[..., Visitor]
pytestmark = pytest.mark.zookeeper

KEY = "orders/1042"


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
