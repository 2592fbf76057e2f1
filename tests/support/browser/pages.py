"""The pages of the site in a browser, and what is wrong with them."""

from __future__ import annotations

import json
import os
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from urllib.parse import quote as quoted
from urllib.request import urlopen

from django.contrib.admin.utils import quote
from playwright.sync_api import expect

from django_zklock.dashboard.acts import ACTS
from support.browser.policy import THEMED

LIST = "/admin/zklock/lock/"
ALL = f"{LIST}?q="
SCREENSHOTS = os.environ.get("SCREENSHOTS", "")
"""A directory for pictures of the pages, for people to look at; none are made without."""

MEASURE = Path(__file__).with_name("measure.js")
PHONE = {"width": 390, "height": 844}

LIGHT = """
    const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
    const luminance = color => {
        canvas.fillStyle = color;
        canvas.fillRect(0, 0, 1, 1);
        const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map(
            part => (part /= 255) <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const background = element => {
        const color = getComputedStyle(element).backgroundColor;
        return color === 'rgba(0, 0, 0, 0)' && element.parentElement ? background(element.parentElement) : color;
    };
    const ratio = (...colors) => {
        const [less, more] = colors.map(luminance).sort((one, other) => one - other);
        return (more + 0.05) / (less + 0.05);
    };
"""
"""JavaScript: the `background` of an element, and the `ratio` of two colours, as WCAG measures contrast."""


@cache
def axe():
    return resources.files("axe_playwright_python").joinpath("axe.min.js").read_text()


def address(key, what="change"):
    """Return the path of a page of a lock: "change", which only shows it, or the name of an act."""
    if what in ACTS:
        return f"{LIST}act/{what}/?key={quoted(key, safe='')}"
    return f"{LIST}{quoted(quote(key))}/{what}/"


