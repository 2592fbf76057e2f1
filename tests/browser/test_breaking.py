"""An operator breaks and holds locks in a browser."""

import re

import pytest
from playwright.sync_api import expect
from support.browser.actors import Part
from support.browser.pages import LIST, PHONE, address
from support.zoo import next_line

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
    ("link", "names", "remains"),
    [("Break…", "Break the lock", False), ("Request release…", "Request release of", True)],
)
def test_enter_presses_the_button_that_the_link_means(swept, stage, visitor, link, names, remains):
    stage.join_queue(KEY, Part.task("shop.tasks.charge", "worker-9", 812))
    operator = visitor("operator")
    operator.open(address(KEY))
    operator.page.get_by_role("link", name=link).click()
    expect(operator.page.get_by_label("Reason")).to_be_focused()
    operator.picture(f"form-{remains}")
    buttons = operator.page.locator("input[type=submit][name=ask], input[type=submit][name=break]")
    assert [str(button.get_attribute("value")).startswith(names) for button in buttons.all()] == [True]
    assert operator.page.get_by_role("link", name="Instead:").count() == 1
    operator.page.keyboard.type("it hangs")
    operator.page.keyboard.press("Enter")
    expect(operator.page.locator("body")).to_contain_text("asked to release" if remains else "was broken")
    assert bool(swept.children(KEY)) is remains


def test_enter_does_nothing_where_no_action_is_meant(swept, stage, visitor):
    """On the page of a host, a confirmation that is typed must not end as a request."""
    stage.join_queue(KEY, Part.task("shop.tasks.charge", "worker-9", 812))
    operator = visitor("operator")
    operator.open(f"{LIST}host/?host=worker-9")
    assert not operator.page.get_by_label("Reason").is_visible()
    operator.page.get_by_role("link", name="Request their release, or break them").click()  # it unfolds the form
    operator.page.get_by_label("Reason").fill("it hangs")
    operator.page.get_by_label("Confirmation").fill("worker-9")
    operator.page.keyboard.press("Enter")
    operator.page.wait_for_load_state()
    assert operator.page.get_by_label("Reason").input_value() == "it hangs"
    assert len(swept.children(KEY)) == 1
    operator.page.get_by_role("button", name="Break the lock").click()
    operator.wait_until(lambda: not swept.children(KEY))


def test_one_click_shows_what_the_holder_does(swept, visitor):
    with swept.running(f"with zk_lock({KEY!r}):\n    print('held')\n    input()") as holder:
        assert next_line(holder) == "held"
        operator = visitor("operator", viewport=PHONE, color_scheme="dark")
        operator.open(address(KEY))
        for _ in range(2):
            operator.press("Show its stack…")
            assert "thread '" in operator.page.locator(".zklock-stack").inner_text()
        operator.picture("stack")
        operator.assert_accessible()
        operator.assert_fits()
        holder.communicate("", timeout=30)
