"""The site of the documentation: what it needs to build, and what a reader's browser loads."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [*DOCS.rglob("*.md"), ROOT / "README.md"]
IMAGE = re.compile(r"!\[([^\]]*)\](?:\(([^)]+)\)|\[\w+\])")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it. A warning is an error."""
    pytest.importorskip("furo", reason="the theme of the site, which is in the group `docs`")
    directory = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "-b", "dirhtml", str(DOCS), str(directory)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return directory


def test_the_diagrams_are_those_that_the_script_draws() -> None:
    """`python scripts/diagrams.py` makes them again, and each is on a page."""
    drawn: dict[str, str] = runpy.run_path(str(ROOT / "scripts" / "diagrams.py"))["diagrams"]()
    assert {path.name: path.read_text() for path in (DOCS / "images").glob("*.svg")} == drawn
    shown = {Path(address).name for page in PAGES for _, address in IMAGE.findall(page.read_text())}
    assert set(drawn) <= shown
