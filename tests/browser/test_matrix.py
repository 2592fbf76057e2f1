"""Each page in each language, width, theme and colour scheme: nothing is cut, broken, covered or hard to read."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

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
    "hosts": f"{LIST}host/",
    "groups": f"{LIST}groups/",
    "health": f"{LIST}health/",
    "break": address(LONG, "break"),
    "hold": address(LONG, "hold"),
    "limit": address("printers", "limit"),
    "reservations": f"{LIST}unique/",
    "reservation": f"{LIST}unique/?key=task/shop.tasks.update_feed/feed/shoes",
}
MEASURE = Path(pages.__file__).with_name("measure.js").read_text()


@pytest.fixture(scope="module")
def sites(site: Site, den: Zoo, wire: Proxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Site]]:
    """A site under each theme that is installed."""
    with ExitStack() as stack:
        sites = {}
        for theme in THEMES:
            sites[theme] = Site(tmp_path_factory.mktemp(theme), den.url(wire.address))
            sites[theme].environment["UNFOLD"] = "1" if theme == "unfold" else ""
            stack.enter_context(sites[theme])
        yield sites


@pytest.fixture
def scene(stage: Stage, sites: dict[str, Site]) -> Iterator[None]:
    """A busy shop with a deadlock, a chain of three, a long queue of one process, long keys, and a past of all kinds."""
    busy_shop(stage)
    long = Part.task("shop.tasks.charge_the_card_of_a_customer", "worker-with-a-long-name-3.internal", 812)
    one, other, third = (Part.task("shop.tasks.move_stock", f"worker-{number}", number) for number in (3, 4, 5))
    queues = {"stock/berlin": (one, other), "stock/paris": (other, one), "root": (long, third), "leaf": (third, one)}
    for place, key in itertools.product((0, 1), queues):
        stage.join_queue(key, queues[key][place])
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
    with ExitStack() as stack:
        for site in sites.values():
            stack.enter_context(recorded(site, *rows))
        yield


def faults_of(
    browser: Browser, site: Site, name: str, language: str, widths: tuple[int, ...], theme: str
) -> Iterator[tuple[str, str]]:
    """Yield each fault of a page, and where it is. What can be done at one width can be done at each."""
    viewer = visit(browser, site, "operator", locale=language, viewport={"width": widths[0], "height": 900})
    assert viewer.open(PAGES[name]).status == 200
    acts = None
    for width, scheme in itertools.product(widths, ("light", "dark")):
        viewer.page.set_viewport_size({"width": width, "height": 900})
        viewer.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        viewer.picture(f"{name}-{theme}-{language}-{width}-{scheme}")
        colours = width in {1280, 390} and language == "en"
        found = viewer.page.evaluate(MEASURE, {"acts": acts, "colours": colours})
        acts = acts or found["shown"]
        for fault in found["faults"]:
            yield fault, f"{language} {width} {scheme}"
    viewer.page.context.close()


@pytest.mark.usefixtures("scene")
@pytest.mark.parametrize(
    ("languages", "widths"),
    [
        pytest.param(("en",), (1280, 390), id="part"),
        pytest.param(LANGUAGES, WIDTHS, id="whole", marks=pytest.mark.chaos),
    ],
)
@pytest.mark.parametrize("theme", THEMES)
def test_every_page_can_be_read(
    browser: Browser, sites: dict[str, Site], theme: str, languages: tuple[str, ...], widths: tuple[int, ...]
) -> None:
    """In light and dark, with a key of 120 characters; 640 pixels are a zoom of 200 %. The rings of the focus have 3:1."""
    faults: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, language in itertools.product(PAGES, languages):
        for fault, where in faults_of(browser, sites[theme], name, language, widths, theme):
            faults[name, fault].append(where)
    assert not faults, "\n".join(f"{name}: {fault} ({', '.join(where)})" for (name, fault), where in faults.items())
