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
    ("install", FIRST, "installation/"),
    ("lock timeout", FIRST, "reference/settings/#options-waiting"),
    ("LockBusy", FIRST, "reference/exceptions/#the-lock-was-not-acquired"),
    ("double charge", FIRST, "how-to/fence-your-rows/"),
    ("celery", NEAR, "how-to/celery/"),
    ("celery task twice", FIRST, "how-to/survive-redelivery/"),
    ("beat twice", FIRST, "how-to/celery-beat/"),
    ("unique tasks", FIRST, "how-to/unique-tasks/"),
    ("who holds the lock", FIRST, "how-to/admin/"),
    ("break lock", NEAR, "how-to/intervene/"),
    ("redis", FIRST, "explanation/why-zookeeper/"),
    ("redis", NEAR, "how-to/move-from-cache-lock/"),
    ("kazoo", NEAR, "how-to/move-from-kazoo/"),
    ("celery-once", FIRST, "how-to/move-from-celery-once/"),
    ("how to test", FIRST, "how-to/test-your-code/"),
    ("docker compose", FIRST, "how-to/run-zookeeper/"),
    ("gunicorn", FIRST, "how-to/deploy/#gunicorn"),
    ("semaphore", FIRST, "how-to/semaphores/"),
    ("ATOMIC_REQUESTS", FIRST, "how-to/transactions/"),
    ("prometheus", FIRST, "how-to/observe/"),
    ("changelog", FIRST, "changelog/"),
    ("pglocks", FIRST, "how-to/move-from-django-pglock/"),
    ("branch", FIRST, "how-to/environments/"),
    ("mypy", FIRST, "reference/types/"),
    ("ready()", FIRST, "how-to/lock-any-code/"),
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
