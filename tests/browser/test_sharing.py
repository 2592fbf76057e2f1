"""An operator sets limits and requests releases in a browser."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
from support.browser.actors import Actor, acting
from support.browser.pages import Visitor, address
from support.zoo import Zoo, eventually

Visit = Callable[..., Visitor]
pytestmark = [pytest.mark.zookeeper, pytest.mark.chaos]

KEY = "printers/second floor"
NODE = "printers/second%20floor"


@pytest.fixture
def others(swept: Zoo) -> Iterator[list[Actor]]:
    """Two more processes that take locks when told."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(acting(swept)) for _ in range(2)]
        for name in swept.client.get_children(f"{swept.base}/{NODE}"):
            if name.startswith("!"):
                swept.client.delete(f"{swept.base}/{NODE}/{name}")


def test_a_limit_is_set_while_others_wait(swept: Zoo, actor: Actor, others: list[Actor], visitor: Visit) -> None:
    """
    From the page of a semaphore to a form that says what is set now, and back: as many more as fit get permits at once.

    The page says who set it and why; so does the history, also that it was cleared.
    """
    actor.hold(KEY, "shop.views.label", limit=1)
    for index, other in enumerate(others):
        other.tell("take", KEY, f"shop.tasks.print{index}", limit=1)
        swept.wait_contenders(NODE, index + 2)
    operator = visitor("operator")
    operator.open()
    assert "1 of 1 permits" in operator.row(NODE).inner_text()
    operator.open_lock(NODE)
    operator.follow("Set limit…")
    assert "No limit is set" in operator.page.locator("#content").inner_text()
    operator.limit(2, "the second printer is back")
    assert "is now 2" in operator.messages()
    others[0].hear("held", KEY)
    operator.open_lock(NODE)
    text = operator.page.locator("#content").inner_text()
    assert "2 of 2 permits" in text
    assert "Limit 2, set by operator" in text
    assert "the second printer is back" in text
    assert text.count("shop.tasks.print1") == 1, "one waits"
    assert "the holders" in operator.page.locator(".zklock-queue").inner_text()
    operator.picture("semaphore-with-limit")
    operator.assert_accessible()
    operator.follow("Set limit…")
    assert "Limit 2, set by operator" in operator.page.locator("#content").inner_text()
    operator.limit(1, "it jams")
    operator.open_lock(NODE)
    text = operator.page.locator("#content").inner_text()
    assert "1 of 1 permits" in text
    assert "may hold a permit" in text
    operator.picture("semaphore-may-hold")
    operator.assert_accessible()
    operator.follow("Break…")
    operator.picture("break-may-hold")
    operator.assert_accessible()
    actor.tell("drop", KEY)
    actor.hear("free", KEY)
    others[0].tell("drop", KEY)
    others[0].hear("free", KEY)
    others[1].hear("held", KEY)
    operator.open_lock(NODE)
    operator.follow("Set limit…")
    operator.page.get_by_label("Reason").fill("mended")
    operator.press("Clear it")
    assert "was cleared" in operator.messages()
    operator.follow("History")
    reasons = operator.page.get_by_text("the second printer is back").or_(operator.page.get_by_text("mended"))
    operator.wait_until(lambda: operator.open(address(NODE, "history"), refresh=False) and reasons.count() == 2)


def test_one_of_two_holders_is_asked_to_release(swept: Zoo, actor: Actor, others: list[Actor], visitor: Visit) -> None:
    """It hears the user and the reason, and goes on. The other holder hears nothing."""
    actor.hold(KEY, "shop.views.label", limit=2)
    others[0].hold(KEY, "shop.tasks.print", limit=2)
    operator = visitor("operator")
    operator.open_lock(NODE)
    operator.ask("shop.tasks.print", "the deploy waits")
    assert "Release of " in operator.messages()
    heard = others[0].hear("asked", KEY)
    assert "operator" in heard
    assert "the deploy waits" in heard
    assert "Its work goes on until it can release" in operator.messages()
    operator.picture("asked")
    operator.assert_accessible()
    section = operator.page.locator("section.module").filter(has_text="shop.tasks.print")
    assert "operator: the deploy waits" in section.inner_text()
    other = operator.page.locator("section.module").filter(has_text="shop.views.label")
    assert "the deploy waits" not in other.inner_text()
    assert len(swept.children(NODE)) == 2
    others[0].tell("drop", KEY)
    others[0].hear("free", KEY)
    eventually(lambda: len(swept.children(NODE)) == 1)