@dataclass
class Visitor:
    site: object
    page: object
    complaints: list[str] = field(default_factory=list)
    """The browser's complaints about the pages: violations of the policy, scripts that failed."""

    def __post_init__(self):
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.complaints.append(f"script failed: {error}"))
        self.page.on("dialog", self._on_dialog)

    def _on_console(self, message):
        # That a page was refused, or is not there, is what some tests are about.
        if message.type in {"error", "warning"} and "Failed to load resource" not in message.text:
            self.complaints.append(f"{message.location['url']}: {message.type}: {message.text}")

    def _on_dialog(self, dialog):
        self.complaints.append(f"a dialog: {dialog.message}")
        dialog.dismiss()

    def open(self, path=ALL, *, refresh=True):
        """Open a page. Without `refresh`, it may show a snapshot that is up to a second old."""
        if refresh:
            self._refresh_snapshot()
        response = self.page.goto(self.site.url + path)
        assert response is not None
        return response

    def _refresh_snapshot(self):
        with urlopen(f"{self.site.url}/refresh-snapshot", timeout=10):
            pass

    def wait_until(self, condition, timeout=10.0):
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, f"not within {timeout:g} s"
            self.page.wait_for_timeout(50)

    # --- the pages that refresh themselves ----------------------------------------------------------------------

    def refresh_every(self, seconds):
        self.page.get_by_label("Refresh").select_option(str(seconds))

    def interval(self):
        return self.page.get_by_label("Refresh").input_value()

    def install_clock(self):
        self.page.clock.install()

    def put_forward(self, seconds):
        self.page.clock.run_for(round(seconds * 1000))

    def await_refresh(self, seconds):
        """Put the page's clock forward by one interval, and wait until the script has brought the list up to date."""
        self._refresh_snapshot()
        refreshed = "new Promise(done => addEventListener('zklock:refreshed', () => done(), {once: true}))"
        for _ in range(2):  # the first may have been under way, with an older snapshot; the second begins after it
            self.page.evaluate(f"void (window.refreshed = {refreshed})")
            self.put_forward(seconds)
            self.page.evaluate("window.refreshed")

    def count_requests(self):
        asked = []
        self.page.on("request", lambda request: asked.append(request.url) if request.resource_type == "fetch" else None)

        def count():
            self.page.evaluate(
                "fetch('/refresh-snapshot').then(answer => answer.text())"
            )  # requests are told in their order
            return sum("refresh-snapshot" not in url for url in asked)

        return count

    def hide(self, hidden):
        """Put the page in the background, or bring it back: a browser without windows has nothing to hide behind."""
        self.page.evaluate(
            """hidden => {
                Object.defineProperty(document, 'hidden', {configurable: true, get: () => hidden});
                Object.defineProperty(
                    document, 'visibilityState', {configurable: true, get: () => hidden ? 'hidden' : 'visible'});
                document.dispatchEvent(new Event('visibilitychange', {bubbles: true}));
            }""",
            hidden,
        )

    def focused(self):
        element = self.page.evaluate(
            """() => {
                const at = document.activeElement, style = getComputedStyle(at);
                return {
                    tag: at.tagName, id: at.id, text: at.textContent.trim(),
                    outlined: style.outlineStyle !== 'none' || style.boxShadow !== 'none',
                };
            }"""
        )
        return element

    # --- breaking and holding -----------------------------------------------------------------------------------

    def follow(self, link):
        """Go where the first link of this name leads, and be there; themes have tools outside the content."""
        self._go(self.page.locator("#main").get_by_role("link", name=link).first)

    def press(self, button):
        self._go(self.page.get_by_role("button", name=button))

    def _go(self, thing):
        with self.page.expect_navigation():  # what a click sets off may begin after it
            thing.click()

    def confirm(self, reason):
        self.page.get_by_label("Reason").fill(reason)
        self.press("Break")

    def ask(self, reason):
        self.follow("Request release…")
        self.page.get_by_label("Reason").fill(reason)
        self.press("Request release")

    def messages(self):
        selector = "#main > .px-4:not(:has(#content))" if THEMED else ".messagelist li"
        return "\n".join(self.page.locator(selector).all_inner_texts())

    # --- what a page is like ------------------------------------------------------------------------------------

    def row(self, key):
        return self.page.locator("#result_list tbody tr").filter(
            has=self.page.get_by_role("link", name=key, exact=True)
        )

    def shown_keys(self):
        return [text.strip() for text in self.page.locator("#result_list tbody th").all_inner_texts()]

    def picture(self, name, *, full_page=True):
        if SCREENSHOTS:
            self.page.screenshot(path=Path(SCREENSHOTS) / f"{name}.png", full_page=full_page, caret="initial")

    def assert_accessible(self):
        complaints = list(self.complaints)
        self.page.evaluate(axe())
        # What is wrong with a theme's own frame is not ours.
        themed = THEMED or self.site.environment.get("UNFOLD")
        context = "{include: [['#content']]}" if themed else "document"
        report = self.page.evaluate(f"axe.run({context}, {{resultTypes: ['violations'], preload: false}})")
        self.complaints[:] = complaints  # axe-core tries out styles of its own, which the policy forbids
        violations = [
            f"{violation['id']} ({violation['impact']}): {violation['help']}: "
            + json.dumps(
                [
                    node["html"][:200] + str(node["any"][0]["message"] if node["any"] else "")
                    for node in violation["nodes"]
                ]
            )
            for violation in report["violations"]
        ]
        assert not violations, "\n".join(violations)

    def measure(self, *, acts=None, colours=True):
        """Return the faults of the page, and what can be done on it. A fault is, too, that one of `acts` is missing."""
        measured = self.page.evaluate(MEASURE.read_text(), {"acts": acts, "colours": colours})
        return measured["faults"], measured["shown"]

    def assert_fits(self):
        wide, window = self.page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
        assert wide <= window, f"the page has {wide} pixels, the window {window}"


def visit(browser, site, user, **context):
    options = {"viewport": {"width": 1280, "height": 900}, "locale": "en-GB", **context}
    browser_context = browser.new_context(**options)
    browser_context.set_default_timeout(30_000)  # a busy machine takes its time
    expect.set_options(timeout=30_000)
    cookies = [{"name": "csrftoken", "value": "a" * 32, "url": site.url}]
    if user is not None:
        cookies.append({"name": "sessionid", "value": site.sessions[user], "url": site.url})
    browser_context.add_cookies(cookies)
    return Visitor(site, browser_context.new_page())


@contextmanager
def visiting(browser, site):
    visitors = []

    def come(user="operator", **context):
        visitors.append(visit(browser, site, user, **context))
        return visitors[-1]

    yield come
    for visitor in visitors:
        visitor.page.context.close()
    complaints = [complaint for visitor in visitors for complaint in visitor.complaints]
    assert not complaints, "\n".join(complaints)
