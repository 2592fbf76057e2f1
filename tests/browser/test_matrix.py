"""Each page in each language, width, theme and colour scheme: nothing is cut, broken, covered or hard to read."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.browser import pages
from support.browser.actors import Part, Stage
from support.browser.pages import LIST, address, visit
from support.browser.rows import ACTIONS, ATTEMPTS, attempt, recorded
from support.browser.scene import busy_shop
from support.browser.site import Site
from support.proxy import Proxy
from support.zoo import Zoo

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.zookeeper

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
    "history": f"{LIST}history/",
    "lock-history": address(LONG, "history"),
    "host": f"{LIST}host/?host=worker-3",
    "hosts": f"{LIST}groups/?by=host",
    "groups": f"{LIST}groups/",
    "health": f"{LIST}health/",
    "break": address(LONG, "break"),
    "hold": address(LONG, "hold"),
    "limit": address("printers", "limit"),
    "reservations": f"{LIST}unique/",
    "reservation": f"{LIST}unique/?key=task/shop.tasks.update_feed/feed/shoes",
}
MAIN = ("attention", "list", "lock", "semaphore", "history", "break")
MEASURE = Path(pages.__file__).with_name("measure.js").read_text()


@pytest.fixture(scope="module", params=THEMES)
def themed(request: Any, den: Zoo, wire: Proxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site under this theme."""
    site = Site(tmp_path_factory.mktemp(request.param), den.url(wire.address))
    site.environment["UNFOLD"] = "1" if request.param == "unfold" else ""
    with site:
        yield site


@pytest.fixture
def scene(stage: Stage, themed: Site) -> Iterator[Site]:
    """A busy shop with a deadlock, a chain of three, a queue of one process, a long key, and a past of all kinds."""
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
    rows = [
        (ATTEMPTS, 60.0 * number + 30, attempt(key, "worker-3", work=work, token=number))
        for number in range(9)
        for key in (LONG, "orders/1043")
    ]
    reason = "the lease is over: no quorum has confirmed the session in time"
    rows.append((ATTEMPTS, 700.0, attempt(LONG, "worker-4", held=61.0, outcome="lost", work=work, reason=reason)))
    asked = {"key": LONG, "what": "release requested", "via": "admin", "by": "admin", "sure": True, "token": 8}
    rows.append(
        (ACTIONS, 100.0, {**asked, "reason": "it hangs", "holder": f"'{work}' on worker-3.internal, process 8"})
    )
    with recorded(themed, *rows):
        yield themed


def faults_of(
    browser: Browser, site: Site, name: str, language: str, widths: tuple[int, ...]
) -> Iterator[tuple[str, str]]:
    """
    Yield each fault of a page in light and dark, and where it is. What can be done at one width can be done at each.

    Contrasts, and those of the rings of the focus, are measured in English on two widths.
    """
    acts = None
    for scheme in ("light", "dark"):
        look = {"locale": language, "color_scheme": scheme, "viewport": {"width": widths[0], "height": 900}}
        viewer = visit(browser, site, "operator", **look)
        assert viewer.open(PAGES[name]).status == 200
        for width in widths:
            viewer.page.set_viewport_size({"width": width, "height": 900})
            viewer.picture(f"{name}-{language}-{width}-{scheme}")
            colours = width in {1280, 390} and language == "en"
            measured = viewer.page.evaluate(MEASURE, {"acts": acts, "colours": colours})
            acts = acts or measured["shown"]
            for fault in measured["faults"]:
                yield fault, f"{language} {width} {scheme}"
        viewer.page.context.close()


@pytest.mark.parametrize("themed", THEMES[:1], indirect=True)
@pytest.mark.parametrize("name", MAIN)
def test_the_main_pages_can_be_read(browser: Browser, scene: Site, name: str) -> None:
    """In English, on a desk and on a phone."""
    assert list(faults_of(browser, scene, name, "en", (1280, 390))) == []


@pytest.mark.chaos
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PAGES)
def test_every_page_can_be_read(browser: Browser, scene: Site, name: str) -> None:
    """In each theme and language; at a zoom of 200 %, too, which is as on a screen of 640 pixels."""
    faults: dict[str, list[str]] = defaultdict(list)
    for language in LANGUAGES:
        for fault, where in faults_of(browser, scene, name, language, WIDTHS):
            faults[fault].append(where)
    assert not faults, "\n".join(f"{fault} ({', '.join(where)})" for fault, where in faults.items())
