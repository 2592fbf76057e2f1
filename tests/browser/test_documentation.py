"""The site of the documentation in a browser: what its search finds, and what its first screen shows."""

import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]  # the first test builds the site

FIRST, NEAR = 1, 3  # the place of a page among the results, at least

SEARCHES = [
    ("409", FIRST, "how-to/lock-a-view/#the-answer"),
    ("409", NEAR, "how-to/troubleshooting/"),
    ("503", FIRST, "how-to/when-zookeeper-is-down/"),
    ("http 503", FIRST, "how-to/when-zookeeper-is-down/"),
    ("install", FIRST, "installation/"),
    ("pip install", FIRST, "installation/"),
    ("windows", FIRST, "installation/#requirements"),
    ("django-environ", FIRST, "installation/"),
    ("lock timeout", FIRST, "reference/settings/#options-waiting"),
    ("timeout", FIRST, "reference/settings/#options-waiting"),
    ("SESSION_TIMEOUT", FIRST, "reference/settings/#the-ensemble"),
    ("abort_on", FIRST, "reference/settings/#options-aborting-and-transactions"),
    ("zklock.W005", FIRST, "reference/settings/#ids-of-the-system-checks"),
    ("LockBusy", FIRST, "reference/exceptions/#the-lock-was-not-acquired"),
    ("LockLost", FIRST, "reference/exceptions/#the-lock-is-lost-or-not-held"),
    ("LockTimeout", NEAR, "how-to/troubleshooting/"),
    ("deadlock", FIRST, "how-to/troubleshooting/#a-deadlock"),
    ("double charge", FIRST, "how-to/fence-your-rows/"),
    ("card charged twice", NEAR, "how-to/fence-your-rows/"),
    ("race", FIRST, "how-to/fence-your-rows/"),
    ("race condition", FIRST, "how-to/fence-your-rows/"),
    ("celery", NEAR, "how-to/celery/"),
    ("celery task twice", FIRST, "how-to/survive-redelivery/"),
    ("task executed twice", FIRST, "how-to/survive-redelivery/"),
    ("beat twice", FIRST, "how-to/celery-beat/"),
    ("unique tasks", FIRST, "how-to/unique-tasks/"),
    ("duplicate task", FIRST, "how-to/unique-tasks/"),
    ("lock stuck after crash", FIRST, "how-to/troubleshooting/"),
    ("crash lock stuck", NEAR, "how-to/troubleshooting/"),
    ("who holds the lock", FIRST, "how-to/admin/"),
    ("break lock", NEAR, "how-to/intervene/"),
    ("redis", FIRST, "explanation/why-zookeeper/"),
    ("redis", NEAR, "how-to/move-your-locks/"),
    ("select_for_update", FIRST, "explanation/why-zookeeper/"),
    ("kazoo", NEAR, "how-to/move-from-other-locks/"),
    ("celery-once", FIRST, "how-to/move-from-other-locks/#celery-once-and-celery-singleton"),
    ("how to test", FIRST, "how-to/test-your-code/"),
    ("pytest", NEAR, "how-to/test-your-code/"),
    ("docker compose", FIRST, "how-to/run-zookeeper/"),
    ("kubernetes", FIRST, "how-to/run-zookeeper/#kubernetes"),
    ("gunicorn", FIRST, "how-to/deploy/#gunicorn"),
    ("semaphore", FIRST, "how-to/more-ways-to-lock/#semaphores"),
    ("rate limit", FIRST, "how-to/more-ways-to-lock/#semaphores"),
    ("ATOMIC_REQUESTS", FIRST, "how-to/transactions/"),
    ("prometheus", FIRST, "how-to/observe/"),
    ("admin", FIRST, "how-to/admin/"),
    ("changelog", FIRST, "how-to/upgrade/"),
    ("pglocks", FIRST, "how-to/move-from-other-locks/#postgresql"),
    ("migrate once", FIRST, "how-to/deploy/#migrate-once"),
    ("branch", FIRST, "how-to/deploy/#each-environment"),
    ("laptop", FIRST, "how-to/deploy/#each-environment"),
    ("mypy", FIRST, "reference/locks/#types"),
    ("is False", FIRST, "how-to/move-your-locks/"),
    ("ready()", FIRST, "how-to/lock-any-code/"),
    ("RunPython", FIRST, "how-to/deploy/#migrate-once"),
    ("purge", FIRST, "how-to/intervene/#purge-all-locks"),
]


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, format, *args):
        pass


@pytest.fixture(scope="module")
def documentation(tmp_path_factory):
    pytest.importorskip("furo", reason="the theme of the site, which is in the group `docs`")
    directory = tmp_path_factory.mktemp("documentation")
    build = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "-b", "dirhtml", str(DOCS), str(directory)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(directory))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture
def page(browser):
    with browser.new_page(viewport={"width": 1280, "height": 800}) as page:
        yield page


def results(page, query):
    page.get_by_placeholder("Search").fill(query)
    with page.expect_navigation():
        page.keyboard.press("Enter")
    page.wait_for_function("document.querySelector('.search-summary')?.innerText")
    links = page.eval_on_selector_all(
        "ul.search li > a", "links => links.map(link => link.href.slice(link.baseURI.indexOf('search/')))"
    )
    return links


def test_a_search_finds_the_page_that_answers_it(page, documentation):
    page.goto(documentation)
    missed = []
    for query, rank, answer in SEARCHES:
        best = results(page, query)[:rank]
        if not any(address == answer or address.startswith(f"{answer}#") for address in best):
            missed.append(f"{query}: {answer} is not among {best}")
    assert missed == []


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_the_first_screen_has_the_install_line_and_the_code(page, documentation, width, height):
    page.set_viewport_size({"width": width, "height": height})
    page.goto(documentation)
    blocks = page.locator("article pre")
    for number, text in enumerate(("pip install", "ZKLOCK =", "@zk_locked")):
        assert text in blocks.nth(number).inner_text()
        box = blocks.nth(number).bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < height
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_the_menu_leads_to_the_project(page, documentation):
    page.goto(f"{documentation}reference/settings/")
    for name in ("Installation", "Changelog", "Roadmap", "Repository"):
        assert page.locator(".sidebar-tree").get_by_role("link", name=name, exact=True).count() == 1
