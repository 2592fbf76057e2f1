"""The site of the documentation: its diagrams, and the words of its search."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [*DOCS.rglob("*.md"), ROOT / "README.md"]
IMAGE = re.compile(r"!\[([^\]]*)\](?:\(([^)]+)\)|\[\w+\])")


def test_the_diagrams_are_those_that_the_script_draws() -> None:
    """`python scripts/diagrams.py` makes them again, and each is on a page."""
    drawn: dict[str, str] = runpy.run_path(str(ROOT / "scripts" / "diagrams.py"))["diagrams"]()
    assert {path.name: path.read_text() for path in (DOCS / "images").glob("*.svg")} == drawn
    shown = {Path(address).name for page in PAGES for _, address in IMAGE.findall(page.read_text())}
    assert set(drawn) <= shown


def test_a_number_is_a_word_of_the_search() -> None:
    """`tests/browser/test_documentation.py` searches for some in the site."""
    pytest.importorskip("sphinx", reason="it is in the group `docs`")
    search = runpy.run_path(str(DOCS / "site_search.py"))["Search"]({})
    words = search.split("answers 409, not W005")
    assert words == ["answers", " 409", "not", "W005"]
    assert search.word_filter(search.stem(" 409"))


def test_each_phrase_of_the_search_leads_to_a_single_page() -> None:
    """Two pages with one phrase would share the first place."""
    pytest.importorskip("sphinx", reason="it is in the group `docs`")
    phrases: dict[str, list[str]] = runpy.run_path(str(DOCS / "site_search.py"))["PHRASES"]
    assert [target for target in phrases if not (DOCS / f"{target.partition('#')[0]}.md").exists()] == []
    listed = [phrase for page in phrases.values() for phrase in page]
    assert len(set(listed)) == len(listed)
    assert [phrase for phrase in listed if phrase != phrase.lower()] == []
