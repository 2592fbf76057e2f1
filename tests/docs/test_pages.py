"""The documentation: the links of its pages, their lines, the index, the diagrams, and the words of the search."""

import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("[a-z]*/README.md")])
LONGEST = 140  # characters of a line
RELATIVE = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)")
SITE = re.compile(r"https://django-zklock\.readthedocs\.io/en/latest/([\w/-]*?)/?(?:#([\w-]+))?(?=[\s)]|$)")
ABSOLUTE = re.compile(r"https://github\.com/django-zklock/django-zklock/blob/main/([^)\s#]+)(?:#([\w-]+))?")


@functools.cache
def anchors(page):
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def links_of(page):
    """Yield the page that each link leads to, and the anchor there."""
    text = page.read_text()
    for path, anchor in RELATIVE.findall(text):
        yield (page.parent / path if path else page), anchor
    for path, anchor in ABSOLUTE.findall(text):
        yield ROOT / path, anchor
    for path, anchor in SITE.findall(text):
        yield DOCS / f"{path or 'index'}.md", anchor


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_work(page):
    for path, anchor in links_of(page):
        target = path.resolve()
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


def test_lines_are_short():
    lines = ((page, *line) for page in PAGES for line in enumerate(page.read_text().splitlines(), 1))
    assert [(page, number) for page, number, line in lines if len(line) > LONGEST] == []


def test_the_menu_names_every_page():
    index = DOCS / "index.md"
    menu = "".join(re.findall(r"^```\{toctree\}\n(.*?)^```$", index.read_text(), re.MULTILINE | re.DOTALL))
    named = [DOCS / f"{page}.md" for page in re.findall(r"^([\w/-]+)$", menu, re.MULTILINE)]
    assert sorted(named) == sorted(set(DOCS.rglob("*.md")) - {index})


def test_the_proofs_of_the_promises_exist():
    shown = re.findall(r"`(tests/[\w/.]+)`", (DOCS / "explanation" / "how-it-is-tested.md").read_text())
    assert len(shown) > 8
    assert [name for name in shown if not (ROOT / name).exists()] == []
