"""The documentation: the links of its pages, their lines, the index, the diagrams, and the words of the search."""

import functools
import re
import runpy
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


def test_all_pages_install_the_same():
    """One search finds each line to change at the first release. Until then, PyPI may have a stranger's package."""
    shown = [line for page in PAGES for line in re.findall(r"^\$ (pip install .*)$", page.read_text(), re.MULTILINE)]
    ours = [line for line in shown if "zklock" in line and "zklock-client" not in line]
    assert len(ours) >= 4
    is_released = "not on PyPI yet" not in (ROOT / "README.md").read_text()
    where = "" if is_released else " @ git+https://github.com/django-zklock/django-zklock"
    assert set(ours) == {f'pip install "django-zklock[celery]{where}"'}
    inline = [match for page in PAGES for match in re.findall(r"`pip install [^`\n]*zklock[^`\n]*`", page.read_text())]
    assert inline == []


def test_the_table_of_behaviours_names_tests_that_exist():
    """A name without a folder is in the folder of the name before it."""
    tests = ROOT / "tests"
    table = (tests / "README.md").read_text().partition("## Which behaviour is where")[2].partition("\n## ")[0]
    folder = ""
    for name in re.findall(r"`([\w*/]+(?:\.py)?)`(?=[^|]*\|$|,)", table, re.MULTILINE):
        if "/" not in name and not name.endswith(".py"):
            continue
        folder = name.rpartition("/")[0] or folder
        assert list(tests.glob(f"{folder}/{name.rpartition('/')[2]}")), name


def test_the_proofs_of_the_promises_exist():
    shown = re.findall(r"`(tests/[\w/.]+)`", (DOCS / "explanation" / "how-it-is-tested.md").read_text())
    assert len(shown) > 8
    assert [name for name in shown if not (ROOT / name).exists()] == []


IMAGE = re.compile(r"!\[([^\]]*)\](?:\(([^)]+)\)|\[\w+\])")


def test_the_diagrams_are_those_that_the_script_draws():
    """`python scripts/diagrams.py` makes them again, and each is on a page."""
    drawn = runpy.run_path(str(ROOT / "scripts" / "diagrams.py"))["diagrams"]()
    assert {path.name: path.read_text() for path in (DOCS / "images").glob("*.svg")} == drawn
    shown = {Path(address).name for page in PAGES for _, address in IMAGE.findall(page.read_text())}
    assert set(drawn) <= shown


def test_a_number_is_a_word_of_the_search_and_each_phrase_leads_to_a_single_page():
    """Two pages with one phrase would share the first place."""
    pytest.importorskip("sphinx", reason="it is in the group `docs`")
    module = runpy.run_path(str(DOCS / "site_search.py"))
    search = module["Search"]({})
    assert search.split("answers 409, not W005") == ["answers", " 409", "not", "W005"]
    assert search.word_filter(search.stem(" 409"))
    phrases = module["PHRASES"]
    assert [target for target in phrases if not (DOCS / f"{target.partition('#')[0]}.md").exists()] == []
    listed = [phrase for page in phrases.values() for phrase in page]
    assert len(set(listed)) == len(listed)
    assert [phrase for phrase in listed if phrase != phrase.lower()] == []
