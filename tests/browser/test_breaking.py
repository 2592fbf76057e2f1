"""An operator breaks locks, and asks for their release, in a browser."""

import re

import pytest
from playwright.sync_api import expect
from support.browser.actors import Part
from support.browser.pages import ALL, address

KEY = "orders/1042"


@pytest.mark.chaos
def test_a_reason_is_required(swept, stage, visitor):
    stage.join_queue(KEY, Part())
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


@pytest.mark.parametrize(
    ("link", "said", "remains"),
    [("Break…", f"Broken: {KEY}.", False), ("Request release…", f"Asked to release: {KEY}.", True)],
)
def test_enter_presses_the_button_that_the_link_means(swept, stage, visitor, link, said, remains):
    stage.join_queue(KEY, Part.task("shop.tasks.charge", "worker-9", 812))
    operator = visitor("operator")
    operator.open(address(KEY))
    operator.page.get_by_role("link", name=link).click()
    expect(operator.page.get_by_label("Reason")).to_be_focused()
    operator.picture(f"form-{remains}")
    buttons = operator.page.locator("input[type=submit][name=ask], input[type=submit][name=break]")
    assert [button.get_attribute("value") for button in buttons.all()] == [link.rstrip("…")]
    operator.page.keyboard.type("it hangs")
    operator.page.keyboard.press("Enter")
    expect(operator.page.locator("body")).to_contain_text(said)
    assert bool(swept.children(KEY)) is remains


def test_all_locks_of_a_host_are_broken_from_the_list(swept, stage, visitor):
    for number in range(3):
        stage.join_queue(f"orders/{number}", Part.task("shop.tasks.charge", "worker-9", 812))
    stage.join_queue("stock", Part("web-1"))
    operator = visitor("operator")
    operator.open(ALL)
    operator.row("orders/0").get_by_role("link", name="worker-9 · pid 812").click()
    operator.page.wait_for_url("**/?host=worker-9")
    operator.page.locator("#action-toggle").check()
    operator.page.get_by_label("Action:").select_option("break_selected")
    operator.press("Run" if operator.page.get_by_role("button", name="Run").count() else "Go")
    assert operator.page.locator("input[name=target]:checked").count() == 3
    operator.picture("break-many")
    operator.assert_accessible()
    operator.confirm("it hangs")
    assert operator.messages() == "Broken: orders/0, orders/1, orders/2."
    assert [key for key in ("orders/0", "orders/1", "orders/2", "stock") if swept.children(key)] == ["stock"]
