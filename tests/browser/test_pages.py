"""All pages: in dark and light, on narrow and wide windows, by keyboard and screen reader, in all languages."""

import itertools
from collections import defaultdict
from contextlib import contextmanager
from importlib.util import find_spec

import pytest
from support.browser.actors import Part
from support.browser.pages import LIST, PHONE, address, visit
from support.browser.policy import THEMED
from support.browser.rows import event, recorded
from support.browser.scene import busy_shop
from support.browser.site import Site

KEY = "orders/1042"
LONG = f"orders/{'a-very-long-key-' * 7}z"  # 120 characters
WIDTHS = (1280, 640, 390, 320)
LANGUAGES = ("en", "de", "fr", "ar")
THEMES = ("django", *(["unfold"] if find_spec("unfold") else []))
PAGES = {
    "attention": LIST,
    "list": f"{LIST}?q=",
    "nothing-found": f"{LIST}?q=nobody",
    "lock": address(LONG),
    "free": address("free"),
    "deadlock": address("stock/berlin"),
    "victim": address("leaf"),
    "queue": address("inventory/lamp"),
    "semaphore": address("printers"),
    "readers": address("prices"),
    "host": f"{LIST}?host=worker-3",
    "break": address(LONG, "break"),
    "hold": address(LONG, "hold"),
    "limit": address("printers", "limit"),
}
MAIN = ("attention", "list", "lock", "semaphore", "break")


@contextmanager
def scene(stage, site):
    busy_shop(stage)
    long = Part.task("shop.tasks.charge_the_card_of_a_customer", "worker-with-a-long-name-3.internal", 812)
    first, second, third = (Part.task("shop.tasks.move_stock", f"worker-{number}", number) for number in (3, 4, 5))
    queues = {
        "stock/berlin": (first, second),
        "stock/paris": (second, first),
        "root": (long, third),
        "leaf": (third, first),
    }
    for index, key in itertools.product((0, 1), queues):
        stage.join_queue(key, queues[key][index])
    for part in (long, third, long, long):
        stage.join_queue(LONG, part)
    work = "task shop.tasks.charge_the_card_of_a_customer 1b68d6cb-24cb-4041-8ce1-1dd19c9c43fb"
    grants = [(60.0 * number + 30, event(LONG, "worker-3", work=work, token=number)) for number in range(9)]
    reason = "the lease is over: no quorum has confirmed the session in time"
    lost = event(LONG, "worker-4", held=61.0, outcome="lost", work=work, reason=reason)
    asked = event(
        LONG, "worker-3", outcome="action", token=None, work=f"Release requested of {work}", by="admin", reason="hangs"
    )
    rows = [*grants, (700.0, lost), (100.0, asked)]
    with recorded(site, *rows):
        yield


def test_the_main_pages_can_be_read(stage, site, visitor):
    operator = visitor("operator")
    with scene(stage, site):
        for name in MAIN:
            assert operator.open(PAGES[name]).status == 200, name
            operator.picture(f"{name}-light")
            faults, acts = operator.measure()
            operator.assert_accessible()
            operator.page.set_viewport_size({"width": 390, "height": 844})
            operator.page.emulate_media(color_scheme="dark")
            operator.picture(f"{name}-phone-dark")
            assert (faults, operator.measure(acts=acts)[0]) == ([], []), name
            operator.page.set_viewport_size({"width": 1280, "height": 900})
            operator.page.emulate_media(color_scheme="light")


@pytest.fixture(scope="module", params=THEMES)
def themed(request, den, wire, tmp_path_factory):
    site = Site(tmp_path_factory.mktemp(request.param), den.url(wire.address))
    site.environment["UNFOLD"] = "1" if request.param == "unfold" else ""
    with site:
        yield site


@pytest.mark.chaos
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PAGES)
def test_every_page_can_be_read(browser, stage, themed, name):
    """A zoom of 200 % is as a screen of 640 pixels. What can be done at one width can be done at each."""
    places = defaultdict(list)
    acts = None
    with scene(stage, themed):
        for language, scheme in itertools.product(LANGUAGES, ("light", "dark")):
            viewer = visit(browser, themed, "operator", locale=language, color_scheme=scheme)
            assert viewer.open(PAGES[name]).status == 200
            assert str(viewer.page.locator("html").get_attribute("lang")).startswith(language)
            for width in WIDTHS:
                viewer.page.set_viewport_size({"width": width, "height": 900})
                viewer.picture(f"{name}-{language}-{width}-{scheme}")
                in_colours = width in {1280, 390} and language == "en"
                faults, shown = viewer.measure(acts=acts if width != WIDTHS[0] else None, colours=in_colours)
                acts = shown if width == WIDTHS[0] else acts
                for fault in faults:
                    places[fault].append(f"{language} {width} {scheme}")
                if in_colours:
                    viewer.assert_accessible()
            viewer.page.context.close()
    assert not places, "\n".join(f"{fault} ({', '.join(where)})" for fault, where in places.items())


@pytest.mark.chaos
@pytest.mark.parametrize("language", ["de", "fr"])
def test_every_page_is_translated(stage, site, visitor, language):
    readers = [visitor("operator", locale=locale) for locale in (language, "en-GB")]
    labels = "#content :is(h2, dt, label, th, .column-state, [type=submit])"
    with scene(stage, site):
        for name, path in PAGES.items():
            for reader in readers:
                reader.open(path)
            said, english = (set(reader.page.locator(labels).all_inner_texts()) for reader in readers)
            assert said != english or name == "nothing-found", name


def test_a_search_leads_to_a_reservation_and_ends_it(day, visitor):
    operator = visitor("operator", viewport=PHONE)
    operator.open(f"{LIST}?q=update_feed")
    operator.follow("unique/task/shop.tasks.update_feed/feed/shoes")
    operator.follow("End this hold…")
    operator.page.get_by_label("Reason").fill("the queue was purged")
    operator.press("End the hold")
    operator.open(f"{LIST}?q=update_feed")
    assert "update_feed" not in " ".join(operator.shown_keys())


@pytest.mark.skipif(THEMED, reason="this theme shows nothing without its own scripts")
def test_the_list_is_complete_without_scripts(day, visitor):
    viewer = visitor("viewer", java_script_enabled=False)
    viewer.open()
    assert KEY in viewer.shown_keys()
    assert viewer.row(KEY).locator("time").first.inner_text()
