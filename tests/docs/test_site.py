"""The site of the documentation: what it needs to build, and what a reader's browser loads."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [*DOCS.rglob("*.md"), ROOT / "README.md"]
IMAGE = re.compile(r"!\[([^\]]*)\](?:\(([^)]+)\)|\[\w+\])")
ELSEWHERE = re.compile(r"^(?:[a-z]+:)?//", re.IGNORECASE)
IN_STYLES = re.compile(r"""(?:@import\s+|url\()\s*["']?([^"')\s]+)""")


class Resources(HTMLParser):
    """The addresses that a browser loads by itself when it shows a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "link" and values.get("rel") not in ("canonical", "next", "prev"):
            self.addresses.append(values.get("href", ""))
        self.addresses += [values[name] for name in ("src", "srcset", "poster", "data") if name in values]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it. A warning is an error."""
    pytest.importorskip("furo", reason="the theme of the site, which is in the group `docs`")
    directory = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "-b", "dirhtml", str(DOCS), str(directory)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return directory


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_page_loads_nothing_from_another_host(site: Path) -> None:
    """A reader needs no other host, and none learns what the reader looks at."""
    loaded = {address for page in site.rglob("*.html") for address in Resources(page).addresses}
    loaded |= {address for style in site.rglob("*.css") for address in IN_STYLES.findall(style.read_text())}
    assert len(loaded) > 20
    assert [address for address in loaded if ELSEWHERE.match(address)] == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_code_can_be_copied_with_a_button(site: Path) -> None:
    scripts = Resources(site / "tutorial" / "index.html").addresses
    assert any("copybutton.js" in address for address in scripts)


def test_the_diagrams_are_those_that_the_script_draws() -> None:
    """`python scripts/diagrams.py` makes them again, and each is on a page."""
    drawn: dict[str, str] = runpy.run_path(str(ROOT / "scripts" / "diagrams.py"))["diagrams"]()
    assert {path.name: path.read_text() for path in (DOCS / "images").glob("*.svg")} == drawn
    shown = {Path(address).name for page in PAGES for _, address in IMAGE.findall(page.read_text())}
    assert set(drawn) <= shown


def test_every_image_has_a_text_for_readers_who_do_not_see_it() -> None:
    texts = [text for page in PAGES for text, _ in IMAGE.findall(page.read_text())]
    assert len(texts) > 5
    assert [text for text in texts if len(text) < 10] == []
