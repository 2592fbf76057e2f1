"""An operator breaks and holds locks in a browser."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable

import pytest
from support.browser.actors import Actor, acting
from support.browser.pages import Visitor, address
from support.browser.site import Site
from support.locking import MANAGE
from support.zoo import TESTS, Zoo, eventually

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
        other.tell("take", KEY, "shop.views.refund")
        swept.wait_contenders(KEY, 2)
        operator = visitor("operator")
        operator.open_lock(KEY)
        operator.follow("Break…")
        confirmation = operator.page.locator("#content").inner_text()
        assert {str(actor.process.pid), "shop.views.buy"} <= set(confirmation.split())
        assert str(token) in confirmation
        operator.confirm("it hangs in the payment service")
        assert "was broken. The loss is reported" in operator.messages()
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
def test_a_break_by_a_command_is_in_the_history(swept: Zoo, actor: Actor, visitor: Visit, site: Site) -> None:
    """The history of all locks is linked from the list. It has the reason, and links to the lock."""
    token = actor.hold(KEY, "shop.views.buy")
    command = [*MANAGE, "break", KEY, "--reason=it hangs in the payment service", f"--token={token}", "--no-input"]
    subprocess.run(command, env={**swept.environment(), **site.environment}, cwd=TESTS, check=True)
    actor.hear("lost", KEY)
    operator = visitor("operator")
    operator.open()
    operator.follow("History")
    row = operator.page.get_by_role("row").filter(has_text="it hangs in the payment service").filter(has_text="command")
    assert "Broken; it was held by" in row.inner_text()
    row.get_by_role("link", name=KEY).click()
    operator.page.get_by_role("heading", level=1).filter(has_text=KEY).wait_for()


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


@pytest.mark.chaos
def test_several_locks_are_broken_from_the_list(swept: Zoo, actor: Actor, visitor: Visit) -> None:
    """Ticked rows and the action lead to one page of confirmation that names every holder."""
    for number in range(3):
        actor.hold(f"orders/{number}", f"shop.tasks.charge{number}")
    operator = visitor("operator")
    operator.open()
    for number in range(2):
        operator.row(f"orders/{number}").get_by_role("checkbox").check()
    operator.page.locator("select[name=action]").select_option(label="Break selected locks…")
    operator.page.get_by_role("button", name="Go", exact=False).or_(
        operator.page.get_by_role("button", name="Run", exact=False)
    ).first.click()
    operator.page.wait_for_url("**/break/**")
    text = operator.page.locator("#content").inner_text()
    assert "charge0" in text
    assert "charge1" in text
    assert "charge2" not in text
    operator.picture("break-two")
    operator.assert_accessible()
    operator.confirm("a bad deploy")
    eventually(lambda: [len(swept.children(f"orders/{number}")) for number in range(3)] == [0, 0, 1])


def test_an_operator_holds_a_lock_and_ends_the_hold(swept: Zoo, actor: Actor, visitor: Visit) -> None:
    """All pages show the reason and the end."""
    operator, viewer = visitor("operator"), visitor("viewer")
    operator.open(address(KEY, "hold"))
    operator.picture("hold")
    operator.hold("drain for the deploy", minutes=5)
    assert len(swept.children(KEY)) == 1
    viewer.open()
    row = viewer.row(KEY).inner_text()
    assert "operator" in row
    assert "drain for the deploy" in row
    actor.tell("take", KEY)
    swept.wait_contenders(KEY, 2)
    operator.open_lock(KEY)
    operator.picture("held-by-operator")
    operator.assert_accessible()
    operator.press("End this hold")
    actor.hear("held", KEY)
