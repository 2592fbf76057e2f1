"""The pages of the documentation: their links, their lines, the index, and the layers of the import contract."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), ROOT / "example_project" / "README.md"])
LONGEST = 140  # characters of a line
RELATIVE = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)")
ABSOLUTE = re.compile(r"https://github\.com/django-zklock/django-zklock/blob/main/([^)\s#]+)(?:#([\w-]+))?")

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@each_page
def test_links_between_pages_work(page: Path) -> None:
    """The file exists, and so does the heading."""
    text = page.read_text()
    links = [(page.parent / path if path else page, anchor) for path, anchor in RELATIVE.findall(text)]
    links += [(ROOT / path, anchor) for path, anchor in ABSOLUTE.findall(text)]
    for path, anchor in links:
        target = path.resolve()
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


@each_page
def test_lines_are_short(page: Path) -> None:
    """A reader sees the whole line, also of a table."""
    long = [number for number, line in enumerate(page.read_text().splitlines(), 1) if len(line) > LONGEST]
    assert long == []


def test_the_index_names_every_page() -> None:
    """A page that the index does not name is found by nobody."""
    index = DOCS / "index.md"
    named = {(DOCS / path).resolve() for path in re.findall(r"\]\(([\w/-]+\.md)\)", index.read_text())}
    assert named == set(DOCS.rglob("*.md")) - {index}


def test_the_readme_is_short() -> None:
    """It has at most 100 lines."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100


def test_the_layers_in_contributing_are_those_of_the_contract() -> None:
    """From the top to the bottom, with the same modules in each."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    lines = settings["importlinter:contract:layers"]["layers"].split("\n")
    layers = [set(re.findall(r"[\w.]+", line)) for line in lines if line.strip()]
    text = (ROOT / "CONTRIBUTING.md").read_text()
    listed = re.findall(r"^\d+\. (.*(?:\n   .*)?)$", text, flags=re.MULTILINE)
    assert [set(re.findall(r"`(\w+)`", item.partition(": ")[0])) for item in listed] == layers


def test_the_table_of_behaviours_names_tests_that_exist() -> None:
    """A name without a folder is in the folder of the name before it."""
    tests = ROOT / "tests"
    table = (tests / "README.md").read_text().partition("## Which behaviour is where")[2].partition("\n## ")[0]
    folder = ""
    for name in re.findall(r"`([\w*/]+(?:\.py)?)`(?=[^|]*\|$|,)", table, re.MULTILINE):
        if "/" not in name and not name.endswith(".py"):
            continue
        folder = name.rpartition("/")[0] or folder
        assert list(tests.glob(f"{folder}/{name.rpartition('/')[2]}")), name
