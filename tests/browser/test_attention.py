"""The first page is read in five seconds: contrast, the first card on a phone, keyboard, and no JavaScript."""

import re
from dataclasses import replace

import pytest
from support.browser.actors import Part
from support.browser.pages import LIGHT, LIST, PHONE
from support.browser.policy import THEMED

pytestmark = pytest.mark.chaos

SLOW = replace(Part.task("shop.tasks.import_prices", "worker-1", 455), waited=1)
THERE = Part.task("shop.tasks.move_stock", "worker-3", 812)
BACK = Part.task("shop.tasks.move_stock", "worker-4", 911)
CONTRASTS = f"""() => {{{LIGHT}
    const texts = document.querySelectorAll('.zklock-strip :is(strong, span), .zklock-card h2 span');
    return [...texts].map(text => ratio(getComputedStyle(text).color, background(text)));
}}"""


def deadlock(stage):
    for key, part in (("stock/berlin", THERE), ("stock/paris", BACK), ("stock/paris", THERE), ("stock/berlin", BACK)):
        stage.join_queue(key, part)


def chain(stage):
    victim = Part.task("shop.tasks.refund", "worker-2", 604)
    for key, part in (("root/1", SLOW), ("mid/1", victim), ("root/1", victim), ("mid/1", Part("web-1", 77))):
        stage.join_queue(key, part)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_heads_of_cards_have_dark_text_on_a_tint(stage, hasty, scheme):
    """7:1, as WCAG 1.4.6 asks, for the verdict and the cards; calm, too. A symbol and a word say the severity."""
    viewer = hasty(color_scheme=scheme)
    viewer.open(LIST)
    assert min(viewer.page.evaluate(CONTRASTS)) >= 7, "calm"
    deadlock(stage)
    chain(stage)
    viewer.open(LIST)
    viewer.picture(f"attention-{scheme}")
    assert min(viewer.page.evaluate(CONTRASTS)) >= 7
    assert viewer.page.locator(".zklock-word").all_inner_texts() == ["BLOCKED", "SLOW"]
    symbols = "words => words.map(word => getComputedStyle(word, '::before').content)"
    assert viewer.page.locator(".zklock-word").evaluate_all(symbols) == ['"■ "', '"▲ "']
    viewer.assert_accessible()


@pytest.mark.parametrize("language", ["en", "de", "fr", "ar"])
@pytest.mark.parametrize("incident", [deadlock, chain])
def test_a_phone_shows_cause_and_main_button_at_once(stage, hasty, language, incident):
    incident(stage)
    viewer = hasty(viewport=PHONE, locale=language)
    viewer.open(LIST)
    viewer.picture(f"attention-{language}-{incident.__name__}", full_page=False)
    card = viewer.page.locator(".zklock-card").first
    for shown in (viewer.page.locator(".zklock-strip"), card.locator("h2"), card.locator(".button").first):
        box = shown.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= 600
    viewer.assert_fits()


@pytest.mark.skipif(THEMED, reason="this theme shows nothing without its own scripts")
def test_without_scripts_commands_are_text(stage, hasty):
    chain(stage)
    viewer = hasty(java_script_enabled=False)
    viewer.open(LIST)
    viewer.page.get_by_text("Commands").click()
    assert viewer.page.locator("code", has_text="zklock request-release --token=").is_visible()
    assert not viewer.page.get_by_role("button", name="Copy").count()


def test_a_command_is_copied_by_keyboard_and_a_screen_reader_hears_it(stage, hasty):
    chain(stage)
    viewer = hasty(permissions=["clipboard-read", "clipboard-write"])
    viewer.open(LIST)
    viewer.page.get_by_text("Commands").press("Enter")
    button = viewer.page.get_by_role("button", name=re.compile("Copy .* zklock break"))
    button.press("Enter")
    viewer.page.get_by_role("status").filter(has_text="Copied").wait_for()
    assert viewer.page.evaluate("navigator.clipboard.readText()").startswith("python manage.py zklock break --token=")
    assert button.evaluate("button => button === document.activeElement")


@pytest.mark.skipif(THEMED, reason="this theme shows nothing without its own scripts")
def test_an_operator_breaks_a_deadlock_without_scripts(stage, visitor, swept):
    deadlock(stage)
    operator = visitor("operator", java_script_enabled=False)
    operator.open(LIST)
    operator.follow("Break…")
    operator.page.keyboard.type("it hangs")
    with operator.page.expect_navigation():
        operator.page.keyboard.press("Enter")
    assert "Broken: stock/berlin." in operator.messages()
    operator.wait_until(lambda: len(swept.children("stock/berlin")) == 1)
